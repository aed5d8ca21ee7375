"""Parses a request's body into checked fields, or names the first fault.

A body of a megabyte may hold half a million faults. Validation stops at the
first one, and finds a union's type before it checks the union's values, so that
no body takes long.
"""

from typing import Any
from typing import ClassVar
from typing import TypeVar

import pydantic
import pydantic_core

from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import known

_T = TypeVar('_T', bound='Fields')


def fault(field: str, message: str) -> pydantic_core.PydanticCustomError:
  """Returns an error that names the field at fault."""
  return pydantic_core.PydanticCustomError(
    'field', '{message}', {'field': field, 'message': message}
  )


class Fields(pydantic.BaseModel):
  """The fields of a request; unknown ones are refused.

  Attributes:
    UNSUPPORTED: fields that are known and not used (`known.py`).
    VALUES: the most values of a body (`bodies.parse`).
  """

  UNSUPPORTED: ClassVar[known.Table] = {}
  VALUES: ClassVar[int] = bodies.VALUES

  model_config = pydantic.ConfigDict(
    strict=True, extra='forbid', allow_inf_nan=False
  )

  @pydantic.model_validator(mode='before')
  @classmethod
  def _drop_idle(cls, value):
    """Drops what is null or asks for nothing; refuses other unused fields."""
    if not isinstance(value, dict):
      return value
    kept = {}
    for name, one in value.items():
      field = cls.model_fields.get(name)
      if field is not None:
        if one is not None or field.is_required():
          kept[name] = one
      elif name not in cls.UNSUPPORTED:
        if one is not None:
          raise fault(name, 'is not supported')
      elif not known.asks_nothing(one, cls.UNSUPPORTED[name]):
        raise fault(name, known.refuse(one, cls.UNSUPPORTED[name]))
    return kept


def parse(kind: type[_T], body: dict[str, Any]) -> _T:
  """Returns a body's checked fields.

  Raises:
    errors.ApiError: 400; names the first wrong field and its fault.
  """
  try:
    return kind.model_validate(body)
  except pydantic.ValidationError as error:
    raise _refusal(error) from error


def _refusal(error: pydantic.ValidationError) -> errors.ApiError:
  """Returns the first fault as an error in OpenAI's form."""
  first = error.errors(include_url=False)[0]
  names = [str(part) for part in first['loc']]
  message = first['msg'].removeprefix('Value error, ')
  if first['type'] == 'field':
    names.append(f'{first["ctx"]["field"]:.80}')
  elif first['type'] in ('model_type', 'dict_type'):
    message = 'must be an object'
  elif first['type'] == 'literal_error':
    message = f'{first["input"]!r:.80} is not supported: {message}'
  return errors.invalid(f'{".".join(names)}: {message}.', param=names[0])

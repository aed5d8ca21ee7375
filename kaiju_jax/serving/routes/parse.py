"""Stage 1 of a request, parse: who asks, and for what.

A body of a megabyte may hold half a million faults. Validation stops at the
first one, and finds a union's type before it checks the union's values, so that
no body takes long.
"""

from collections.abc import Mapping
import json
from typing import Any
from typing import ClassVar
from typing import TypeVar

import pydantic
import pydantic_core
from starlette import requests

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.routes import context as context_lib

# Alternatives of all tokens of an answer, some 5 MiB of JSON; our guess.
ALTERNATIVES = 2**17
# Fields that clients know and this server does not use (OpenAI's, then vLLM's),
# and the values that ask for what it does anyway. Null and empty values ask for
# nothing; any other would change the answer, and is refused.
Table = Mapping[str, tuple[Any, ...]]

REQUEST: Table = {
  'audio': (),
  'function_call': ('none', 'auto'),
  'functions': (),
  'modalities': (['text'],),
  'moderation': (),
  'reasoning_effort': ('none',),
  'response_format': ({'type': 'text'},),
  'suffix': (),
  'tool_choice': ('none', 'auto'),
  'tools': (),
  'verbosity': ('medium',),
  'web_search_options': (),
  'allowed_token_ids': (),
  'bad_words': (),
  'chat_template': (),
  'documents': (),
  'include_reasoning': (True,),
  'include_stop_str_in_output': (False,),
  'length_penalty': (1,),
  'min_tokens': (0,),
  'prompt_logprobs': (),
  'skip_special_tokens': (True,),
  'spaces_between_special_tokens': (True,),
  'stop_token_ids': (),
  'structured_outputs': (),
  'truncate_prompt_tokens': (),
  'use_beam_search': (False,),
}
# `parsed` is what openai-python adds to an answer that it has parsed.
MESSAGE: Table = {
  'audio': (),
  'function_call': (),
  'parsed': (),
  'tool_call_id': (),
  'tool_calls': (),
}
# Labels of a part of a message. They steer caches, and do not change the text.
PART_LABELS = frozenset({'annotations', 'cache_control'}) | {
  'prompt_cache_breakpoint'
}
_Kind = TypeVar('_Kind', bound='Fields')


class Fields(pydantic.BaseModel):
  """The fields of a request; unknown ones are refused."""

  # Fields that are known and not used.
  UNSUPPORTED: ClassVar[Table] = {}
  # The most values of a body, see `bodies.parse`.
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
      elif not asks_nothing(one, cls.UNSUPPORTED[name]):
        raise fault(name, _describe_unused(one, cls.UNSUPPORTED[name]))
    return kept


async def authorize(
  request: requests.Request,
) -> tuple[context_lib.Context, auth.Caller]:
  """Returns the server's parts and the caller, and counts the request.

  What the request's task runs in threads has the caller's turns from now on.
  """
  context: context_lib.Context = request.app.state.context
  caller = context.access.caller(request)
  exchange_lib.find(request).note_owner(caller.owner, context.secret)
  fair_threads.OWNER.set(caller.owner)
  context.limits.request(caller.owner, caller.rate)
  if not context.is_ready:
    raise errors.unavailable('the server is being stopped.')
  return context, caller


async def read_body(
  request: requests.Request,
  context: context_lib.Context,
  caller: auth.Caller,
  most: int = bodies.MOST,
) -> bytes:
  """Reads a body of at most `most` bytes; counts them against the limits."""
  body = await bodies.read(request, most)
  context.limits.text(caller.owner, len(body), caller.rate)
  return body


async def read_fields(
  request: requests.Request,
  context: context_lib.Context,
  caller: auth.Caller,
  kind: type[_Kind],
) -> _Kind:
  """Reads a body as JSON, and returns its checked fields."""
  bodies.media_type(request, [bodies.JSON])
  body = await read_body(request, context, caller)
  return await context.texts.run(
    lambda: check_fields(kind, bodies.parse(body, kind.VALUES)), len(body)
  )


def check_fields(kind: type[_Kind], body: dict[str, Any]) -> _Kind:
  """Returns a body's checked fields."""
  try:
    return kind.model_validate(body)
  except pydantic.ValidationError as error:
    raise _refusal(error) from error


def fault(field: str, message: str) -> pydantic_core.PydanticCustomError:
  """Returns an error that names the field at fault."""
  return pydantic_core.PydanticCustomError(
    'field', '{message}', {'field': field, 'message': message}
  )


def find_character(
  context: context_lib.Context, model: str, character: str | None
) -> str | None:
  """Returns the id of the character that a request names; None for none.

  Args:
    model: the field `model`: the served model's name, or `MODEL/CHARACTER`.
    character: the field `character`; None where the request has none.
  """
  name, _, named = model.removeprefix(context.model.name).partition('/')
  if not model.startswith(context.model.name) or name:
    raise errors.missing(
      f'model {model!r} is not served here: {context.model.name!r} is.',
      param='model',
    )
  if named and character not in (None, named):
    raise errors.invalid(
      f'character={character!r}: the model names {named!r}.', param='character'
    )
  return named or character


def check_limit(
  context: context_lib.Context, field: str, limit: int | None
) -> None:
  """Refuses a reply's limit, in tokens, that leaves no room for a prompt."""
  length = context.model.length
  if limit is not None and limit >= length:
    raise errors.too_long(
      f'{field}={limit}: must be less than {length:,}, the tokens of prompt and'
      ' reply.',
      field,
      length,
    )


def check_alternatives(
  context: context_lib.Context, field: str, count: int, tokens: int
) -> None:
  """Refuses alternatives that the server does not give, or too many.

  The likeliest tokens that were not drawn are text that no head has judged. So
  a moderated server gives none unless its operator says so, and then only those
  of tokens that were released.

  Args:
    field: the request's field that asks for them.
    count: alternatives of each token; 0 for none.
    tokens: the tokens of all choices that may have some; a lower bound while a
      prompt is not encoded.
  """
  if not count:
    return
  most = context.engines.max_alternatives
  if count > most:
    raise errors.invalid(
      f'{field}={count}: must be 0…{most} here; the server is started with'
      ' --top_logprobs=K for up to K.',
      param=field,
    )
  if context.moderator.mode != 'unmoderated' and not context.shows_unjudged:
    raise errors.invalid(
      f'{field}={count}: must be 0 on a moderated server, because nothing'
      ' judges alternatives; --unjudged_top_logprobs gives them all the same.',
      param=field,
    )
  if count * tokens > ALTERNATIVES:
    raise errors.invalid(
      f'{field}={count}: of {tokens:,} tokens that are {count * tokens:,}'
      f' alternatives, and an answer has at most {ALTERNATIVES:,}.',
      param=field,
    )


def find_guide(context: context_lib.Context) -> request_lib.Guide:
  """Returns the settings of a guided request's search."""
  if context.guide is None:
    raise errors.invalid(
      'guided: this server has no token-level head that could guide a search;'
      ' it is started with --head.',
      param='guided',
    )
  return context.guide


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


def _prune(value: Any) -> Any:
  """Returns a value without what is null or empty in it; None if all is."""
  if isinstance(value, dict):
    pruned = {name: _prune(one) for name, one in value.items()}
    value = {name: one for name, one in pruned.items() if one is not None}
  elif isinstance(value, list):
    value = [one for one in map(_prune, value) if one is not None]
  return None if value in ('', [], {}) else value


def asks_nothing(value: Any, idle: tuple[Any, ...] = ()) -> bool:
  """Returns whether a value is null, empty, or one of `idle`."""
  pruned = _prune(value)
  return pruned is None or any(
    # Python takes True for 1 and False for 0.
    pruned == one and isinstance(pruned, bool) == isinstance(one, bool)
    for one in idle
  )


def _describe_unused(value: Any, idle: tuple[Any, ...] = ()) -> str:
  """Returns in words what a field that is not supported may be instead."""
  values = [json.dumps(one, ensure_ascii=False) for one in (*idle, value)]
  able = ', '.join(['null', 'empty', *values[:-1]])
  return f'is not supported: must be left out, {able}, not {values[-1]:.80}'

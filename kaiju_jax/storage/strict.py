"""Converts dataclasses to and from plain data, strictly.

A run is read back from its `config.json`, and a model from its export, perhaps
years later and by other tools. So a field that is unknown or of another type is
an error that names the field. (An int is accepted as a float.)

A field that a file lacks has its default, because the file may be older than
the field. So a new field's default must be what older files mean.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import difflib
import math
import operator
import types
import typing
from typing import Any


def dump(config: Any) -> dict[str, Any]:
  """Returns a dataclass as nested dicts that JSON can hold.

  Raises:
    ValueError: a field holds another type than it declares, a float is not
      finite, or an attribute is not a field (a misspelt one).
  """
  _refuse_attributes(config, '')
  data = dataclasses.asdict(config)
  parse(type(config), data)
  return data


def parse(cls: type, data: Mapping[str, Any], within: str = '') -> Any:
  """Returns the instance of `cls` from which `dump` made `data`.

  Args:
    cls: a dataclass whose fields are bool, int, float, str, None, unions and
      tuples of these, or dataclasses; `Any` takes everything, as it is.
    data: a value per field; an absent field has its default.
    within: dotted name of the field that holds `cls`, for errors.

  Raises:
    ValueError: a field is unknown or of another type, or is missing and has no
      default.
  """
  if not isinstance(data, Mapping):
    raise ValueError(f'{within or cls.__name__}={data!r}: must be an object.')
  prefix = f'{within}.' if within else ''
  fields = dataclasses.fields(cls)
  _refuse_unknown(data.keys(), [field.name for field in fields], prefix)
  missing = [
    prefix + field.name
    for field in fields
    if field.name not in data and _default(field) is ABSENT
  ]
  if missing:
    raise ValueError(f'{", ".join(missing)}: missing.')
  hints = typing.get_type_hints(cls)
  return cls(
    **{
      name: _value(hints[name], value, prefix + name)
      for name, value in data.items()
    }
  )


def fill(cls: type, data: Any) -> Any:
  """Returns plain data with the defaults of the fields that it lacks.

  It checks nothing, so that data which `parse` refuses can be compared as well.

  Args:
    cls: the dataclass of which `data` may be a dump.
    data: values by field, nested.
  """
  if not isinstance(data, Mapping):
    return data
  hints = typing.get_type_hints(cls)
  filled = {name: _filled(hints.get(name), one) for name, one in data.items()}
  for field in dataclasses.fields(cls):
    default = _default(field)
    if field.name not in data and default is not ABSENT:
      filled[field.name] = _plain(default)
  return filled


def dump_known(config: Any, known: Collection[str]) -> dict[str, Any]:
  """Returns a dataclass as nested dicts that a digest may cover.

  A field that is not `known` is left out where it has its default, so that a
  field that is added later changes no digest that is in files already.

  Args:
    config: the dataclass.
    known: dotted names of the fields that are never left out.
  """
  return _dump_known(config, known, '')


def check_choices(
  config: Any, choices: Mapping[str, Sequence[str]], within: str
) -> None:
  """Refuses a config in which a field has none of its choices.

  Args:
    config: a dataclass.
    choices: the choices by the field's dotted name.
    within: dotted name of the config, for errors.

  Raises:
    ValueError: names the field, its value and the choices.
  """
  for name, several in choices.items():
    value = operator.attrgetter(name)(config)
    if value not in several:
      raise ValueError(
        f'{within}.{name}={value!r}: must be one of'
        f' {", ".join(map(repr, several))}.'
      )


def differences(
  ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
  """Returns {dotted field: (our value, their value)} for fields that differ.

  An absent field has the value `ABSENT`.
  """
  ours, theirs = _flat(ours), _flat(theirs)
  pairs = {
    name: (ours.get(name, ABSENT), theirs.get(name, ABSENT))
    for name in sorted(ours.keys() | theirs.keys())
  }
  return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


class _Absent:
  def __repr__(self) -> str:
    return '(no such field)'


ABSENT = _Absent()


def _default(field: dataclasses.Field) -> Any:
  """Returns a field's default, `ABSENT` for none."""
  if field.default_factory is not dataclasses.MISSING:
    return field.default_factory()
  return ABSENT if field.default is dataclasses.MISSING else field.default


def _plain(value: Any) -> Any:
  if dataclasses.is_dataclass(value):
    return dataclasses.asdict(value)
  return value


def _filled(hint: Any, value: Any) -> Any:
  """Does what `fill` does for a value of a type."""
  if isinstance(value, Mapping):
    for one in (hint, *typing.get_args(hint)):
      if dataclasses.is_dataclass(one):
        return fill(one, value)
  if isinstance(value, (list, tuple)) and typing.get_origin(hint) is tuple:
    return [_filled(typing.get_args(hint)[0], one) for one in value]
  return value


def _dump_known(
  config: Any, known: Collection[str], prefix: str
) -> dict[str, Any]:
  data = {}
  for field in dataclasses.fields(config):
    name, value = prefix + field.name, getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      if inner := _dump_known(value, known, f'{name}.'):
        data[field.name] = inner
    elif name in known or value != _default(field):
      data[field.name] = value
  return data


def _value(hint: Any, value: Any, name: str) -> Any:
  if hint is Any:
    return value
  if dataclasses.is_dataclass(hint):
    return parse(hint, value, name)
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    for argument in arguments:
      is_object = dataclasses.is_dataclass(argument)
      if isinstance(value, Mapping) if is_object else _is_a(argument, value):
        return _value(argument, value, name)
    raise _refusal(hint, value, name)
  if origin is tuple and isinstance(value, (list, tuple)):
    return tuple(
      _value(arguments[0], v, f'{name}[{i}]') for i, v in enumerate(value)
    )
  if not _is_a(hint, value):
    raise _refusal(hint, value, name)
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f'{name}={value}: must be finite.')
  return float(value) if hint is float else value


def _is_a(hint: Any, value: Any) -> bool:
  """Returns whether a type takes a value; an int is a float, a bool no int."""
  if isinstance(value, bool):
    return hint is bool
  if hint is float:
    return isinstance(value, (int, float))
  origin = typing.get_origin(hint)
  if origin is typing.Literal:
    return value in typing.get_args(hint)
  return isinstance(value, origin or hint)


def _refusal(hint: Any, value: Any, name: str) -> ValueError:
  wanted = hint.__name__ if isinstance(hint, type) else str(hint)
  return ValueError(f'{name}={value!r}: must be {wanted}.')


def _refuse_unknown(given, names, prefix: str) -> None:
  for name in sorted(set(given) - set(names)):
    close = difflib.get_close_matches(name, names, n=1)
    hint = f' Did you mean {prefix}{close[0]}?' if close else ''
    raise ValueError(f'{prefix}{name}: no such field.{hint}')


def _refuse_attributes(config: Any, prefix: str) -> None:
  """Refuses attributes such as `config.widnow = 3`, which no code reads."""
  fields = [field.name for field in dataclasses.fields(config)]
  _refuse_unknown(vars(config), fields, prefix)
  for name in fields:
    value = getattr(config, name)
    if dataclasses.is_dataclass(value):
      _refuse_attributes(value, f'{prefix}{name}.')
    elif isinstance(value, tuple):
      for index, one in enumerate(value):
        if dataclasses.is_dataclass(one):
          _refuse_attributes(one, f'{prefix}{name}[{index}].')


def _flat(data: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  flat = {}
  for name, value in data.items():
    if isinstance(value, Mapping):
      flat.update(_flat(value, f'{prefix}{name}.'))
    elif isinstance(value, (list, tuple)) and _are_objects(value):
      for index, one in enumerate(value):
        flat.update(_flat(one, f'{prefix}{name}[{index}].'))
    else:
      flat[prefix + name] = list(value) if isinstance(value, tuple) else value
  return flat


def _are_objects(values) -> bool:
  return bool(values) and all(isinstance(one, Mapping) for one in values)

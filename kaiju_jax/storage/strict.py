"""Converts dataclasses to and from plain data without guessing a field.

A run is read back from its `config.json`, and a model from its export, perhaps
years later and by other tools. So a field that is unknown, missing or of
another type is an error that names the field. (An int is accepted as a float.)
"""

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
      tuples of these, or dataclasses.
    data: one value per field.
    within: dotted name of the field that holds `cls`, for errors.

  Raises:
    ValueError: a field is unknown, missing or of another type.
  """
  if not isinstance(data, Mapping):
    raise ValueError(f'{within or cls.__name__}={data!r}: must be an object.')
  prefix = f'{within}.' if within else ''
  names = [field.name for field in dataclasses.fields(cls)]
  _refuse_unknown(data.keys(), names, prefix)
  missing = [prefix + name for name in names if name not in data]
  if missing:
    raise ValueError(f'{", ".join(missing)}: missing.')
  hints = typing.get_type_hints(cls)
  return cls(
    **{name: _value(hints[name], data[name], prefix + name) for name in names}
  )


def add_younger(
  data: Mapping[str, Any], younger: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns data with the fields that are younger than the file it is from.

  Args:
    data: nested values, as `dump` makes them.
    younger: the values that files without a field mean, by its dotted name. A
      field whose parent is not there is not added.
  """
  data = dict(data)
  for name, value in younger.items():
    first, _, rest = name.partition('.')
    if not rest:
      data.setdefault(first, value)
    elif isinstance(data.get(first), Mapping):
      data[first] = add_younger(data[first], {rest: value})
  return data


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


def _value(hint: Any, value: Any, name: str) -> Any:
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
  return isinstance(value, typing.get_origin(hint) or hint)


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

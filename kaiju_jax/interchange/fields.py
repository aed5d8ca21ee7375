"""Reads the fields of a config.json, each with its type and one-line errors.

A field that is absent has the default of its class. Every field must be read,
required to have one value, or ignored: any other may change the mathematics and
is refused (`Fields.finish`). Unknown fields pass that are null, that
the user accepts, or whose kind changes no logit, such as `_name_or_path` and
`unk_token_id`.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
import re
from typing import Any
from typing import TypeVar

T = TypeVar('T')
# Names of fields that no family computes with: what is private to the library
# that wrote the file, special tokens, versions, and the dtype of weights, which
# the weights' own file says.
_SILENT = re.compile(r'_.+|(.+_)?token_ids?|.+_token_index|.+_version|.*dtype')
# A variable of the process and of those that it starts.
_ACCEPTED = 'KAIJU_ACCEPT_FIELD'
_LONGEST = 80  # Characters of a value in an error.


def accept(names: Sequence[str]) -> None:
  """Lets unknown fields pass, in this process and those that it starts.

  Args:
    names: dotted names; they may change what a model computes.
  """
  os.environ[_ACCEPTED] = ','.join(names)


class Fields:
  """The fields of one JSON object; notes which of them were read."""

  def __init__(
    self,
    found: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    accepted: Collection[str] = (),
    within: str = '',
  ):
    """Keeps the object.

    Args:
      found: the parsed JSON.
      defaults: the values of absent fields.
      accepted: unknown fields that the caller lets pass, by dotted name.
      within: the dotted name of the object, '' for the whole file.
    """
    self._found = found
    self._defaults = defaults or {}
    self._accepted = {*accepted, *os.environ.get(_ACCEPTED, '').split(',')}
    self._prefix = f'{within}.' if within else ''
    self._known: set[str] = set()

  def error(self, name: str, remedy: str) -> ValueError:
    """Returns an error that names a field, its value and what is right."""
    if name not in self._found and name not in self._defaults:
      return ValueError(f'{self._prefix}{name}: missing; {remedy}.')
    return ValueError(
      f'{self._prefix}{name}={_show(self.take(name))}: {remedy}.'
    )

  def has(self, name: str) -> bool:
    """Returns whether the file itself gives the field a value."""
    return self._found.get(name) is not None

  def has_value(self, name: str) -> bool:
    """Returns whether a field is not null, by the file or by default."""
    return self._found.get(name, self._defaults.get(name)) is not None

  def take(self, name: str) -> Any:
    """Returns a field's value, its default, or None."""
    self._known.add(name)
    return self._found.get(name, self._defaults.get(name))

  def count(
    self,
    name: str,
    or_else: int | None = None,
    least: int = 1,
    most: int = 2**31 - 1,
  ) -> int:
    """Returns an integer of `least`…`most`; `or_else` in place of null."""
    value = self.take(name)
    if value is None and or_else is not None:
      return or_else
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least:
      raise self.error(name, f'must be int, at least {least}')
    if value > most:
      raise self.error(name, f'must be at most {most}')
    return value

  def number(
    self, name: str, least: float, or_else: float | None = None
  ) -> float:
    """Returns a finite float of at least `least`; `or_else` for null."""
    value = self.take(name)
    if value is None and or_else is not None:
      return or_else
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
      raise self.error(name, f'must be float, at least {least:g}')
    return float(value)

  def flag(self, name: str) -> bool:
    value = self.take(name)
    if not isinstance(value, bool):
      raise self.error(name, 'must be true or false')
    return value

  def choice(self, name: str, choices: Mapping[str, T]) -> T:
    """Returns what `choices` has under the field's value."""
    value = self.take(name)
    if not isinstance(value, str) or value not in choices:
      drawn = ', '.join(map(repr, choices))
      word = 'one of ' if len(choices) > 1 else ''
      raise self.error(name, f'must be {word}{drawn}')
    return choices[value]

  def list_of(self, name: str, choices: Collection[T], least: int) -> list[T]:
    """Returns the first `least` values of a list of `choices`."""
    value = self.take(name)
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or len(value) < least:
      raise self.error(name, f'must be a list of {least}, one for each layer')
    for index, one in enumerate(value):
      if isinstance(one, bool | float) or one not in choices:
        drawn = ', '.join(map(repr, choices))
        raise ValueError(
          f'{self._prefix}{name}[{index}]={_show(one)}: must be one of {drawn}.'
        )
    return list(value[:least])

  def descend(
    self, name: str, defaults: Mapping[str, Any] | None = None
  ) -> 'Fields':
    """Returns the fields of an object in this one; call its `finish`."""
    value = self.take(name)
    if not isinstance(value, Mapping):
      raise self.error(name, 'must be an object')
    return Fields(value, defaults, self._accepted, f'{self._prefix}{name}')

  def require(self, name: str, wanted: Any, why: str) -> None:
    """Refuses a field with another value than `wanted`; null is none."""
    value = self.take(name)
    if value is None:
      return
    if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
      raise self.error(name, f'must be {wanted!r}: {why}')

  def ignore(self, names: Collection[str]) -> None:
    """Lets fields pass that change no logit."""
    self._known.update(names)

  def finish(self) -> None:
    """Refuses fields that nothing has read and that may change a logit."""
    for name in sorted(self._found.keys() - self._known):
      path = f'{self._prefix}{name}'
      if self.has(name) and not (
        path in self._accepted or _SILENT.fullmatch(name)
      ):
        raise self.error(
          name,
          'not a field of the models that can be read;'
          f' --accept_field={path} ignores it',
        )


def agree(values: Sequence[tuple[str, T]]) -> T | None:
  """Returns the one value of a field that a file may spell in several ways.

  Args:
    values: (the field's name, its value) for each spelling in the file.

  Raises:
    ValueError: two spellings have different values.
  """
  if not values:
    return None
  (name, value), *others = values
  for other_name, other in others:
    if other != value:
      raise ValueError(
        f'{other_name}={_show(other)}: must be {name}={_show(value)}, which is'
        ' the same field.'
      )
  return value


def _show(value: Any) -> str:
  drawn = repr(value)
  return drawn if len(drawn) <= _LONGEST else f'{drawn[:_LONGEST]}…'

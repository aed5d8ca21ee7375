"""Reads the values of a card's JSON object leniently.

Programs write null, numbers, flags as words, and one text where a list belongs.
Where the meaning is plain, such a value is read; otherwise it is dropped with a
note. Only a wrong value of a field that a prompt reads refuses the card, since
the character would be another one without it.
"""

from collections.abc import Collection
from collections.abc import Mapping
import itertools
import math
import re
from typing import Any

from kaiju_jax.characters.cards import card_extensions
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_json

_ORDER = 2**31 - 1  # The largest `Lore.order`.
# More cannot be within the limit: each takes 8 characters at least.
_FIELDS = card_fields.EXTENSIONS // 8
_COMMA = re.compile(r'\s*,\s*')


class Object:
  """A JSON object of a card.

  Attributes:
    value: the object.
    path: the beginning of its fields' names in notes and errors, such as
      'data.'.
    notes: gets a line per part that is dropped or changed.
  """

  def __init__(self, value: Mapping[str, Any], path: str, notes: list[str]):
    self.value = value
    self.path = path
    self.notes: list[str] = notes

  def note(self, name: str, what: str) -> None:
    """Adds a note on a field."""
    self.notes.append(f'{self.path}{name}: {what}')

  def drop(self, name: str, value: Any, wanted: str) -> None:
    """Adds a note that a wrong value is dropped."""
    shown = card_fields.abbreviate(value)
    self.notes.append(f'{self.path}{name}={shown}: must be {wanted}, dropped')

  def text(self, name: str, most: int, is_read: bool) -> str:
    """Returns a text; null and false count as none.

    One of more than `most` characters is cut, unless a prompt reads it.

    Raises:
      card_json.CardError: a prompt reads the field, and it is no text.
    """
    value = self.value.get(name)
    text = _text(value)
    if text is None and isinstance(value, list):
      lines = list(map(_text, value))
      if None not in lines:
        text = '\n'.join(lines)
        self.note(name, 'a list, read as lines')
    if text is None and is_read:
      shown = card_fields.abbreviate(value)
      raise card_json.CardError(
        'type', f'{self.path}{name}={shown}: must be a string.'
      )
    if text is None:
      self.drop(name, value, 'a string')
      return ''
    if len(text) > most and not is_read:
      self.note(name, f'{len(text):,} characters, cut to {most:,}')
      text = text[:most]
    return text

  def texts(self, name: str, splits: bool = True) -> list[str]:
    """Returns the field's list of texts, or its one text.

    `splits`: whether one text lists several with commas between them.
    """
    value = self.value.get(name)
    if isinstance(value, Mapping):
      value = list(value.values())
    if isinstance(value, list):
      found = []
      for index, one in enumerate(value):
        text = _text(one)
        if text is None:
          self.drop(f'{name}[{index}]', one, 'a string')
        else:
          found.append(text)
      return found
    text = _text(value)
    if text is None:
      self.drop(name, value, 'a list of strings')
      return []
    if splits and text:
      self.note(name, 'a text, read as a list')
      return [one for one in _COMMA.split(text.strip()) if one]
    return [text] if text else []

  def lines(self, name: str) -> tuple[str, ...]:
    """Returns a list of short lines; drops those beyond the limits."""
    found = card_fields.lines(tuple(self.texts(name)))
    short = [text for text in found if len(text) <= card_fields.NAME]
    if len(short) < len(found):
      self.note(
        name,
        f'{len(found) - len(short)} of more than {card_fields.NAME} characters,'
        ' dropped',
      )
    return self.first(name, short, card_fields.KEYS)

  def first(self, name: str, values: list[str], most: int) -> tuple[str, ...]:
    """Returns the first of several values; notes how many there are."""
    if len(values) > most:
      self.note(name, f'{len(values):,}: the first {most} are read')
    return tuple(values[:most])

  def flag(self, name: str, default: bool) -> bool:
    """Returns a flag, which may be a number or a word."""
    value = self.value.get(name)
    if value is None:
      return default
    found = card_json.flag(value)
    if found is None:
      self.drop(name, value, 'true or false')
      return default
    return found

  def order(self, name: str) -> int:
    """Returns a whole number of 32 bits; 0 where there is none."""
    value = self.value.get(name)
    found = card_json.number(value)
    if found is None:
      if value not in (None, ''):
        self.drop(name, value, 'a number')
      return 0
    return max(-_ORDER, min(math.floor(found), _ORDER))

  def object(self, name: str) -> 'Object | None':
    """Returns an inner object; None where there is none."""
    value = self.value.get(name)
    if isinstance(value, Mapping):
      return Object(value, f'{self.path}{name}.', self.notes)
    if value not in (None, '', [], False, 0):
      self.drop(name, value, 'an object')
    return None

  def rest(
    self, without: Collection[str], default: Mapping[str, Any] | None = None
  ) -> dict[str, Any]:
    """Returns the fields but those of `without`, without executable parts.

    The notes name what is dropped. Fields that have the value of `default` are
    left out, as an export writes them anyway.
    """
    default = default or {}
    left = {
      name: value
      for name, value in self.value.items()
      if name not in without
      and not (name in default and _is_equal(value, default[name]))
    }
    if not left:
      return left
    if len(left) > _FIELDS:
      self.notes.append(
        f'{self.path[:-1] or "the card"}: {len(left):,} unknown fields, of'
        f' which the first {_FIELDS:,} are read'
      )
      left = dict(itertools.islice(left.items(), _FIELDS))
    left, dropped = card_extensions.filter_plain(left, self.path[:-1])
    self.notes += dropped
    return left


def fit(value: dict[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
  """Drops values of an object that are too deep, then the largest ones.

  Returns:
    The object, within the limits; a note per dropped value.
  """
  notes, dropped = [], set()
  is_small = card_json.size(value) <= card_fields.EXTENSIONS
  if is_small and card_fields.depth(value) <= card_fields.DEPTH:
    return value, notes

  def drop(key: str, why: str) -> None:
    dropped.add(key)
    notes.append(f'{name}{ascii(key)[1:-1][:60]}: {why}, dropped')

  sizes = {}
  for key, one in value.items():
    is_flat = not isinstance(one, (dict, list))
    if is_flat or card_fields.depth(one) < card_fields.DEPTH:
      sizes[key] = card_json.size({key: one})
    else:
      drop(key, f'deeper than {card_fields.DEPTH} levels')
  left = sum(sizes.values())
  for key in sorted(sizes, key=sizes.get, reverse=True):
    if left <= card_fields.EXTENSIONS:
      break
    left -= sizes[key]
    drop(
      key,
      f'{sizes[key]:,} characters; all of these fields have at most'
      f' {card_fields.EXTENSIONS:,}',
    )
  return {key: one for key, one in value.items() if key not in dropped}, notes


def _is_equal(value: Any, other: Any) -> bool:
  return type(value) is type(other) and value == other  # 1 is not True.


def _text(value: Any) -> str | None:
  """Returns the text that a value is or stands for; None for no text."""
  if isinstance(value, str):
    return value
  if value is None or value is False or value in ([], {}):
    return ''
  if isinstance(value, (int, float)) and not isinstance(value, bool):
    # A huge integer is none that a person wrote, and slow to print.
    return str(value) if abs(value) < 1e21 else None
  return None

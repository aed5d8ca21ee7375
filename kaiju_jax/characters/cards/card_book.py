"""Reads and writes the lore of a card, its `character_book`.

Programs write the entries as a list, or as an object by number, and with the
field names of cards or those of a SillyTavern world. All of them are read. What
has no field in `card_fields.Lore` stays in its `other`, so that an export has
it again.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_json
from kaiju_jax.characters.cards import card_values
from kaiju_jax.characters.cards import lore_rules

# The fields of a world's entry that a card's entry has by another name; all but
# these are among a card's extensions.
_WORLD = {
  'key': 'keys',
  'keysecondary': 'secondary_keys',
  'order': 'insertion_order',
  'uid': 'id',
  **{name: name for name in ('comment', 'content', 'constant', 'selective')},
}
_CAMEL = {'selectiveLogic', 'useProbability'}  # So in cards, too.
_UPPER = re.compile('[A-Z]')
_OWN = {
  *('keys', 'content', 'constant', 'secondary_keys', 'selective', 'enabled'),
  *('insertion_order', 'name'),
}
_BOOK = {'extensions': {}}  # What the fields of a book are by default.
# What a book says of all its entries.
_UNSUPPORTED = {
  'recursive_scanning': 'lore is not searched for keys',
  'token_budget': 'the budget is the same for all characters',
}


def read(
  book: card_values.Object,
) -> tuple[tuple[card_fields.Lore, ...], dict[str, Any]]:
  """Returns the entries of a book, not yet checked, and its other fields.

  Raises:
    card_json.CardError: it has more than `card_fields.LORE` entries.
  """
  entries = book.value.get('entries')
  if isinstance(entries, Mapping):
    entries = list(entries.values())
  elif not isinstance(entries, list):
    if entries not in (None, '', False, 0):
      book.drop('entries', entries, 'a list')
    entries = []
  if len(entries) > card_fields.LORE:
    raise card_json.CardError(
      'entries',
      f'{book.path}entries has {len(entries):,}: at most {card_fields.LORE}.',
    )
  scanned = lore_rules.scan_depth(book.value)
  for name, why in _UNSUPPORTED.items():
    if book.value.get(name):
      book.note(name, why)
  lore = []
  for index, value in enumerate(entries):
    name = f'entries[{index}]'
    if isinstance(value, Mapping):
      path = f'{book.path}{name}.'
      entry = card_values.Object(value, path, book.notes)
      lore.append(_read_entry(len(lore), entry, scanned))
    else:
      book.drop(name, value, 'an object')
  return tuple(lore), book.rest({'entries'}, _BOOK)


def write(
  lore: tuple[card_fields.Lore, ...], book: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns a `character_book` with these entries and other fields."""
  return {
    **_BOOK,
    **book,
    'entries': [_write_entry(*one) for one in enumerate(lore)],
  }


def shrink(lore: card_fields.Lore) -> card_fields.Lore:
  """Returns an entry without the other programs' fields that nothing reads."""
  other = {
    name: value for name, value in lore.other.items() if name in lore_rules.READ
  }
  extensions = other.get('extensions')
  if isinstance(extensions, Mapping):
    other['extensions'] = {
      name: value
      for name, value in extensions.items()
      if name in lore_rules.READ and value is not None
    }
  return dataclasses.replace(lore, other=other)


def _default(index: int) -> dict[str, Any]:
  """Returns what the fields of an entry are by default."""
  return {
    'id': index,
    'secondary_keys': [],
    'selective': False,
    'use_regex': False,
    'extensions': {},
  }


def _read_entry(
  index: int, entry: card_values.Object, scanned: int
) -> card_fields.Lore:
  if 'keys' not in entry.value and 'key' in entry.value:
    entry.value = _of_world(entry.value)
  is_selective = entry.flag('selective', False)
  secondary = entry.lines('secondary_keys') if is_selective else ()
  # Keys that the card does not use stay for an export.
  own = _OWN if is_selective else _OWN - {'secondary_keys'}
  other = entry.rest(own, _default(index))
  if is_selective and not secondary:
    other['selective'] = True
  # An entry without a name is named by the beginning of its comment.
  name = card_fields.line(entry.text('name', card_fields.TEXT, is_read=False))
  comment = other.get('comment')
  if not name and isinstance(comment, str):
    name = card_fields.line(comment)
  name = name[: card_fields.NAME].rstrip()
  if comment == name:
    del other['comment']
  other, dropped = card_values.fit(other, entry.path)
  lore = card_fields.Lore(
    keys=entry.lines('keys'),
    content=entry.text('content', card_fields.TEXT, is_read=True),
    is_constant=entry.flag('constant', False),
    secondary_keys=secondary,
    is_enabled=entry.flag('enabled', True),
    order=entry.order('insertion_order'),
    name=name,
    other=other,
  )
  said = (f'{entry.path}{note}' for note in lore_rules.read(lore, scanned)[1])
  entry.notes += [*dropped, *said]
  return lore


def _of_world(value: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a SillyTavern world's entry with a card's names."""
  entry: dict[str, Any] = {'extensions': {}}
  for name, one in value.items():
    if name in _WORLD:
      entry[_WORLD[name]] = one
    elif name == 'disable':
      entry['enabled'] = not card_json.flag(one)
    elif name == 'extensions' and isinstance(one, Mapping):
      entry['extensions'] |= one
    else:
      if name not in _CAMEL:
        name = _UPPER.sub(lambda found: f'_{found[0].lower()}', name)
      entry['extensions'].setdefault(name, one)
  return entry


def _write_entry(index: int, lore: card_fields.Lore) -> dict[str, Any]:
  entry = {
    **_default(index),
    'comment': lore.name,
    **lore.other,
    'keys': list(lore.keys),
    'content': lore.content,
    'constant': lore.is_constant,
    'enabled': lore.is_enabled,
    'insertion_order': lore.order,
    'name': lore.name,
  }
  if lore.secondary_keys:
    entry |= {'selective': True, 'secondary_keys': list(lore.secondary_keys)}
  return entry

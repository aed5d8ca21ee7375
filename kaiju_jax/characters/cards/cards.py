"""Reads and writes character cards: v1, v2 and v3, as JSON and as PNG.

v1  {"name", "description", "personality", "scenario", "first_mes",
    "mes_example"}
v2  {"spec": "chara_card_v2", "data": {…}}: v1's fields and more, among them
    lore (`character_book`)
v3  {"spec": "chara_card_v3", "data": {…}}: v2's, a nickname, assets

A PNG holds the JSON's base64 in the text chunk `ccv3` (v3) or `chara` (v2, v1);
if it has both, `ccv3` is read.

A card comes from a stranger. So it is read within bounds of size, depth, time
and memory, and errors name the fault. All its values become plain text, never
markup or code. Fields that this project does not use are dropped, and the notes
say so.
"""

import base64
import binascii
from collections.abc import Mapping
import dataclasses
import itertools
import json
import math
import re
from typing import Any
from typing import NamedTuple

from kaiju_jax.characters.cards import card_extensions
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_json
from kaiju_jax.characters.cards import card_png

CardError = card_json.CardError

_SPECS = {'chara_card_v2': 'v2', 'chara_card_v3': 'v3'}
_NEWEST = {'v2': 2.0, 'v3': 3.0}
_NOTES = 50
_NO_PICTURE = 'picture: not kept; an exported card shows a drawn pattern'
# The names of our text fields by the cards' names.
_TEXTS = {
  'name': 'name',
  'description': 'description',
  'personality': 'personality',
  'scenario': 'scenario',
  'first_mes': 'greeting',
  'mes_example': 'examples',
  'creator_notes': 'notes',
  'system_prompt': 'system_prompt',
  'post_history_instructions': 'post_history',
  'creator': 'creator',
  'character_version': 'version_name',
  'nickname': 'nickname',
}
_LISTS = {'alternate_greetings': 'alternate_greetings', 'tags': 'tags'}
_USED = {*_TEXTS, *_LISTS, 'extensions', 'character_book'}
_USED_OF_ENTRIES = {
  *('keys', 'secondary_keys', 'selective', 'content', 'constant', 'enabled'),
  *('insertion_order', 'name', 'comment', 'use_regex'),
  # Most cards have these; they have no effect here.
  *('id', 'position', 'priority', 'extensions'),
}
# A pattern as other programs write it, and the signs that make a key a pattern
# where the card says that its keys are patterns.
_PATTERN = re.compile(r'/.+/[a-zA-Z]*', re.DOTALL)
_SIGNS = re.compile(r'[\\^$.|?*+()\[\]{}/]')
_KINDS = (
  (b'\xff\xd8\xff', 'a JPEG'),
  (b'GIF8', 'a GIF'),
  (b'RIFF', 'a WebP'),
  (b'PK\x03\x04', 'a zip archive, such as .charx'),
)


class Card(NamedTuple):
  """A card that was read.

  Attributes:
    fields: its texts.
    spec: 'v1', 'v2' or 'v3'.
    notes: a line per dropped part of the card.
  """

  fields: card_fields.Fields
  spec: str
  notes: tuple[str, ...]


def read(data: bytes) -> Card:
  """Reads a card; a PNG's picture is not kept.

  Args:
    data: JSON of at most 1 MiB, or a PNG of at most 8 MiB.

  Raises:
    CardError: names the fault.
  """
  if data.startswith(card_png.SIGNATURE[:4]):
    card = _card(card_json.read(_json_of(data)))
    if card_png.embed(data, {}) == card_png.draw(card.fields.name):
      return card  # Our own pattern, which the next export draws again.
    return card._replace(notes=(_NO_PICTURE, *card.notes))
  for opening, kind in _KINDS:
    if data.startswith(opening):
      raise CardError('signature', f'{kind}: a card is a PNG or JSON.')
  return _card(card_json.read(data))


def to_json(fields: card_fields.Fields, spec: str = 'v3') -> bytes:
  """Returns a card as JSON, from which `read` returns equal fields.

  Args:
    fields: the card's texts.
    spec: 'v2' or 'v3'.

  Raises:
    card_fields.FieldError: invalid fields.
    ValueError: another spec.
  """
  card_fields.check(fields)
  names = {short: long for long, short in _SPECS.items()}
  if spec not in names:
    raise ValueError(f'spec={spec!r}: must be one of {", ".join(names)}.')
  data: dict[str, Any] = {
    theirs: getattr(fields, ours) for theirs, ours in _TEXTS.items()
  }
  data |= {
    theirs: list(getattr(fields, ours)) for theirs, ours in _LISTS.items()
  }
  data['extensions'] = fields.extensions
  if spec == 'v3':
    data['group_only_greetings'] = []
  if fields.lore:
    data['character_book'] = {
      'extensions': {},
      'entries': [_entry_of(*one) for one in enumerate(fields.lore)],
    }
  card = {
    'spec': names[spec],
    'spec_version': f'{_NEWEST[spec]}',
    'data': data,
  }
  return json.dumps(card, ensure_ascii=False).encode()


def to_png(fields: card_fields.Fields, picture: bytes | None = None) -> bytes:
  """Returns a card as a PNG with both a v2 and a v3 text.

  Args:
    fields: the card's texts.
    picture: the PNG whose pixels it shows; None for a drawn pattern.

  Raises:
    CardError: the picture is not a PNG; see `card_png.chunks`.
    card_fields.FieldError: invalid fields.
  """
  texts = {
    'chara': base64.b64encode(to_json(fields, 'v2')),
    'ccv3': base64.b64encode(to_json(fields, 'v3')),
  }
  return card_png.embed(picture or card_png.draw(fields.name), texts)


def _json_of(data: bytes) -> bytes:
  """Returns the JSON text of the card in a PNG."""
  texts = card_png.texts(data, ('ccv3', 'chara'))
  text = texts.get('ccv3', texts.get('chara'))
  if text is None:
    raise CardError(
      'missing', "the PNG has no card: no text 'ccv3' or 'chara'."
    )
  if text.lstrip()[:1] == b'{':
    return text  # Some programs leave out the base64.
  try:
    return base64.b64decode(b''.join(text.split()), validate=True)
  except binascii.Error as error:
    raise CardError(
      'base64', f"the PNG's card is not base64: {error}."
    ) from None


def _card(value: Any) -> Card:
  """Returns the card of a JSON value."""
  card = _Reader(value, 'the card')
  named = card.value.get('spec')
  if named is None:
    spec = 'v2' if 'data' in card.value else 'v1'
  elif isinstance(named, str) and named in _SPECS:
    spec = _SPECS[named]
  else:
    raise CardError(
      'spec',
      f'spec={card_fields.abbreviate(named)}: must be one of'
      f' {", ".join(_SPECS)}.',
    )
  if spec == 'v1':
    data = card
    data.path = ''
  else:
    data = card.object('data', 'data')
    if data is None:
      raise CardError('missing', f'data: missing; spec={named!r} has it.')
  if not data.value.get('name'):
    raise CardError(
      'nameless',
      f"{data.path}name: missing or empty. A card has a character's name, as in"
      ' {"name": "Ada", "description": …} or {"spec": "chara_card_v2", "data":'
      ' {"name": "Ada", …}}.',
    )
  fields, notes = _fields(data)
  notes = [*_newer(card.value.get('spec_version'), spec), *notes]
  try:
    card_fields.check(fields)
  except card_fields.FieldError as error:
    raise CardError(error.fault, str(error)) from None
  if len(notes) > _NOTES:
    notes[_NOTES:] = ['and more']
  return Card(fields, spec, tuple(notes))


def _newer(version: Any, spec: str) -> list[str]:
  try:
    number = float(version)
  except (TypeError, ValueError):
    return []
  if spec not in _NEWEST or not number > _NEWEST[spec]:
    return []
  return [f'spec_version {number:g}: newer than {_NEWEST[spec]}']


def _fields(data: '_Reader') -> tuple[card_fields.Fields, list[str]]:
  """Returns canonical fields, not yet checked, and notes."""
  values: dict[str, Any] = {
    ours: data.string(theirs) for theirs, ours in _TEXTS.items()
  }
  values |= {ours: data.strings(theirs) for theirs, ours in _LISTS.items()}
  notes = data.list_unused(_USED)
  extensions = data.object('extensions', f'{data.path}extensions')
  if extensions is not None:
    values['extensions'], dropped = card_extensions.filter_plain(
      extensions.value, f'{data.path}extensions'
    )
    notes += dropped
  book = data.object('character_book', f'{data.path}character_book')
  if book is not None:
    values['lore'], dropped = _lore(book)
    notes += dropped
  return card_fields.canonical(card_fields.Fields(**values)), notes


def _lore(book: '_Reader') -> tuple[tuple[card_fields.Lore, ...], list[str]]:
  entries = book.value.get('entries') or ()
  if not isinstance(entries, (list, tuple)):
    raise book.wrong('entries', entries, 'a list')
  if len(entries) > card_fields.LORE:
    raise CardError(
      'entries',
      f'{book.path}entries has {len(entries):,}: at most {card_fields.LORE}.',
    )
  notes = book.list_unused({'entries', 'name', 'description', 'extensions'})
  lore, seen = [], set()
  for index, value in enumerate(entries):
    entry = _Reader(value, f'{book.path}entries[{index}]')
    for note in entry.list_unused(_USED_OF_ENTRIES):
      # One note per field, not per entry.
      name = note.removeprefix(entry.path)
      if name not in seen:
        seen.add(name)
        notes.append(entry.path + name)
    one, dropped = _entry(entry)
    notes += dropped
    if one is not None:
      lore.append(one)
  return tuple(lore), notes


def _entry(
  entry: '_Reader',
) -> tuple[card_fields.Lore | None, list[str]]:
  """Returns an entry without keys that are patterns, and notes.

  The entry is None if all its keys were patterns and it is not constant.
  """
  notes = []
  order = entry.number('insertion_order')
  is_constant = entry.boolean('constant', False)
  use = entry.value.get('use_regex')
  found = {}
  for kind in 'keys', 'secondary_keys':
    keys = kept = entry.strings(kind)
    if use is not False:
      kept = [key for key in keys if not _is_pattern(key.strip(), use is True)]
    if len(kept) < len(keys):
      notes.append(f'{entry.path}{kind}: patterns (regex) are not run, dropped')
    found[kind] = tuple(kept)
    if kind == 'keys' and keys and not kept and not is_constant:
      return None, notes
  if not entry.boolean('selective', False):
    found['secondary_keys'] = ()
  content = entry.string('content')
  # An entry without a name is named by the beginning of its comment.
  name = card_fields.line(entry.string('name') or entry.string('comment'))
  if content.lstrip().startswith('@@'):
    notes.append(f'{entry.path}content: decorators (@@) are read as text')
  lore = card_fields.Lore(
    content=content,
    is_constant=is_constant,
    is_enabled=entry.boolean('enabled', True),
    order=order,
    name=name[: card_fields.NAME].rstrip(),
    **found,
  )
  return lore, notes


def _is_pattern(key: str, all_are: bool) -> bool:
  """Returns whether a key is a regular expression rather than words.

  `all_are`, the card's `use_regex`, does not decide it alone: the most used
  program sets it on every entry that it exports, and reads only `/…/` as a
  pattern.
  """
  if all_are and _SIGNS.search(key):
    return True
  return key.startswith('/') and bool(_PATTERN.fullmatch(key))


def _entry_of(index: int, lore: card_fields.Lore) -> dict[str, Any]:
  return {
    'id': index,
    'keys': list(lore.keys),
    'secondary_keys': list(lore.secondary_keys),
    'selective': bool(lore.secondary_keys),
    'content': lore.content,
    'constant': lore.is_constant,
    'enabled': lore.is_enabled,
    'insertion_order': lore.order,
    'name': lore.name,
    'comment': lore.name,
    'use_regex': False,
    'extensions': {},
  }


@dataclasses.dataclass
class _Reader:
  """Reads a JSON object of a card; null counts as absent.

  Its methods raise a `CardError` of fault 'type' for a value of another type.
  """

  value: Mapping[str, Any]
  path: str

  def __post_init__(self):
    if not isinstance(self.value, Mapping):
      raise CardError(
        'type',
        f'{self.path}={card_fields.abbreviate(self.value)}: must be an object.',
      )
    self.path += '.'

  def wrong(self, name: str, value: Any, wanted: str) -> CardError:
    shown = card_fields.abbreviate(value)
    return CardError('type', f'{self.path}{name}={shown}: must be {wanted}.')

  def object(self, name: str, path: str) -> '_Reader | None':
    value = self.value.get(name)
    return None if value is None else _Reader(value, path)

  def string(self, name: str) -> str:
    value = self.value.get(name)
    if value is None:
      return ''
    if not isinstance(value, str):
      raise self.wrong(name, value, 'a string')
    return value

  def strings(self, name: str) -> tuple[str, ...]:
    values = self.value.get(name)
    if values is None:
      return ()
    if not isinstance(values, list):
      raise self.wrong(name, values, 'a list of strings')
    for index, value in enumerate(values):
      if not isinstance(value, str):
        raise self.wrong(f'{name}[{index}]', value, 'a string')
    return tuple(values)

  def boolean(self, name: str, default: bool) -> bool:
    value = self.value.get(name)
    if value is None:
      return default
    if not isinstance(value, bool):
      raise self.wrong(name, value, 'true or false')
    return value

  def number(self, name: str) -> int:
    value = self.value.get(name)
    if value is None:
      return 0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise self.wrong(name, value, 'a number')
    return math.floor(value)

  def list_unused(self, used: set[str]) -> list[str]:
    """Returns notes on fields that have a value and are not used."""
    names = (
      name
      for name, value in self.value.items()
      if name not in used and value not in (None, '', [], {}, False, 0)
    )
    return [
      f'{self.path}{ascii(name)[1:-1][:60]}: not used, dropped'
      for name in itertools.islice(names, _NOTES + 1)
    ]

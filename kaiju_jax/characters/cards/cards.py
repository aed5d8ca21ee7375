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
markup or code. What this project does not use is kept for an export, without
executable parts; what is dropped or read otherwise is in the notes. No field
that no prompt reads refuses a card (`card_values.py`).
"""

import base64
import binascii
from collections.abc import Mapping
import dataclasses
import json
from typing import Any
from typing import NamedTuple

from kaiju_jax.characters.cards import card_book
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_json
from kaiju_jax.characters.cards import card_png
from kaiju_jax.characters.cards import card_values
from kaiju_jax.characters.cards import lore_rules

CardError = card_json.CardError

_SPECS = {'chara_card_v2': 'v2', 'chara_card_v3': 'v3'}
_NEWEST = {'v2': 2.0, 'v3': 3.0}
_NOTES = 200
_NO_PICTURE = 'picture: not kept; an exported card shows a drawn pattern'
# The names of our text fields by the cards' names. A prompt reads the first …
_READ = {
  'name': 'name',
  'description': 'description',
  'personality': 'personality',
  'scenario': 'scenario',
  'first_mes': 'greeting',
  'mes_example': 'examples',
  'system_prompt': 'system_prompt',
  'post_history_instructions': 'post_history',
  'nickname': 'nickname',
}
# … and none reads these.
_UNREAD = {
  'creator_notes': 'notes',
  'creator': 'creator',
  'character_version': 'version_name',
}
_TEXTS = _READ | _UNREAD
_DATA = {'group_only_greetings': []}  # What version 3 has by default.
_LISTS = {'alternate_greetings': 'alternate_greetings', 'tags': 'tags'}
_OWN = {*_TEXTS, *_LISTS, 'extensions', 'character_book'}
_LINES = {'creator': card_fields.NAME, 'character_version': card_fields.NAME}
_KINDS = (
  (b'\xff\xd8\xff', 'a JPEG'),
  (b'GIF8', 'a GIF'),
  (b'RIFF', 'a WebP'),
  (b'PK\x03\x04', 'a zip archive, such as .charx'),
)


class Card(NamedTuple):
  """A card that was read."""

  fields: card_fields.Fields  # Its texts.
  spec: str  # 'v1', 'v2' or 'v3'.
  # A line per part of the card that is dropped or read otherwise.
  notes: tuple[str, ...]


def read(data: bytes) -> Card:
  """Reads a card; a PNG's picture is not kept.

  Args:
    data: JSON of at most 1 MiB, or a PNG of at most 8 MiB.

  Raises:
    CardError: names the fault.
  """
  if data.startswith(card_png.SIGNATURE[:4]):
    card = _of_png(data)
    if card_png.embed(data, {}) == card_png.draw(card.fields.name):
      return card  # Our own pattern, which the next export draws again.
    return card._replace(notes=(_NO_PICTURE, *card.notes))
  for opening, kind in _KINDS:
    if data.startswith(opening):
      raise CardError('signature', f'{kind}: a card is a PNG or JSON.')
  return _card(*card_json.read(data))


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
  data = dict(_DATA) if spec == 'v3' else {}
  data |= _part(fields, 'data')
  data |= {theirs: getattr(fields, ours) for theirs, ours in _TEXTS.items()}
  data |= {
    theirs: list(getattr(fields, ours)) for theirs, ours in _LISTS.items()
  }
  data['extensions'] = fields.extensions
  book = _part(fields, 'book')
  if fields.lore or book:
    data['character_book'] = card_book.write(fields.lore, book)
  card = _part(fields, 'card') | {
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


def _of_png(data: bytes) -> Card:
  """Reads the newest card of a PNG that can be read."""
  texts = card_png.texts(data, ('ccv3', 'chara'))
  if not texts:
    raise CardError(
      'missing', "the PNG has no card: no text 'ccv3' or 'chara'."
    )
  notes = []
  for name in sorted(texts):  # The newer name comes first, too.
    try:
      card = _card(*card_json.read(_decode(texts[name])))
      return card._replace(notes=(*notes, *card.notes))
    except CardError as error:
      if len(texts) == len(notes) + 1:
        raise
      notes.append(f'the text {name!r}: {error} Another one is read.')
  raise AssertionError('a text is read or refused.')


def _decode(text: bytes) -> bytes:
  """Returns the JSON text in a PNG's text."""
  if text.lstrip()[:1] == b'{':
    return text  # Some programs leave out the base64.
  try:
    return base64.b64decode(b''.join(text.split()), validate=True)
  except binascii.Error as error:
    raise CardError(
      'base64', f"the PNG's card is not base64: {error}."
    ) from None


def _card(value: Any, notes: list[str]) -> Card:
  """Returns the card of a JSON value; notes are those on the value."""
  if not isinstance(value, Mapping):
    shown = card_fields.abbreviate(value)
    raise CardError('type', f'the card={shown}: must be an object.')
  outer = card_values.Object(value, '', notes)
  named = outer.value.get('spec')
  data = outer.object('data')
  if data is None:
    spec, data = 'v1', outer
    if isinstance(named, str):
      outer.note('spec', 'there is no data, read as v1')
  else:
    spec = _SPECS.get(named if isinstance(named, str) else '')
    if spec is None:
      spec = 'v3' if _version(outer) >= 3 else 'v2'
      if named is not None:
        outer.drop('spec', named, f'one of {", ".join(_SPECS)}')
    data.value = _fill(data.value, outer.value)
  if not data.value.get('name'):
    raise CardError(
      'nameless',
      f"{data.path}name: missing or empty. A card has a character's name, as in"
      ' {"name": "Ada", "description": …} or {"spec": "chara_card_v2", "data":'
      ' {"name": "Ada", …}}.',
    )
  _note_newer(outer, spec)
  fields = _fields(data, outer)
  within = lore_rules.depth_prompt(fields)
  for note in lore_rules.read(within)[1] if within else ():
    data.note(f'extensions.{lore_rules.DEPTH_PROMPT}', note)
  try:
    card_fields.check(fields)
  except card_fields.FieldError as error:
    raise CardError(error.fault, str(error)) from None
  if len(notes) > _NOTES:
    notes[_NOTES:] = ['and more']
  return Card(fields, spec, tuple(notes))


def _fill(data: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
  """Returns data with the fields that only the object around it has."""
  filled = {
    name: outer[name]
    for name in _OWN
    if data.get(name) is None and outer.get(name) is not None
  }
  if not data.get('name') and outer.get('name'):
    filled['name'] = outer['name']
  return {**data, **filled}


def _note_newer(card: card_values.Object, spec: str) -> None:
  version = _version(card)
  if spec in _NEWEST and version > _NEWEST[spec]:
    card.notes.append(f'spec_version {version:g}: newer than {_NEWEST[spec]}')


def _version(card: card_values.Object) -> float:
  return card_json.number(card.value.get('spec_version')) or 0.0


def _fields(
  data: card_values.Object, outer: card_values.Object
) -> card_fields.Fields:
  """Returns canonical fields, not yet checked; `outer` may be `data` itself."""
  values: dict[str, Any] = {}
  for theirs, ours in _TEXTS.items():
    most = _LINES.get(theirs, card_fields.TEXT)
    values[ours] = data.text(theirs, most, is_read=theirs in _READ)
  greetings = data.texts('alternate_greetings', splits=False)
  values['alternate_greetings'] = data.first(
    'alternate_greetings', greetings, card_fields.GREETINGS
  )
  values['tags'] = data.lines('tags')
  extensions = data.object('extensions')
  if extensions is not None:
    values['extensions'] = _fit(extensions, extensions.rest(()))
  other = {}
  book = _find_book(data)
  if book is not None:
    values['lore'], other['book'] = card_book.read(book)
    other['book'] = _fit(book, other['book'])
  around = {'spec', 'spec_version', 'data'}
  own = _OWN | (around if data is outer else set())
  other['data'] = _fit(data, data.rest(own, _DATA))
  if data is not outer:
    # What a card of version 2 repeats for programs that read version 1.
    other['card'] = _fit(outer, outer.rest(_OWN | around))
  values['other'] = {name: one for name, one in other.items() if one}
  return _shrunk(card_fields.canonical(card_fields.Fields(**values)), data)


def _find_book(data: card_values.Object) -> card_values.Object | None:
  book = data.value.get('character_book')
  if book and isinstance(book, list):
    data.note('character_book', 'a list, read as its entries')
    data.value = {**data.value, 'character_book': {'entries': book}}
  return data.object('character_book')


def _fit(part: card_values.Object, rest: dict[str, Any]) -> dict[str, Any]:
  """Returns a part's fields that nothing reads, within the limits."""
  value, dropped = card_values.fit(rest, part.path)
  part.notes += dropped
  return value


def _shrunk(
  fields: card_fields.Fields, data: card_values.Object
) -> card_fields.Fields:
  """Returns fields of at most `card_fields.ALL` bytes, if that is possible."""
  kept = {
    name: one
    for name, one in fields.extensions.items()
    if name == lore_rules.DEPTH_PROMPT
  }
  depth = {
    name: {'scan_depth': part['scan_depth']}
    for name, part in fields.other.items()
    if name == 'book' and 'scan_depth' in part
  }
  steps = (
    ('character_book', {'lore': tuple(map(card_book.shrink, fields.lore))}),
    ('other fields', {'other': depth}),
    ('extensions', {'extensions': kept}),
  )
  for name, change in steps:
    if card_fields.count_bytes(fields) <= card_fields.ALL:
      break
    data.note(
      name,
      'what is not read here is dropped: all fields together have at most'
      f' {card_fields.ALL:,} bytes',
    )
    fields = dataclasses.replace(fields, **change)
  return fields


def _part(fields: card_fields.Fields, name: str) -> dict[str, Any]:
  """Returns a part of `Fields.other`."""
  part = fields.other.get(name)
  return dict(part) if isinstance(part, Mapping) else {}

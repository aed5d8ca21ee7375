"""Defines a character's fields: plain texts of an author, with limits.

Cards and forms fill the same `Fields`. A character's prefix (`prompt.py`) is
made of them, and a store keeps them with each version. They are canonical: a
text has no control characters but line feeds and tabs, and a short field is one
line without outer spaces. So a character that is exported and imported again is
equal.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import json
import re
from typing import Any

from kaiju_jax.characters.cards import card_extensions
from kaiju_jax.data import chat

# The most …
NAME = 200  # … characters of a name, a tag or a lore's key.
TEXT = 65_536  # … characters of any other text.
GREETINGS = 64  # … alternate greetings.
LORE = 500  # … lore entries.
KEYS = 64  # … keys of one entry, and tags of a character.
EXTENSIONS = 65_536  # … characters of `extensions`, or a part of `other`.
ALL = 524_288  # … bytes of all fields as JSON: half of a card's.
OTHER = 'data', 'book', 'card'  # The parts of `other`.
DEPTH = 32  # … objects and lists within each other.

_SURROGATE = re.compile('[\ud800-\udfff]')
_BREAK = re.compile('[\x00-\x1f\x7f-\x9f\u2028\u2029]+')
_SHOWN = 60  # Characters of a value in an error.


class FieldError(ValueError):
  """A field that is not valid.

  Attributes:
    field: the field's name.
    fault: 'type', 'limit', 'surrogate', 'control', 'nameless', 'unknown' or
      'executes'.
  """

  def __init__(self, fault: str, field: str, message: str):
    super().__init__(message)
    self.field = field
    self.fault = fault


@dataclasses.dataclass(frozen=True)
class Lore:
  """A lore entry: a text that enters the prompt when a message has its key."""

  # Words or phrases; a message that has one of them calls for the entry.
  keys: tuple[str, ...] = ()
  content: str = ''  # The text that enters the prompt.
  is_constant: bool = False  # Whether the prefix always has the text.
  # If there are any, a message must have one of these too.
  secondary_keys: tuple[str, ...] = ()
  is_enabled: bool = True  # Whether the entry is used at all.
  order: int = 0  # Entries of a lower order come first.
  name: str = ''  # A title for the author; it never reaches a prompt.
  # A mapping has no hash.
  # The fields of a card's entry that have no field here, such as `extensions`,
  # without executable parts. Some of them say when the text is told
  # (`lore_rules.py`); an export writes them as they are.
  other: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Fields:
  """A character as its author writes it; only the name may not be empty."""

  name: str  # The character's name.
  nickname: str = ''  # Replaces `{{char}}`; '' for the name.
  description: str = ''  # The character's description.
  personality: str = ''  # The character's personality, in a few words.
  scenario: str = ''  # The place of the conversation.
  greeting: str = ''  # The character's first message.
  alternate_greetings: tuple[str, ...] = ()  # Other first messages.
  examples: str = ''  # Example conversations, each after `<START>`.
  system_prompt: str = ''  # Instructions to the model; '' for the server's own.
  # Instructions that other programs put behind the conversation; here they
  # stand at the end of the prefix.
  post_history: str = ''
  lore: tuple[Lore, ...] = ()  # Texts that enter a prompt by their keys.
  # For people; they never reach a prompt.
  creator: str = ''
  notes: str = ''
  tags: tuple[str, ...] = ()
  version_name: str = ''
  # Plain JSON of other programs, without executable parts
  # (`card_extensions.py`). Only a `depth_prompt` in it is read.
  extensions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Fields of a card that have no field here: plain JSON under 'data', 'book'
  # (of its lore) and 'card' (around 'data'), kept for an export alone, without
  # executable parts.
  other: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# The fields of one short line each.
_LINES = ('name', 'nickname', 'creator', 'version_name')
_TEXTS = (
  'description',
  'personality',
  'scenario',
  'greeting',
  'examples',
  'system_prompt',
  'post_history',
  'notes',
)


def display_name(fields: Fields) -> str:
  """Returns the name that replaces `{{char}}`: the nickname or the name."""
  return fields.nickname or fields.name


def check(fields: Fields) -> None:
  """Refuses invalid fields.

  Raises:
    FieldError: names the field, its value or size, and what would be right.
  """
  if not isinstance(fields, Fields):
    raise _wrong(fields, 'fields', 'Fields')
  for name in _LINES:
    _check_line(getattr(fields, name), name)
  if not fields.name:
    raise FieldError('nameless', 'name', "name='': a character needs a name.")
  for name in _TEXTS:
    _check_text(getattr(fields, name), name)
  _check_several(fields.alternate_greetings, 'alternate_greetings', GREETINGS)
  for index, greeting in enumerate(fields.alternate_greetings):
    _check_text(greeting, f'alternate_greetings[{index}]')
  _check_lines(fields.tags, 'tags')
  _check_several(fields.lore, 'lore', LORE)
  # Before the whole is written as JSON, in one long call.
  if all(isinstance(one, Lore) for one in fields.lore):
    _check_size(sum(len(f'{one.content}') for one in fields.lore))
  for index, lore in enumerate(fields.lore):
    _check_lore(lore, f'lore[{index}]')
  _check_extensions(fields.extensions, 'extensions')
  if not isinstance(fields.other, dict):
    raise _wrong(fields.other, 'other', 'an object')
  for name, part in fields.other.items():
    if name not in OTHER:
      raise _wrong(name, 'other', f'an object with {", ".join(OTHER)} alone')
    _check_extensions(part, f'other.{name}')
  _check_size(count_bytes(fields))


def _check_size(size: int) -> None:
  if size > ALL:
    raise FieldError(
      'limit', 'fields', f'fields are {size:,} bytes of JSON: at most {ALL:,}.'
    )


def count_bytes(fields: Fields) -> int:
  """Returns the size of checked fields as JSON, in bytes."""
  return len(json.dumps(dump(fields), ensure_ascii=False).encode())


def dump(fields: Fields) -> dict[str, Any]:
  """Returns fields as plain data for JSON and `parse`.

  The extensions are not copied. An empty `other` is left out, as older servers
  know none.
  """
  data = _dump(fields, ('alternate_greetings', 'tags'))
  data['lore'] = [_dump(one, ('keys', 'secondary_keys')) for one in fields.lore]
  return data


def _dump(value: Fields | Lore, lists: tuple[str, ...]) -> dict[str, Any]:
  data = vars(value) | {name: list(getattr(value, name)) for name in lists}
  if not data['other']:
    del data['other']
  return data


def parse(data: Any) -> Fields:
  """Returns the fields that plain data holds; absent fields are empty.

  It removes control characters, and outer spaces of short fields.

  Raises:
    FieldError: names a field that is unknown or wrong.
  """
  data = _check_known(data, Fields, 'fields')
  if 'name' not in data:
    raise FieldError('nameless', 'name', 'name: a character needs a name.')
  for name in 'alternate_greetings', 'tags', 'lore':
    data[name] = _tuple(data.get(name, ()), name)
  lore = []
  for index, one in enumerate(data['lore']):
    one = _check_known(one, Lore, f'lore[{index}]')
    for name in 'keys', 'secondary_keys':
      one[name] = _tuple(one.get(name, ()), f'lore[{index}].{name}')
    lore.append(Lore(**one))
  fields = canonical(Fields(**{**data, 'lore': tuple(lore)}))
  check(fields)
  return fields


def canonical(fields: Fields) -> Fields:
  """Returns fields without control characters and outer spaces of lines.

  Values of a wrong type, and texts with surrogates, stay for `check` to refuse.
  """
  changed = {name: line(getattr(fields, name)) for name in _LINES}
  changed |= {name: _text(getattr(fields, name)) for name in _TEXTS}
  changed['alternate_greetings'] = _each(_text, fields.alternate_greetings)
  changed['tags'] = lines(fields.tags)
  changed['lore'] = _each(_canonical_lore, fields.lore)
  return dataclasses.replace(fields, **changed)


def line(value: Any) -> Any:
  """Returns a string as one line without outer spaces; keeps other values."""
  if not isinstance(value, str):
    return value
  if not value.isprintable():  # Line breaks are not printable.
    value = _BREAK.sub(' ', value)
  return value.strip()


def lines(values: Any) -> Any:
  """Returns values as lines, without empty ones."""
  if not isinstance(values, tuple) or all(map(_is_plain_line, values)):
    return values
  values = _each(line, values)
  return tuple(value for value in values if value != '')


def abbreviate(value: Any) -> str:
  """Returns the beginning of a value in ASCII, for an error's message."""
  # A card's text may be large, and errors end up in logs.
  if isinstance(value, str):
    text = ascii(value[:_SHOWN])
    is_whole = len(value) <= _SHOWN and len(text) <= _SHOWN + 2
    return text if is_whole else f'{text[:_SHOWN]}…'
  if value is None or isinstance(value, (bool, float)):
    return ascii(value)
  if isinstance(value, int) and value.bit_length() <= 64:
    return ascii(value)
  return f'({type(value).__name__})'


def depth(value: Any) -> int:
  """Returns the depth of nested lists and objects, at most `DEPTH` + 1."""
  deep, level = 0, [value]
  while level and deep <= DEPTH:
    inner = []
    for one in level:
      if isinstance(one, Mapping):
        inner.append(one.values())
      elif isinstance(one, (list, tuple)):
        inner.append(one)
    level = [item for values in inner for item in values]
    deep += bool(inner)
  return deep


def _canonical_lore(lore: Any) -> Any:
  if not isinstance(lore, Lore):
    return lore
  return dataclasses.replace(
    lore,
    content=_text(lore.content),
    name=line(lore.name),
    keys=lines(lore.keys),
    secondary_keys=lines(lore.secondary_keys),
  )


def _each(change, values: Any) -> Any:
  if not isinstance(values, tuple):
    return values
  return tuple(map(change, values))


def _text(value: Any) -> Any:
  if not isinstance(value, str):
    return value
  if not value.isascii() and _SURROGATE.search(value):
    return value
  return chat.strip(value)


def _wrong(value: Any, name: str, wanted: str) -> FieldError:
  return FieldError(
    'type', name, f'{name}={abbreviate(value)}: must be {wanted}.'
  )


def _check_line(value: Any, name: str) -> None:
  _check_string(value, name, NAME)
  if line(value) != value:
    raise FieldError(
      'control',
      name,
      f'{name}={abbreviate(value)}: must be one line without spaces around it.',
    )


def _check_lines(values: Any, name: str) -> None:
  """Refuses everything but a tuple of short lines that are not empty."""
  _check_several(values, name, KEYS)
  if all(map(_is_plain_line, values)):
    return  # The usual case, without a name per value.
  for index, value in enumerate(values):
    _check_line(value, f'{name}[{index}]')
    if not value:
      raise FieldError(
        'limit', f'{name}[{index}]', f"{name}[{index}]='': must not be empty."
      )


def _is_plain_line(value: Any) -> bool:
  if not isinstance(value, str) or not 1 <= len(value) <= NAME:
    return False
  # A printable string has no control characters and no surrogates.
  return value.isprintable() and value == value.strip()


def _check_text(value: Any, name: str) -> None:
  _check_string(value, name, TEXT)
  if chat.strip(value) != value:
    raise FieldError(
      'control',
      name,
      f'{name}={abbreviate(value)}: must have no control characters but line'
      ' feeds and tabs.',
    )


def _check_string(value: Any, name: str, most: int) -> None:
  if not isinstance(value, str):
    raise _wrong(value, name, 'a string')
  if len(value) > most:
    raise FieldError(
      'limit', name, f'{name} has {len(value):,} characters: at most {most:,}.'
    )
  found = None if value.isascii() else _SURROGATE.search(value)
  if found:
    raise FieldError(
      'surrogate',
      name,
      f'{name} holds the surrogate {found[0]!a} at character {found.start()}:'
      ' must be Unicode characters.',
    )


def _check_several(values: Any, name: str, most: int) -> None:
  if not isinstance(values, tuple):
    raise _wrong(values, name, 'a tuple')
  if len(values) > most:
    raise FieldError(
      'limit', name, f'{name} has {len(values):,} entries: at most {most:,}.'
    )


def _check_lore(lore: Any, name: str) -> None:
  if not isinstance(lore, Lore):
    raise _wrong(lore, name, 'Lore')
  _check_text(lore.content, f'{name}.content')
  _check_line(lore.name, f'{name}.name')
  for field in 'keys', 'secondary_keys':
    _check_lines(getattr(lore, field), f'{name}.{field}')
  for field in 'is_constant', 'is_enabled':
    value = getattr(lore, field)
    if not isinstance(value, bool):
      raise _wrong(value, f'{name}.{field}', 'a boolean')
  if isinstance(lore.order, bool) or not isinstance(lore.order, int):
    raise _wrong(lore.order, f'{name}.order', 'an integer')
  if abs(lore.order) >= 2**31:
    raise FieldError(
      'limit',
      f'{name}.order',
      f'{name}.order={abbreviate(lore.order)}: must be within 32 bits.',
    )
  if lore.other != {}:
    _check_extensions(lore.other, f'{name}.other')


def _check_extensions(value: Any, name: str) -> None:
  if not isinstance(value, dict):
    raise _wrong(value, name, 'an object')
  if depth(value) > DEPTH:
    raise FieldError('limit', name, f'{name}: deeper than {DEPTH} levels.')
  try:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    is_plain = json.loads(text) == value
  except (TypeError, ValueError):
    is_plain = False
  if not is_plain:
    raise FieldError('type', name, f'{name}: must be plain JSON.')
  _check_string(text, name, EXTENSIONS)
  notes = card_extensions.filter_plain(value, name)[1]
  if notes:
    raise FieldError('executes', name, f'{notes[0]}.')


def _check_known(data: Any, kind: type, name: str) -> dict[str, Any]:
  if not isinstance(data, Mapping):
    raise _wrong(data, name, 'an object')
  names = [field.name for field in dataclasses.fields(kind)]
  for key in data:
    if key not in names:
      close = difflib.get_close_matches(str(key)[:NAME], names, n=1)
      hint = f' Did you mean {close[0]}?' if close else ''
      raise FieldError(
        'unknown', name, f'{name} holds {abbreviate(key)}: no such field.{hint}'
      )
  return dict(data)


def _tuple(values: Any, name: str) -> tuple:
  if not isinstance(values, (list, tuple)):
    raise _wrong(values, name, 'a list')
  return tuple(values)

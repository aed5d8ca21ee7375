"""The rules that all stores share: limits, access of owners, and ids.

Functions that check a value return it, or raise TypeError, ValueError or
`OverLimit`, which name the field, its size and the limit.

The limits are our guess: far above what people need, and low enough that no
single owner fills a disk.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import math
import re
import secrets
from typing import Any
import unicodedata

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters

_ID = re.compile(r'[A-Za-z0-9_-]{1,64}')
_SLUG = 32  # Characters of a name in a character's id.


@dataclasses.dataclass(frozen=True)
class Limits:
  """The limits of a store."""

  owner: int = 256  # Bytes of an owner's name.
  # Tokens of a version's prefix; `prompt.py` refuses earlier.
  prefix: int = 65_536
  title: int = 200  # Characters of a session's title.
  text: int = 65_536  # Bytes of a message's text, as UTF-8.
  tokens: int = 65_536  # Tokens of a message.
  messages: int = 10_000  # In one session.
  size: int = 16 * 2**20  # Bytes of one session's texts and tokens.
  characters: int = 1_000  # Of one owner.
  versions: int = 10_000  # Ever published of one character.
  sessions: int = 10_000  # Of one owner.
  page: int = 1_000  # Entries of one listing.


def digest(tokens: np.ndarray, tokenizer: str) -> str:
  """Returns the digest of a prefix's tokens and their tokenizer, in hex."""
  name = tokenizer.encode()
  state = hashlib.sha256(len(name).to_bytes(8, 'little'))
  state.update(name)
  state.update(np.ascontiguousarray(tokens, '<i4').tobytes())
  return state.hexdigest()


def character_id(name: str) -> str:
  """Returns a new character's id, made of its name and random characters.

  The name makes lists of models readable; the random part makes the id unique.
  If the name changes later, the id stays.
  """
  plain = unicodedata.normalize('NFKD', name).encode('ascii', 'ignore').decode()
  slug = re.sub('[^a-z0-9]+', '-', plain.lower()).strip('-')[:_SLUG].strip('-')
  return f'{slug or "character"}-{secrets.token_hex(6)}'


def session_id() -> str:
  """Returns a new id that nobody can guess: 144 random bits."""
  return secrets.token_urlsafe(18)


def is_id(value: object) -> bool:
  """Returns whether a value has the form of an id."""
  return isinstance(value, str) and _ID.fullmatch(value) is not None


def greetings(fields: card_fields.Fields) -> tuple[str, ...]:
  """Returns a character's greetings as written, without empty ones."""
  both = (fields.greeting, *fields.alternate_greetings)
  return tuple(text for text in both if text)


def size(text: str, tokens: Sequence[int] | None) -> int:
  """Returns the bytes of a message that count against its session."""
  return len(text.encode()) + 4 * len(tokens or ())


def text(value: str, name: str, most: int) -> str:
  """Returns a text of at most `most` bytes."""
  if not isinstance(value, str):
    raise TypeError(
      f'{name}={card_fields.abbreviate(value)}: must be a string.'
    )
  try:
    length = len(value.encode())
  except UnicodeEncodeError as error:
    raise ValueError(
      f'{name} holds the surrogate {value[error.start]!a} at character'
      f' {error.start}: must be Unicode characters.'
    ) from None
  if length > most:
    raise characters.OverLimit(
      f'{name} has {length:,} bytes: at most {most:,}.'
    )
  return value


def owner(value: str, limits: Limits, may_be_built_in: bool = False) -> str:
  """Returns an owner's name."""
  text(value, 'owner', limits.owner)
  if not value and not may_be_built_in:
    raise ValueError(
      "owner='': stands for what is built in; must name somebody."
    )
  return value


def tokens(values: Any, name: str, most: int) -> np.ndarray:
  """Returns tokens as int32 [n], read-only."""
  found = np.asarray(values)
  if found.ndim != 1:
    raise ValueError(f'{name} has {found.ndim} dimensions: must have one.')
  if len(found) > most:
    raise characters.OverLimit(
      f'{name} has {len(found):,} tokens: at most {most:,}.'
    )
  if len(found) and found.dtype.kind not in 'iu':
    raise TypeError(f'{name}: must be integers, not {found.dtype}.')
  if len(found) and not 0 <= found.min() <= found.max() < 2**31:
    raise ValueError(f'{name}: each must be within 0 and 2³¹ − 1.')
  # A copy: the caller's array may change.
  found = np.frombuffer(found.astype('<i4').tobytes(), '<i4')
  return found


def integer(value: int, name: str, least: int = 0) -> int:
  """Returns a whole number of at least `least` that every store can hold."""
  if isinstance(value, bool) or not isinstance(value, int):
    raise TypeError(
      f'{name}={card_fields.abbreviate(value)}: must be an integer.'
    )
  if not least <= value < 2**53:
    raise ValueError(f'{name}={value}: must be within {least} and 2⁵³ − 1.')
  return value


def parse_cursor(value: str) -> tuple[float, str] | None:
  """Returns the (time, id) of a cursor; None for '', the beginning."""
  if value == '':
    return None
  when, _, one = value.partition(':') if isinstance(value, str) else ('',) * 3
  try:
    seconds = float(when)
  except ValueError:
    seconds = math.nan
  if not math.isfinite(seconds) or not is_id(one):
    raise ValueError(
      f'after={card_fields.abbreviate(value)}: must be the cursor of a listing.'
    )
  return seconds, one


def refuse_no_id(value: object, kind: str, is_named: bool = False) -> None:
  """Raises an error if a value does not have the form of an id.

  `Missing` for an id that is looked up; ValueError for one that the caller
  chose for something new (`is_named`).
  """
  if is_id(value):
    return
  shown = card_fields.abbreviate(value)
  if is_named:
    raise ValueError(
      f'{kind}={shown}: must be 1 to 64 of A–Z, a–z, 0–9, _ and -.'
    )
  raise characters.Missing(f'{kind} {shown}: no such {kind}.')


def is_visible(one: characters.Character, viewer: str) -> bool:
  """Returns whether `viewer` may talk to a character."""
  is_theirs = one.owner in (viewer, characters.BUILT_IN)
  return one.live > 0 and (one.is_public or is_theirs)


def visible(
  found: characters.Character | None, viewer: str, id: str
) -> characters.Character:
  """Returns a character that `viewer` may talk to; `Missing` for others."""
  if found is None or not is_visible(found, viewer):
    raise no_character(id)
  return found


def no_character(id: str) -> characters.Missing:
  """Returns the error for a character that the viewer cannot see."""
  return characters.Missing(
    f'character {card_fields.abbreviate(id)}: no such character.'
  )


def check_owner(
  found: characters.Character | None, asking: str, id: str
) -> characters.Character:
  """Returns a character that the owner `asking` may change.

  `Missing` for one that `asking` cannot see, `NotOwner` for one it can.
  """
  found = visible(found, asking, id)
  if found.owner != asking:
    raise characters.NotOwner(f'character {id}: only its owner may change it.')
  return found


def session(
  found: characters.Session | None, asking: str, id: str
) -> characters.Session:
  """Returns a session of an owner.

  Raises:
    Missing: there is none, or it is another owner's.
  """
  if found is None or found.owner != asking:
    raise characters.Missing(
      f'session {card_fields.abbreviate(id)}: no such session.'
    )
  return found


def json_of(fields: card_fields.Fields) -> str:
  """Returns fields as JSON."""
  data = card_fields.dump(fields)
  return json.dumps(data, ensure_ascii=False, separators=(',', ':'))


def fields_of(text: str | bytes) -> card_fields.Fields:
  """Returns the fields that `json_of` encoded as `text`.

  It does not check them again, so that limits that are lowered after
  publication make no version unreadable.
  """
  data: dict[str, Any] = json.loads(text)
  lore = tuple(
    card_fields.Lore(**{name: _plain(value) for name, value in one.items()})
    for one in data.pop('lore')
  )
  extensions = data.pop('extensions')
  plain = {name: _plain(value) for name, value in data.items()}
  return card_fields.Fields(**plain, lore=lore, extensions=extensions)


def _plain(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value

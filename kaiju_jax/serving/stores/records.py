"""What a store reads and writes within one transaction.

What publishing, pinning and appending are is written once (`publishing.py`,
`conversing.py`), on these few reads and writes; each store brings its own
(`sqlite_store.py`, `redis_store.py`). An operation is a function of the records
of one moment. A store runs it in a transaction, and may run it again where
another one came between: so it touches nothing but the records it is given.
"""

import abc
from collections.abc import Callable
import json
import time
from typing import Any
from typing import Protocol
from typing import TypeVar

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters

T = TypeVar('T')

After = tuple[float, str] | None  # Of a listing: the last (time, id) seen.


class Reads(Protocol):
  """The records of one moment."""

  def character(self, character: str) -> characters.Character | None:
    """Returns a character, removed ones too; None for none."""

  def version(self, character: str, number: int) -> characters.Version | None:
    """Returns a version; None for none."""

  def pins(self, character: str, number: int) -> int:
    """Returns how many sessions are pinned to a version."""

  def session(self, session: str) -> characters.Session | None:
    """Returns a session; None for none."""

  def messages(
    self, session: characters.Session
  ) -> tuple[characters.Message, ...]:
    """Returns a session's messages."""

  def visible_characters(
    self, viewer: str, limit: int, after: After
  ) -> tuple[characters.Character, ...]:
    """Returns those that `viewer` may see, by (created, id)."""

  def sessions(
    self, owner: str, limit: int, after: After, is_oldest_first: bool
  ) -> tuple[characters.Session, ...]:
    """Returns an owner's, by (updated, id)."""

  def idle(self, before: float, limit: int) -> tuple[characters.Session, ...]:
    """Returns sessions of all owners updated before, by (updated, id)."""

  def count_characters(self, owner: str) -> int:
    """Returns how many an owner has, without removed ones."""

  def count_sessions(self, owner: str) -> int:
    """Returns how many an owner has."""


class Writes(Reads, Protocol):
  """The records of one moment, and what is to become of them."""

  def put_character(self, character: characters.Character) -> None:
    """Writes a character, new or changed."""

  def add_version(self, version: characters.Version) -> None:
    """Writes a version, whose number is new."""

  def drop_version(self, character: str, number: int) -> None:
    """Deletes a version."""

  def put_session(self, session: characters.Session) -> None:
    """Writes a session, new or changed."""

  def drop_session(self, session: characters.Session) -> None:
    """Deletes a session and its messages."""

  def add_message(
    self, session: characters.Session, message: characters.Message
  ) -> None:
    """Writes a message, whose id is new."""


class Keeper(abc.ABC):
  """Keeps records; what is done with them stands in subclasses.

  Args:
    limits: what the store takes, at most.
    clock: returns unix seconds.
  """

  def __init__(
    self,
    limits: rules.Limits | None = None,
    clock: Callable[[], float] = time.time,
  ):
    self._limits = limits or rules.Limits()
    self._clock = clock

  @abc.abstractmethod
  def _read(self, work: Callable[[Reads], T]) -> T:
    """Returns what `work` makes of the records of one moment."""

  @abc.abstractmethod
  def _write(self, work: Callable[[Writes], T]) -> T:
    """Returns what `work` returns, once all that it wrote is kept.

    Nothing is kept where it raises.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the store."""

  def _page(self, limit: int) -> int:
    most = self._limits.page
    if rules.integer(limit, 'limit', least=1) > most:
      raise characters.OverLimit(f'limit={limit}: must be at most {most:,}.')
    return limit


def json_of(fields: card_fields.Fields) -> str:
  """Returns fields as JSON."""
  data = card_fields.dump(fields)
  return json.dumps(data, ensure_ascii=False, separators=(',', ':'))


def fields_of(text: str | bytes) -> card_fields.Fields:
  """Returns the fields of which `json_of` made `text`.

  They were checked when they were published: limits that are lowered later make
  no version unreadable.
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

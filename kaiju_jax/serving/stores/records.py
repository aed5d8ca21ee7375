"""Records: the reads and writes that each store implements in a transaction.

`publishing.py` and `conversing.py` implement all operations on these few reads
and writes, once for both stores (`sqlite_store.py`, `redis_store.py`). An
operation is a function of a consistent state of the records. A store runs it in
a transaction, and again after a conflict with another transaction, so the
function must change nothing but these records.
"""

import abc
from collections.abc import Callable
import time
from typing import Protocol
from typing import TypeVar

from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters

T = TypeVar('T')

After = tuple[float, str] | None  # Of a listing: the last (time, id) seen.


class Reads(Protocol):
  """The reads of a transaction, which see one consistent state."""

  def character(self, character: str) -> characters.Character | None:
    """Returns a character, even if it was removed; None for none."""

  def version(self, character: str, number: int) -> characters.Version | None:
    """Returns a version; None for none."""

  def pins(self, character: str, number: int) -> int:
    """Returns how many sessions are pinned to a version."""

  def has_sessions(
    self, character: characters.Character, digest: str, of_owner: bool
  ) -> bool:
    """Returns whether sessions keep a version with a digest.

    Those of the character's owner, or of all others.
    """

  def session(self, session: str) -> characters.Session | None:
    """Returns a session; None for none."""

  def messages(
    self, session: characters.Session
  ) -> tuple[characters.Message, ...]:
    """Returns a session's messages."""

  def ratings(self, session: characters.Session) -> dict[int, str]:
    """Returns the ratings of a session by message."""

  def agreement(self, owner: str) -> bool | None:
    """Returns an owner's word on the export; None for none."""

  def agreements(self) -> dict[str, bool]:
    """Returns the words of all owners who have said one."""

  def visible_characters(
    self, viewer: str, limit: int, after: After
  ) -> tuple[characters.Character, ...]:
    """Returns the characters that `viewer` may see, by (created, id)."""

  def sessions(
    self, owner: str, limit: int, after: After, is_oldest_first: bool
  ) -> tuple[characters.Session, ...]:
    """Returns an owner's sessions, by (updated, id)."""

  def idle(self, before: float, limit: int) -> tuple[characters.Session, ...]:
    """Returns sessions of all owners last updated before, by (updated, id)."""

  def count_characters(self, owner: str) -> int:
    """Returns how many characters an owner has, without removed ones."""

  def count_sessions(self, owner: str) -> int:
    """Returns how many sessions an owner has."""


class Writes(Reads, Protocol):
  """The reads and writes of a transaction."""

  def put_character(self, character: characters.Character) -> None:
    """Writes a character, new or changed."""

  def add_version(self, version: characters.Version) -> None:
    """Writes a version, whose number is new."""

  def drop_version(self, character: str, number: int) -> None:
    """Deletes a version."""

  def put_session(self, session: characters.Session) -> None:
    """Writes a session, new or changed."""

  def drop_session(self, session: characters.Session) -> None:
    """Deletes a session, its messages and their ratings."""

  def add_message(
    self, session: characters.Session, message: characters.Message
  ) -> None:
    """Writes a message, whose id is new."""

  def put_rating(
    self, session: characters.Session, message: int, rating: str | None
  ) -> None:
    """Writes a message's rating, new or changed; None deletes it."""

  def put_agreement(self, owner: str, agrees: bool) -> None:
    """Writes an owner's word on the export, new or changed."""


class Keeper(abc.ABC):
  """A holder of records, which stores implement; subclasses add operations."""

  def __init__(
    self,
    limits: rules.Limits | None = None,
    clock: Callable[[], float] = time.time,
  ):
    self._limits = limits or rules.Limits()
    self._clock = clock

  @abc.abstractmethod
  def _read(self, work: Callable[[Reads], T]) -> T:
    """Runs `work` on a consistent state of the records; returns its result."""

  @abc.abstractmethod
  def _write(self, work: Callable[[Writes], T]) -> T:
    """Runs `work` in a transaction; returns its result once it is committed."""

  @abc.abstractmethod
  def check(self) -> None:
    """Raises `Unavailable` unless the store accepts writes; changes nothing."""

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the store; later calls raise `Unavailable`."""

  def _page(self, limit: int) -> int:
    most = self._limits.page
    if rules.integer(limit, 'limit', least=1) > most:
      raise characters.OverLimit(f'limit={limit}: must be at most {most:,}.')
    return limit

"""A memory of recent versions and sessions, for when Redis is unreachable.

Remembered versions and messages stay correct, because they never change. A
session is remembered as it was last read or written. The least recently used
entries are dropped first. Sizes are bounded in bytes (our guess: some hundred
conversations per megabyte).
"""

from collections.abc import Mapping
import dataclasses
import threading

from kaiju_jax.characters import lru
from kaiju_jax.serving.stores import characters

VERSIONS = 64 * 2**20  # Bytes of prefixes.
SESSIONS = 128 * 2**20  # Bytes of texts and tokens.
_LEAST = 4096  # Bytes that any entry counts as, for all that surrounds it.


@dataclasses.dataclass
class _Talk:
  session: characters.Session
  messages: list[characters.Message]
  ratings: dict[int, str] = dataclasses.field(default_factory=dict)


class Recent:
  """A memory of versions, and of sessions with their messages; thread-safe.

  `versions` and `sessions` are bytes of prefixes and of conversations.
  """

  def __init__(self, versions: int = VERSIONS, sessions: int = SESSIONS):
    self._guard = threading.Lock()
    self._versions = lru.LruCache(
      versions, lambda version: max(version.tokens.nbytes, _LEAST)
    )
    self._talks = lru.LruCache(
      sessions, lambda talk: max(talk.session.size, _LEAST)
    )

  def version(self, character: str, number: int) -> characters.Version | None:
    """Returns a version; None for one that is not remembered."""
    return self._versions.get((character, number))

  def session(self, session: str) -> characters.Session | None:
    """Returns a session as last seen; None where it is not remembered."""
    with self._guard:
      talk = self._talks.get(session)
      return talk and talk.session

  def messages(self, session: str) -> tuple[characters.Message, ...]:
    """Returns a session's first messages, as far as they are remembered."""
    with self._guard:
      talk = self._talks.get(session)
      return tuple(talk.messages) if talk else ()

  def ratings(self, session: str) -> dict[int, str]:
    """Returns a session's ratings, as far as they are remembered."""
    with self._guard:
      talk = self._talks.get(session)
      return dict(talk.ratings) if talk else {}

  def keep_version(self, version: characters.Version) -> None:
    """Remembers a version."""
    self._versions.put((version.character, version.number), version)

  def forget_version(self, character: str, number: int) -> None:
    """Forgets a version, which was deleted."""
    self._versions.drop((character, number))

  def keep_session(self, session: characters.Session) -> None:
    """Remembers a session, unless a later state of it is remembered."""
    with self._guard:
      talk = self._talks.get(session.id)
      if talk is None:
        talk = _Talk(session, [])
      elif (session.updated, session.count) >= (
        talk.session.updated,
        talk.session.count,
      ):
        talk.session = session
      self._talks.put(session.id, talk)

  def keep_messages(
    self, session: str, messages: tuple[characters.Message, ...]
  ) -> None:
    """Remembers messages of a remembered session, if they leave no gap."""
    with self._guard:
      talk = self._talks.get(session)
      if talk is None:
        return
      for message in messages:
        if message.id == len(talk.messages):
          talk.messages.append(message)

  def keep_ratings(
    self, session: str, ratings: Mapping[int, str | None]
  ) -> None:
    """Remembers ratings of a remembered session; None for a withdrawn one."""
    with self._guard:
      talk = self._talks.get(session)
      if talk is None:
        return
      talk.ratings |= ratings
      for message in [n for n, one in talk.ratings.items() if one is None]:
        del talk.ratings[message]

  def forget(self, session: str) -> None:
    """Forgets a session, which was removed."""
    with self._guard:
      self._talks.drop(session)

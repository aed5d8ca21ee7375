"""The affinity table: which replica served each session last.

    affinity = Affinity()
    index = affinity.index_of('replica 1')
    affinity.note(session, 'replica 1')
    policies.pick(digest, session, replicas, loads, affinity.table)

A session is a 60-bit number, part of an HMAC: the table discloses no owner and
no session. Uses are reported by this router, by others (`shared_table.py`) and
by replicas that list their caches (a lost table is rebuilt from these); the
latest use counts.

Only the router's event loop calls these functions.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import time
from typing import NamedTuple

import numpy as np

from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib

# Our guesses: 24 MiB, and a night between two turns.
SLOTS, SECONDS = 2**20, 24 * 3600.0
# The most new uses that are queued for other routers; beyond, all are sent.
_QUEUED = 2**16
_EMPTY = np.empty((0, 3), np.int64)


class Rows(NamedTuple):
  """Uses of sessions by one replica."""

  name: str
  sessions: np.ndarray  # int64 [n].
  # int64 [n], of their last use, in milliseconds of Unix time.
  times: np.ndarray


class Affinity:
  """The table, bounded in memory: a full place forgets its oldest session."""

  def __init__(
    self,
    slots: int = SLOTS,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.time,
  ):
    """Begins empty.

    Args:
      slots: sessions at most.
      seconds: after which a session that was not used is forgotten.
      clock: Unix seconds.
    """
    # int64 [slots, 3], for `policies.pick`: session, place of its replica,
    # milliseconds of Unix time. Never replace it: routers hold it.
    self.table: np.ndarray = policies.make_table(slots)
    # How often a session was served by another replica than before.
    self.moved: int = 0
    self._seconds = seconds
    self._clock = clock
    # Names by index; those of removed replicas, the oldest first.
    self._names: list[str] = []
    self._removed: list[str] = []
    # New uses to be sent to other routers; None before the first `take`.
    self._noted: dict[int, None] | None = None

  @property
  def names(self) -> list[str]:
    """The replicas that have places."""
    return [x for x in self._names if x not in self._removed]

  def __len__(self) -> int:
    """Returns how many sessions it holds."""
    return int((self.table[:, 0] >= 0).sum())

  def index_of(self, name: str) -> int:
    """Returns the index of a replica in the arrays of `pick`; gives it one.

    One that comes back has its index and its sessions again, until another
    replica has taken the index.
    """
    if name not in self._names:
      if self._removed:
        place = self._names.index(self._removed.pop(0))
        self.table[self.table[:, 1] == place] = -1
        self._names[place] = name
      else:
        self._names.append(name)
    if name in self._removed:
      self._removed.remove(name)
    return self._names.index(name)

  def remove(self, name: str) -> None:
    """Lets another replica take the index of one that is gone."""
    if name in self.names:
      self._removed.append(name)

  def find(self, session: int) -> str | None:
    """Returns the replica that served a session last; None for none."""
    place = int(policies.find(self.table, session))
    return self._names[place] if 0 <= place < len(self._names) else None

  def note(self, session: int, name: str) -> None:
    """Notes that a replica serves a session from now on."""
    place = self.index_of(name)
    before = policies.find(self.table, session)
    self.moved += 0 <= before != place
    policies.note(self.table, session, place, self.now())
    if self._noted is not None and len(self._noted) < _QUEUED:
      self._noted[session] = None

  def forget(self, session: int) -> None:
    """Drops a session, until a use of it is reported again."""
    policies.forget(self.table, session)
    if self._noted:
      self._noted.pop(session, None)

  def expire(self) -> None:
    """Drops the sessions that were not used for too long."""
    # Uses that were noted before the clock was set back are of now at latest.
    use_N = self.table[:, 2]
    np.minimum(use_N, self.now(), out=use_N)
    self.table[self.table[:, 2] < self.oldest] = -1

  def now(self) -> int:
    """Returns milliseconds of Unix time."""
    return int(1000 * self._clock())

  @property
  def oldest(self) -> int:
    """The time before which uses are forgotten, in milliseconds."""
    return self.now() - int(1000 * self._seconds)

  def take(self) -> list[Rows]:
    """Returns the uses noted since the last call, by replica.

    The first call returns all uses, as does a call after too many new ones.
    """
    noted, self._noted = self._noted, {}
    if noted is None or len(noted) >= _QUEUED:
      return self.list_all()
    session_N = np.fromiter(noted, np.int64, len(noted))
    at_N8 = _ways(session_N, len(self.table))
    is_it_N8 = self.table[at_N8, 0] == session_N[:, None]
    return self._split(self.table[at_N8[is_it_N8]])

  def list_all(self) -> list[Rows]:
    """Returns all uses, by replica."""
    return self._split(self.table[self.table[:, 0] >= 0])

  def merge(self, rows: Iterable[Rows]) -> int:
    """Merges uses that others report; the latest of each session counts.

    Returns:
      The number of sessions that were new, or had a later use.
    """
    parts = [_EMPTY]
    now = self.now()
    for one in rows:
      place = self.index_of(one.name)
      # A clock that is ahead must not keep its sessions for ever.
      times = np.minimum(one.times, now)
      places = np.full(len(times), place, np.int64)
      parts.append(np.stack([one.sessions, places, times], axis=1))
    reported = np.concatenate(parts)
    reported = reported[(reported[:, 2] >= self.oldest) & (reported[:, 0] >= 0)]
    return _merge(self.table, reported)

  def _split(self, rows: np.ndarray) -> list[Rows]:
    found = []
    for place, name in enumerate(self._names):
      own = rows[rows[:, 1] == place]
      if len(own):
        found.append(Rows(name, own[:, 0].copy(), own[:, 2].copy()))
    return found


def rows_of_cached(
  name: str, cached: Sequence[replica_lib.CachedText], now: float
) -> Rows:
  """Returns the uses of sessions that a replica's cached texts show.

  Args:
    name: the replica's.
    now: Unix seconds at which it listed them.
  """
  own = [one for one in cached if one.conversation]
  return Rows(
    name,
    np.array([replica_lib.number(one.conversation) for one in own], np.int64),
    np.array([int(1000 * (now - one.idle)) for one in own], np.int64),
  )


def _merge(table: np.ndarray, reported: np.ndarray) -> int:
  """Merges rows into a table, in the order that `policies.note` keeps."""
  ways = policies.WAYS
  set_N = _sets(reported[:, 0], len(table))
  touched = np.unique(set_N)
  at = (touched[:, None] * ways + np.arange(ways)).ravel()
  before = table[at]
  # What the table has stands first: of equal times, it stays.
  rows = np.concatenate([before, reported])
  sets = np.concatenate([np.repeat(touched, ways), set_N])
  is_reported = np.arange(len(rows)) >= len(before)
  kept = np.flatnonzero(rows[:, 0] >= 0)
  kept = kept[np.lexsort((-rows[kept, 2], rows[kept, 0]))]
  kept = kept[np.diff(rows[kept, 0], prepend=-1) != 0]
  kept = kept[np.lexsort((-rows[kept, 2], sets[kept]))]
  rank = np.arange(len(kept)) - np.searchsorted(sets[kept], sets[kept])
  kept, rank = kept[rank < ways], rank[rank < ways]
  after = np.full_like(before, -1)
  after[np.searchsorted(touched, sets[kept]) * ways + rank] = rows[kept]
  table[at] = after
  return int(is_reported[kept].sum())


def _sets(session_N: np.ndarray, slots: int) -> np.ndarray:
  """Returns the set of the table in which each session stands, int64 [N]."""
  return policies.mix_wide(session_N, 1) % (slots // policies.WAYS)


def _ways(session_N: np.ndarray, slots: int) -> np.ndarray:
  """Returns the places where sessions may stand, int64 [N, 8]."""
  first_N = _sets(session_N, slots) * policies.WAYS
  return first_N[:, None] + np.arange(policies.WAYS)

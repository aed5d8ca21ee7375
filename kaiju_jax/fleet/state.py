"""The arrays of a simulated fleet; compiled code changes them in place.

    n requests   c characters   s sessions   r replicas
    e entries of a replica's cache   h places of an entry

Replicas, requests and entries are records, so that compiled functions take few
arguments; numba takes minutes for as many arrays.

A request of number −1, a replica of number −1 and an entry of number −1 are
none. Times are in seconds of the simulation.
"""

import types
from typing import NamedTuple

import numpy as np

# Replicas at which the caches of one session are found again.
HOLDS = 8
# Rows that a replica may have. The records are of one type for all fleets, so
# that one compilation serves them.
MOST_ROWS = 256


class Law(NamedTuple):
  """Seconds of a round, which is one step and one chunk of prompts.

      fixed + row · rows + context · Σ tokens of the rows' texts
            + token · tokens of the chunk's shape
            + attended · Σ tokens of a chunk × tokens before it
            + chunk, if there is one

  A replica without work runs no rounds. `shapes` of a chunk are the engine's.
  """

  fixed: float
  row: float
  context: float
  token: float
  attended: float
  chunk: float = 0.0


class Sizes(NamedTuple):
  """What a replica holds.

  Attributes:
    rows: rows that run at once.
    page: tokens of a page.
    window: tokens of the local layers' window; 0 without such layers.
    pages, local_pages: pages of the two pools.
    drawn: entries that are drawn for an eviction, as `eviction.LeastWorth` has
      it; 0 evicts the least recently used of all.
    keeps: 1 if conversations stay in the cache, 0 for characters' prefixes
      alone.
  """

  rows: int
  page: int
  window: int
  pages: int
  local_pages: int
  drawn: int
  keeps: int


# A *stretch* is the rounds until a prompt or an answer ends; in each the same
# rows take part. It began at `clock`, with `step` seconds of its first round
# and `growth` more in each later one, and has `count` rounds until `until`.
# `chosen` places of `part` are the prompts of its chunk, of at most `chunk`
# tokens each.
_REPLICA = np.dtype(
  [
    *((name, np.float64) for name in ('share', 'load', 'clock', 'until')),
    *((name, np.float64) for name in ('step', 'growth', 'context', 'busy')),
    *((name, np.int64) for name in ('count', 'rounds', 'drawing', 'prompting')),
    *((name, np.int64) for name in ('chosen', 'chunk', 'head', 'tail')),
    *((name, np.int64) for name in ('free', 'free_local', 'entries')),
    *((name, np.int64) for name in ('unused', 'evictions')),
    *((name, np.int64, (MOST_ROWS,)) for name in ('prompts', 'draws', 'part')),
  ],
  align=True,
)

# `reach` is how many of the prompt's first tokens the session's cache may hold;
# `prefix` of them are the character's. `held` are in the row's cache, `resumed`
# of them from the start. `first` and `done` are when the first token came, and
# the last. `pages` and `local` are the row's own; `next` waits behind it.
_REQUEST = np.dtype(
  [
    *((name, np.float64) for name in ('seconds', 'first', 'done')),
    *((name, np.int64) for name in ('session', 'end')),
    *((name, np.int64) for name in ('character', 'prefix', 'prompt')),
    *((name, np.int64) for name in ('answer', 'reach', 'held', 'resumed')),
    *((name, np.int64) for name in ('owed', 'passed', 'replica', 'next')),
    *((name, np.int64) for name in ('pages', 'local', 'low')),
  ],
  align=True,
)

# An entry is a character's prefix, or a session with the points of its last
# turn. It can be resumed from `low` tokens on, where the window's pages live.
# `listed` are the entries that may be evicted, `place` where each stands there;
# `spare` are unused numbers. A prefix that was evicted while sessions behind it
# are kept (`below` of them) holds its global pages, and no local ones.
_ENTRY = np.dtype(
  [
    *((name, np.float64) for name in ('used', 'made')),
    *((name, np.int64) for name in ('key', 'is_prefix', 'length', 'low')),
    *((name, np.int64) for name in ('pages', 'local', 'begun', 'below')),
    *((name, np.int64) for name in ('above', 'place', 'listed', 'spare')),
  ],
  align=True,
)


class Cache(NamedTuple):
  """The replicas' caches.

  Attributes:
    entry: records [r, e].
    prefix_at: [r, c], the entries of prefixes.
    hold_replica, hold_entry: [s, h], those of sessions.
  """

  entry: np.ndarray
  prefix_at: np.ndarray
  hold_replica: np.ndarray
  hold_entry: np.ndarray


def make_replicas(count: int, sizes: Sizes, entries: int) -> np.ndarray:
  """Returns records [r] of replicas that are open and have nothing.

  Their `prompts`, `draws` and `part` are [r, MOST_ROWS].
  """
  one = np.zeros(count, _REPLICA)
  one['share'], one['until'] = 1, np.inf
  one['head'] = one['tail'] = -1
  one['free'], one['free_local'] = sizes.pages, sizes.local_pages
  one['unused'] = entries
  return one


def make_requests(count: int) -> np.ndarray:
  """Returns records [n] of requests, which are to be filled in."""
  one = np.zeros(count, _REQUEST)
  one['first'] = one['done'] = np.nan
  one['replica'] = one['next'] = -1
  return one


def make_cache(
  replicas: int, entries: int, characters: int, sessions: int
) -> Cache:
  """Returns empty caches of so many entries per replica."""
  entry = np.zeros((replicas, entries), _ENTRY)
  entry['key'] = entry['place'] = entry['above'] = -1
  entry['spare'] = np.arange(entries)
  return Cache(
    entry,
    prefix_at=np.full((replicas, characters), -1, np.int64),
    hold_replica=np.full((sessions, HOLDS), -1, np.int64),
    hold_entry=np.full((sessions, HOLDS), -1, np.int64),
  )


def view_fields(records: np.ndarray):
  """Returns records as a value whose attributes are its fields' arrays.

  Compiled code reads fields of records by the same names.
  """
  names = records.dtype.names
  return types.SimpleNamespace(**{name: records[name] for name in names})

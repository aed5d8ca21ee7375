"""The arrays of a simulated fleet; compiled code changes them in place.

    n requests   c characters   s sessions   r replicas
    e entries of a replica's cache   h replicas that cache one session

Replicas, requests and entries are records, so that compiled functions take few
arrays; numba takes minutes for as many arrays as there are fields.

A request, a replica, an entry or a session of number −1 is none. Times are in
seconds of the simulation.
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
  """Seconds of a round, which is one decode step and one prefill chunk.

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
  """A replica's capacity."""

  rows: int  # Rows that run at once.
  page: int  # Tokens of a page.
  window: int  # Tokens of the local layers' window; 0 without such layers.
  pages: int  # Pages of the pool of the global layers.
  local_pages: int  # Pages of the pool of the local layers.
  # Entries that are drawn for an eviction, as `eviction.LeastWorth` has it; 0
  # evicts the least recently used of all.
  drawn: int
  # 1 if conversations stay in the cache, 0 for characters' prefixes alone.
  keeps: int


_REPLICA = np.dtype(
  [
    # The router's: the replica's part of new sessions, and the tokens to
    # prefill and rows to decode that it has been given.
    *((name, np.float64) for name in ('share', 'load')),
    # The stretch of rounds that runs now (`rounds.py`); without one it ends at
    # infinity.
    *((name, np.float64) for name in ('stretch_begin', 'stretch_end')),
    ('first_round_seconds', np.float64),
    ('seconds_per_round_increment', np.float64),
    ('stretch_rounds', np.int64),
    # All tokens of the rows that decode, and seconds with a round.
    *((name, np.float64) for name in ('context_tokens', 'busy_seconds')),
    ('rounds_run', np.int64),
    # Requests that decode and that are prefilled: `count` of each.
    *((name, np.int64) for name in ('decode_count', 'prefill_count')),
    *((name, np.int64, (MOST_ROWS,)) for name in ('decoding', 'prefilling')),
    # The first `chunk_rows` places of `chunk_order` are those of `prefilling`
    # that are in the stretch's chunk, with at most `chunk_tokens` each.
    *((name, np.int64) for name in ('chunk_rows', 'chunk_tokens')),
    ('chunk_order', np.int64, (MOST_ROWS,)),
    *((name, np.int64) for name in ('queue_head', 'queue_tail')),
    *((name, np.int64) for name in ('free_pages', 'free_local_pages')),
    # Entries of the cache that may be evicted, and unused ones.
    *((name, np.int64) for name in ('listed_count', 'spare_count')),
    ('evictions', np.int64),
  ],
  align=True,
)

_REQUEST = np.dtype(
  [
    # When it comes, and when its first and its last token come.
    *((name, np.float64) for name in ('seconds', 'first_token', 'last_token')),
    *((name, np.int64) for name in ('session', 'character')),
    # Tokens: of the character's prefix, the prompt, the answer.
    *((name, np.int64) for name in ('prefix', 'prompt', 'answer')),
    # The prompt's first tokens that the session's cache may hold.
    ('reusable', np.int64),
    # Tokens of the prompt that the row has, and those that it resumed.
    *((name, np.int64) for name in ('prefilled', 'resumed')),
    # Tokens to prefill that its replica's load counts.
    ('pending_tokens', np.int64),
    ('rounds_skipped', np.int64),  # Rounds since it was last in a chunk.
    ('last_round', np.int64),  # The replica's round that ends its answer.
    *((name, np.int64) for name in ('replica', 'next_in_queue')),
    # The row's own pages; the text can be resumed from a length on.
    *((name, np.int64) for name in ('pages', 'local_pages')),
    ('resumable_from', np.int64),
  ],
  align=True,
)

# An entry is a character's prefix, or a session with the text of its last turn.
# A prefix that was evicted while sessions behind it are kept holds its global
# pages, and no local ones.
_ENTRY = np.dtype(
  [
    *((name, np.float64) for name in ('last_used', 'created')),
    ('key', np.int64),  # The character or the session.
    ('is_prefix', np.int64),
    *((name, np.int64) for name in ('length', 'resumable_from')),
    *((name, np.int64) for name in ('pages', 'local_pages')),
    ('sessions_begun', np.int64),  # How many sessions resumed the prefix.
    ('dependents', np.int64),  # Rows and sessions behind the prefix.
    ('prefix_entry', np.int64),  # A session's.
    ('list_index', np.int64),  # Where `listed` has it; −1: not resumable.
    # Two lists of the replica's entries: those that may be evicted, and unused
    # numbers.
    *((name, np.int64) for name in ('listed', 'spare')),
  ],
  align=True,
)


class Cache(NamedTuple):
  """The replicas' caches."""

  entry: np.ndarray  # Records [r, e].
  prefix_at: np.ndarray  # [r, c], the entries of prefixes.
  session_replica: np.ndarray  # [s, h], replicas that cache a session.
  session_entry: np.ndarray  # [s, h], its entries there.


class World(NamedTuple):
  """What rounds and caches read, and the records that they change."""

  law: Law
  shapes: np.ndarray  # int64 [n, 2], rows and tokens of a chunk.
  sizes: Sizes
  replicas: np.ndarray
  requests: np.ndarray
  cache: Cache


def make_replicas(count: int, sizes: Sizes, entries: int) -> np.ndarray:
  """Returns records [r] of replicas that are open and idle."""
  replicas = np.zeros(count, _REPLICA)
  replicas['share'], replicas['stretch_end'] = 1, np.inf
  replicas['queue_head'] = replicas['queue_tail'] = -1
  replicas['free_pages'] = sizes.pages
  replicas['free_local_pages'] = sizes.local_pages
  replicas['spare_count'] = entries
  return replicas


def make_requests(count: int) -> np.ndarray:
  """Returns records [n] of requests, which are to be filled in."""
  requests = np.zeros(count, _REQUEST)
  requests['first_token'] = requests['last_token'] = np.nan
  requests['replica'] = requests['next_in_queue'] = -1
  return requests


def make_cache(
  replicas: int, entries: int, characters: int, sessions: int
) -> Cache:
  """Returns empty caches of so many entries per replica."""
  entry = np.zeros((replicas, entries), _ENTRY)
  entry['key'] = entry['list_index'] = entry['prefix_entry'] = -1
  entry['spare'] = np.arange(entries)
  return Cache(
    entry,
    prefix_at=np.full((replicas, characters), -1, np.int64),
    session_replica=np.full((sessions, HOLDS), -1, np.int64),
    session_entry=np.full((sessions, HOLDS), -1, np.int64),
  )


def view_fields(records: np.ndarray):
  """Returns records as a value whose attributes are its fields' arrays.

  Compiled code reads fields of records by the same names.
  """
  names = records.dtype.names
  return types.SimpleNamespace(**{name: records[name] for name in names})


def view_world(world: World) -> World:
  """Returns a world that plain Python can run."""
  entry = view_fields(world.cache.entry)
  return world._replace(
    replicas=view_fields(world.replicas),
    requests=view_fields(world.requests),
    cache=world.cache._replace(entry=entry),
  )

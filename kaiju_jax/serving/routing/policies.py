"""Routing policies: one function picks the replica that serves a request.

A router calls `pick` as it stands; the simulator compiles the same function, so
that it judges what a router runs. All is arithmetic on arrays. Draws hash their
arguments, so that there is no hidden state, and both give the same replica.

    random        any open replica
    least_loaded  the open replica of least load
    character     the owner of the character's digest (rendezvous hashing, so
                  that a new replica of n takes 1/n of the characters)
    bounded       the first owner whose load is at most 1.25 × the mean
    sticky        the replica that served the session last, if it is open;
                  otherwise the less loaded of two drawn ones

The load of a replica is the prompt tokens that it must still prefill, and one
for each request that it has.

Source 003 routes to the replica whose cache has the prefix; bounds, stickiness
and two choices are our guess.
"""

from typing import Any

import numpy as np

NAMES = 'random', 'least_loaded', 'character', 'bounded', 'sticky'
RANDOM, LEAST_LOADED, CHARACTER, BOUNDED, STICKY = range(5)
# Load over the mean above which an owner passes a request on.
BOUND = 1.25
# Places of the table that one session may take.
WAYS = 8
_MASK = 0xFFFFFFFF


def mix(one: int, other: int) -> int:
  """Returns a hash of two integers, 32 bits."""
  return mix_wide(int(one), int(other))


def mix_wide(one: Any, other: Any) -> Any:
  """Returns `mix` of integers, or of int64 arrays of them.

  No product exceeds 63 bits, so that Python, NumPy and compiled code agree.
  """
  found = one & _MASK
  for _ in range(2):
    found = ((found >> 16) ^ found) * 0x45D9F3B & _MASK
  found = ((found >> 16) ^ found ^ (other & _MASK)) + 0x9E3779B & _MASK
  for _ in range(2):
    found = ((found >> 16) ^ found) * 0x45D9F3B & _MASK
  return (found >> 16) ^ found


def make_table(slots: int) -> np.ndarray:
  """Returns an empty table of sessions, for `note`, of at least `slots`."""
  sets = max(1, -(-slots // WAYS))
  return np.full((sets * WAYS, 3), -1, np.int64)


def find(table: np.ndarray, session: int) -> int:
  """Returns the replica that the table has for a session; −1 for none."""
  first = mix(session, 1) % (len(table) // WAYS) * WAYS
  for place in range(first, first + WAYS):
    if table[place, 0] == session:
      return table[place, 1]
  return -1


def note(table: np.ndarray, session: int, replica: int, count: int) -> None:
  """Notes which replica serves a session.

  Args:
    table: int64 [slots, 3] from `make_table`: session, replica, and the count
      of requests at its last use. A full set forgets its oldest session.
    session: a non-negative number.
  """
  first = mix(session, 1) % (len(table) // WAYS) * WAYS
  oldest = first
  for place in range(first, first + WAYS):
    if table[place, 0] == session:
      oldest = place
      break
    if table[place, 2] < table[oldest, 2]:
      oldest = place
  table[oldest, 0] = session
  table[oldest, 1] = replica
  table[oldest, 2] = count


def forget(table: np.ndarray, session: int) -> None:
  """Forgets which replica serves a session."""
  first = mix(session, 1) % (len(table) // WAYS) * WAYS
  for place in range(first, first + WAYS):
    if table[place, 0] == session:
      table[place] = -1


def pick(
  digest: int,
  session: int,
  replicas: np.ndarray,
  loads: np.ndarray,
  table: np.ndarray,
  policy: int = STICKY,
  count: int = 0,
) -> int:
  """Returns the replica that serves a request; −1 if all are closed.

  Args:
    digest: of the character's prefix, 32 bits of it count.
    session: the conversation's number, 0 or more.
    replicas: float64 [n], the fraction of its share that each takes: 0 is
      closed (lost, or drained), 1 open; between them it is open to that
      fraction of the sessions.
    loads: float64 [n].
    table: int64 [slots, 3], which `note` keeps.
    policy: an index of NAMES.
    count: requests so far; draws depend on it.
  """
  if policy == STICKY:
    known = find(table, session)
    if 0 <= known < len(replicas) and _is_open(session, replicas, known):
      return known
  if policy == CHARACTER:
    return _pick_owner(digest, session, replicas, loads, np.inf)
  if policy == BOUNDED:
    most = BOUND * _mean_load(session, replicas, loads)
    return _pick_owner(digest, session, replicas, loads, most)
  seed = mix(mix(session, 2), count)
  if policy == LEAST_LOADED:
    return _pick_least(seed, session, replicas, loads)
  first = _draw(seed, session, replicas)
  if policy == RANDOM or first < 0:
    return first
  second = _draw(mix(seed, 3), session, replicas)
  return second if loads[second] < loads[first] else first


def _is_open(session, replicas, place) -> bool:
  share = replicas[place]
  if share >= 1:
    return True
  return share > 0 and mix(mix(session, 4), place) < share * 2.0**32


def _mean_load(session, replicas, loads) -> float:
  total, count = 0.0, 0
  for place in range(len(replicas)):
    if _is_open(session, replicas, place):
      total += loads[place]
      count += 1
  return total / max(count, 1)


def _pick_owner(digest, session, replicas, loads, most) -> int:
  """Returns the first owner of load `most` or less that is open, or −1."""
  best, best_rank, spare, spare_rank = -1, -1, -1, -1
  for place in range(len(replicas)):
    rank = mix(digest, place)
    if replicas[place] > 0 and rank > spare_rank:
      spare, spare_rank = place, rank
    if rank <= best_rank or loads[place] > most:
      continue
    if _is_open(session, replicas, place):
      best, best_rank = place, rank
  return best if best >= 0 else spare


def _pick_least(seed, session, replicas, loads) -> int:
  """Returns the least loaded open replica; a draw breaks ties."""
  best, spare, size = -1, -1, len(replicas)
  for step in range(size):
    place = (seed + step) % size
    if replicas[place] > 0 and spare < 0:
      spare = place
    if best >= 0 and loads[place] >= loads[best]:
      continue
    if _is_open(session, replicas, place):
      best = place
  return best if best >= 0 else spare


def _draw(seed, session, replicas) -> int:
  """Returns any open replica, or −1."""
  size, spare = len(replicas), -1
  for step in range(16):
    place = mix(seed, step) % size
    if _is_open(session, replicas, place):
      return place
  for step in range(size):
    place = (seed + step) % size
    if _is_open(session, replicas, place):
      return place
    if replicas[place] > 0:
      spare = place
  return spare

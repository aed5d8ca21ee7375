"""A replica's prefix cache in arrays: entries of characters and of sessions.

It mirrors `decoding/pages` with less detail: one entry per character's prefix
and one per session, where the tree keeps up to three points: of the text that a
turn resumed, of its prompt and of its answer. The two pools, the pages that
entries share, what can be resumed and the worth by which entries are evicted
are the tree's (`prefix_tree.py`, `eviction.py`). A running row owns its pages,
and leaves them to its session's entry.
"""

import numpy as np

from kaiju_jax.fleet import state
from kaiju_jax.serving.routing import policies

# As in `eviction.LeastWorth`.
_SECONDS = 8.0
_HOUR = 3600.0


def count_pages(sizes: state.Sizes, tokens: int) -> int:
  """Returns how many pages hold so many tokens."""
  return -(-tokens // sizes.page)


def count_local(sizes: state.Sizes, low: int, tokens: int) -> int:
  """Returns the local pages of a text that can be resumed from `low` on."""
  if sizes.window == 0:
    return 0
  lowest = max(0, low - (sizes.window - 1)) // sizes.page
  return -(-tokens // sizes.page) - lowest


def _find_session(cache, replica, session):
  """Returns a session's entry at a replica; −1 for none."""
  for place in range(cache.session_replica.shape[1]):
    if cache.session_replica[session, place] == replica:
      return cache.session_entry[session, place]
  return -1


def count_resumable(world: state.World, replica: int, request: int) -> int:
  """Returns how many tokens of a prompt a replica has, its last excluded."""
  cache, requests = world.cache, world.requests
  most = requests.prompt[request] - 1
  entry = _find_session(cache, replica, requests.session[request])
  if entry >= 0:
    length = cache.entry.length[replica, entry]
    length = min(length, requests.reusable[request])
    if length >= cache.entry.resumable_from[replica, entry]:
      return min(length, most)
  entry = cache.prefix_at[replica, requests.character[request]]
  if entry >= 0 and cache.entry.list_index[replica, entry] >= 0:
    return min(requests.prefix[request], most)
  return 0


def list_entry(world: state.World, replica: int, entry: int) -> None:
  """Makes an entry resumable, and open to eviction."""
  replicas, entries = world.replicas, world.cache.entry
  count = replicas.listed_count[replica]
  entries.listed[replica, count] = entry
  entries.list_index[replica, entry] = count
  replicas.listed_count[replica] = count + 1


def _unlist(world, replica, entry):
  replicas, entries = world.replicas, world.cache.entry
  last = replicas.listed_count[replica] - 1
  moved = entries.listed[replica, last]
  place = entries.list_index[replica, entry]
  entries.listed[replica, place] = moved
  entries.list_index[replica, moved] = place
  entries.list_index[replica, entry] = -1
  replicas.listed_count[replica] = last


def _make_entry(world, replica, key, now):
  """Returns a new entry without pages; one must be spare."""
  replicas, entries = world.replicas, world.cache.entry
  replicas.spare_count[replica] -= 1
  entry = entries.spare[replica, replicas.spare_count[replica]]
  entries.key[replica, entry] = key
  entries.is_prefix[replica, entry] = 0
  entries.length[replica, entry] = 0
  entries.resumable_from[replica, entry] = 0
  entries.pages[replica, entry] = 0
  entries.local_pages[replica, entry] = 0
  entries.last_used[replica, entry] = now
  entries.created[replica, entry] = now
  entries.sessions_begun[replica, entry] = 0
  entries.dependents[replica, entry] = 0
  entries.prefix_entry[replica, entry] = -1
  entries.list_index[replica, entry] = -1
  return entry


def make_prefix(
  world: state.World, replica: int, character: int, prefix: int, now: float
):
  """Returns a new entry of a character's prefix, with its global pages.

  Until it is listed it cannot be resumed.
  """
  cache = world.cache
  entry = _make_entry(world, replica, character, now)
  pages = count_pages(world.sizes, prefix)
  cache.entry.is_prefix[replica, entry] = 1
  cache.entry.length[replica, entry] = prefix
  cache.entry.pages[replica, entry] = pages
  world.replicas.free_pages[replica] -= pages
  cache.prefix_at[replica, character] = entry
  return entry


def _free(world, replica, entry):
  """Frees an entry's global pages and its number."""
  replicas, cache = world.replicas, world.cache
  replicas.free_pages[replica] += cache.entry.pages[replica, entry]
  if cache.entry.is_prefix[replica, entry]:
    cache.prefix_at[replica, cache.entry.key[replica, entry]] = -1
  cache.entry.spare[replica, replicas.spare_count[replica]] = entry
  replicas.spare_count[replica] += 1


def _release_prefix(world, replica, entry):
  """Ends the use of a prefix's global pages by a row or a session."""
  entries = world.cache.entry
  entries.dependents[replica, entry] -= 1
  is_used = entries.dependents[replica, entry] > 0
  if not is_used and entries.list_index[replica, entry] < 0:
    _free(world, replica, entry)


def _drop(world, replica, entry):
  """Drops a listed entry; a prefix with dependents keeps its global pages."""
  replicas, cache, entries = world.replicas, world.cache, world.cache.entry
  _unlist(world, replica, entry)
  replicas.free_local_pages[replica] += entries.local_pages[replica, entry]
  entries.local_pages[replica, entry] = 0
  if entries.is_prefix[replica, entry]:
    if entries.dependents[replica, entry] == 0:
      _free(world, replica, entry)
    return
  session = entries.key[replica, entry]
  prefix = entries.prefix_entry[replica, entry]
  if session >= 0:
    for place in range(cache.session_replica.shape[1]):
      if cache.session_replica[session, place] == replica:
        cache.session_replica[session, place] = -1
  _free(world, replica, entry)
  _release_prefix(world, replica, prefix)


def _note_session(world, replica, entry, session):
  """Notes where a session is cached; drops the oldest of too many entries."""
  replica_at = world.cache.session_replica
  entry_at = world.cache.session_entry
  last = 0
  while last < replica_at.shape[1] - 1:
    if replica_at[session, last] < 0:
      break
    last += 1
  if replica_at[session, last] >= 0:
    _drop(world, replica_at[session, last], entry_at[session, last])
  for place in range(last, 0, -1):
    replica_at[session, place] = replica_at[session, place - 1]
    entry_at[session, place] = entry_at[session, place - 1]
  replica_at[session, 0], entry_at[session, 0] = replica, entry


def forget_session(cache: state.Cache, session: int) -> None:
  """Detaches a session's entries; eviction drops them."""
  for place in range(cache.session_replica.shape[1]):
    replica = cache.session_replica[session, place]
    if replica >= 0:
      cache.entry.key[replica, cache.session_entry[session, place]] = -1
      cache.session_replica[session, place] = -1


def worth(world: state.World, replica: int, entry: int, now: float) -> float:
  """Returns an entry's worth, as `eviction.LeastWorth` counts it."""
  sizes, entries = world.sizes, world.cache.entry
  length = entries.length[replica, entry]
  rate = 0.5 / max(now - entries.last_used[replica, entry], _SECONDS)
  cost = entries.local_pages[replica, entry] / max(sizes.local_pages, 1)
  pages = float(entries.pages[replica, entry])
  if entries.is_prefix[replica, entry]:
    age = now - entries.created[replica, entry] + _HOUR
    rate += entries.sessions_begun[replica, entry] / age
    # A session has two or three points.
    pages /= 1 + 2 * entries.dependents[replica, entry]
  else:
    prefix = entries.prefix_entry[replica, entry]
    sharers = 1 + 2 * entries.dependents[replica, prefix]
    pages += entries.pages[replica, prefix] / sharers
    if entries.list_index[replica, prefix] >= 0:
      length -= entries.length[replica, prefix]
  cost += pages / sizes.pages
  return rate * length / max(cost, 1e-9)


def _evict(world, replica, now):
  """Drops the entry of least worth; returns whether there was one."""
  sizes, replicas, entries = world.sizes, world.replicas, world.cache.entry
  count = replicas.listed_count[replica]
  if count == 0:
    return False
  replicas.evictions[replica] += 1
  seed = policies.mix(replicas.evictions[replica], replica)
  best, least = np.int64(-1), np.inf
  is_drawn = 0 < sizes.drawn < count
  for step in range(sizes.drawn if is_drawn else count):
    place = policies.mix(seed, step) % count if is_drawn else step
    entry = entries.listed[replica, place]
    if sizes.drawn == 0:
      value = entries.last_used[replica, entry]
    else:
      value = worth(world, replica, entry, now)
    if value < least:
      best, least = entry, value
  _drop(world, replica, best)
  return True


def _make_room(world, replica, pages, local, now):
  """Evicts until so many pages are free; returns whether they are."""
  replicas = world.replicas
  while (
    replicas.free_pages[replica] < pages
    or replicas.free_local_pages[replica] < local
    or replicas.spare_count[replica] < 2
  ):
    if not _evict(world, replica, now):
      return False
  return True


def clear(world: state.World, replica: int) -> None:
  """Empties a replica's cache; no row may run there."""
  while world.replicas.listed_count[replica] > 0:
    _drop(world, replica, world.cache.entry.listed[replica, 0])


def admit(world: state.World, replica: int, request: int, now: float):
  """Takes the pages of a request's row; returns whether there were enough.

  The row resumes what the cache has. Its session's entry becomes the row's; it
  is lost if the request has to wait for pages.
  """
  sizes, replicas, requests = world.sizes, world.replicas, world.requests
  cache, entries = world.cache, world.cache.entry
  prefix, prompt = requests.prefix[request], requests.prompt[request]
  character = requests.character[request]
  total = prompt + requests.answer[request]
  resumed = count_resumable(world, replica, request)
  base = cache.prefix_at[replica, character]
  if base >= 0:
    entries.dependents[replica, base] += 1
  entry = _find_session(cache, replica, requests.session[request])
  if entry >= 0:
    _drop(world, replica, entry)
  low = resumed if resumed > prefix else prompt
  pages = count_pages(sizes, total) - prefix // sizes.page
  local = count_local(sizes, low, total)
  shared = count_pages(sizes, prefix) if base < 0 else 0
  ring = count_local(sizes, prefix, prefix) if resumed < prefix else 0
  if not _make_room(world, replica, pages + shared, local + ring, now):
    if base >= 0:
      _release_prefix(world, replica, base)
    return False
  if base < 0:
    base = make_prefix(world, replica, character, prefix, now)
    entries.dependents[replica, base] = 1
  replicas.free_pages[replica] -= pages
  replicas.free_local_pages[replica] -= local + ring
  entries.last_used[replica, base] = now
  is_first = entry < 0 and resumed == min(prefix, prompt - 1)
  entries.sessions_begun[replica, base] += is_first
  requests.pages[request], requests.local_pages[request] = pages, local
  requests.resumed[request] = requests.prefilled[request] = resumed
  requests.resumable_from[request] = low
  return True


def record_prefix(
  world: state.World, replica: int, request: int, now: float
) -> None:
  """Makes the prefix of a running prompt resumable; its row has the pages."""
  cache, entries = world.cache, world.cache.entry
  prefix = world.requests.prefix[request]
  base = cache.prefix_at[replica, world.requests.character[request]]
  ring = count_local(world.sizes, prefix, prefix)
  if entries.list_index[replica, base] >= 0:
    world.replicas.free_local_pages[replica] += ring
    return
  entries.local_pages[replica, base] = ring
  entries.last_used[replica, base] = entries.created[replica, base] = now
  entries.sessions_begun[replica, base] = 1
  list_entry(world, replica, base)


def release_row(world: state.World, replica: int, request: int) -> None:
  """Frees a row's pages."""
  replicas, requests = world.replicas, world.requests
  prefix = requests.prefix[request]
  replicas.free_pages[replica] += requests.pages[request]
  replicas.free_local_pages[replica] += requests.local_pages[request]
  if requests.prefilled[request] < prefix:
    ring = count_local(world.sizes, prefix, prefix)
    replicas.free_local_pages[replica] += ring
  base = world.cache.prefix_at[replica, requests.character[request]]
  _release_prefix(world, replica, base)


def keep_session(
  world: state.World, replica: int, request: int, now: float
) -> None:
  """Gives the pages of a row that has ended to its session's entry."""
  requests, entries = world.requests, world.cache.entry
  session = requests.session[request]
  older = _find_session(world.cache, replica, session)
  if older >= 0:
    _drop(world, replica, older)
  if world.sizes.keeps == 0 or world.replicas.spare_count[replica] == 0:
    release_row(world, replica, request)
    return
  entry = _make_entry(world, replica, session, now)
  base = world.cache.prefix_at[replica, requests.character[request]]
  # The last token is drawn, and not in the cache.
  length = requests.prompt[request] + requests.answer[request] - 1
  entries.length[replica, entry] = length
  entries.resumable_from[replica, entry] = requests.resumable_from[request]
  entries.pages[replica, entry] = requests.pages[request]
  entries.local_pages[replica, entry] = requests.local_pages[request]
  entries.prefix_entry[replica, entry] = base
  entries.last_used[replica, base] = now
  list_entry(world, replica, entry)
  _note_session(world, replica, entry, session)

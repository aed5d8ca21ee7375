"""A replica's cache in arrays: characters' prefixes and sessions.

It mirrors `decoding/pages` with less detail: a prefix is a point, and so is a
session, where the tree has one point each for the text that a turn resumed, its
prompt and its answer. Both pools, the pages that points share, what can be
resumed and the worth by which points are evicted are the tree's
(`prefix_tree.py`, `eviction.py`). A running row owns its pages, and leaves them
to its session.
"""

import numpy as np

from kaiju_jax.serving.routing import policies

_SECONDS = 8.0
_HOUR = 3600.0


def count_pages(sizes, tokens):
  """Returns how many pages hold so many tokens."""
  return -(-tokens // sizes.page)


def count_local(sizes, low, tokens):
  """Returns the local pages of a text that can be resumed from `low` on."""
  if sizes.window == 0:
    return 0
  lowest = max(0, low - (sizes.window - 1)) // sizes.page
  return -(-tokens // sizes.page) - lowest


def find_session(cache, replica, session):
  """Returns a session's entry at a replica; −1 for none."""
  for place in range(cache.hold_replica.shape[1]):
    if cache.hold_replica[session, place] == replica:
      return cache.hold_entry[session, place]
  return -1


def is_resident(cache, replica, character):
  """Returns whether a character's prefix can be resumed."""
  entry = cache.prefix_at[replica, character]
  return entry >= 0 and cache.entry.place[replica, entry] >= 0


def count_resumable(cache, requests, replica, one):
  """Returns how many tokens of a prompt a replica has, its last excluded."""
  most = requests.prompt[one] - 1
  entry = find_session(cache, replica, requests.session[one])
  if entry >= 0:
    length = min(cache.entry.length[replica, entry], requests.reach[one])
    if length >= cache.entry.low[replica, entry]:
      return min(length, most)
  if is_resident(cache, replica, requests.character[one]):
    return min(requests.prefix[one], most)
  return 0


def list_entry(replicas, cache, replica, entry):
  """Lets an entry be evicted, and be resumed."""
  count = replicas.entries[replica]
  cache.entry.listed[replica, count] = entry
  cache.entry.place[replica, entry] = count
  replicas.entries[replica] = count + 1


def _unlist(replicas, cache, replica, entry):
  last = replicas.entries[replica] - 1
  moved, place = (
    cache.entry.listed[replica, last],
    cache.entry.place[replica, entry],
  )
  cache.entry.listed[replica, place] = moved
  cache.entry.place[replica, moved] = place
  cache.entry.place[replica, entry] = -1
  replicas.entries[replica] = last


def make_entry(replicas, cache, replica, key, now):
  """Returns a new entry of a session, without pages; one must be unused."""
  replicas.unused[replica] -= 1
  entry = cache.entry.spare[replica, replicas.unused[replica]]
  cache.entry.key[replica, entry] = key
  cache.entry.is_prefix[replica, entry] = 0
  cache.entry.length[replica, entry] = 0
  cache.entry.low[replica, entry] = 0
  cache.entry.pages[replica, entry] = 0
  cache.entry.local[replica, entry] = 0
  cache.entry.used[replica, entry] = now
  cache.entry.made[replica, entry] = now
  cache.entry.begun[replica, entry] = 0
  cache.entry.below[replica, entry] = 0
  cache.entry.above[replica, entry] = -1
  cache.entry.place[replica, entry] = -1
  return entry


def make_prefix(sizes, replicas, cache, replica, character, prefix, now):
  """Returns a new entry of a character's prefix, with its global pages.

  Until it is listed it cannot be resumed.
  """
  entry = make_entry(replicas, cache, replica, character, now)
  cache.entry.is_prefix[replica, entry] = 1
  cache.entry.length[replica, entry] = prefix
  pages = count_pages(sizes, prefix)
  cache.entry.pages[replica, entry] = pages
  replicas.free[replica] -= pages
  cache.prefix_at[replica, character] = entry
  return entry


def _free(replicas, cache, replica, entry):
  """Gives an entry's global pages and number back."""
  replicas.free[replica] += cache.entry.pages[replica, entry]
  if cache.entry.is_prefix[replica, entry]:
    cache.prefix_at[replica, cache.entry.key[replica, entry]] = -1
  cache.entry.spare[replica, replicas.unused[replica]] = entry
  replicas.unused[replica] += 1


def release_prefix(replicas, cache, replica, entry):
  """Ends the use of a prefix's global pages by a row or a session."""
  cache.entry.below[replica, entry] -= 1
  if (
    cache.entry.below[replica, entry] == 0
    and cache.entry.place[replica, entry] < 0
  ):
    _free(replicas, cache, replica, entry)


def drop(replicas, cache, replica, entry):
  """Drops an entry that is listed; a prefix that is used keeps its globals."""
  _unlist(replicas, cache, replica, entry)
  replicas.free_local[replica] += cache.entry.local[replica, entry]
  cache.entry.local[replica, entry] = 0
  if cache.entry.is_prefix[replica, entry]:
    if cache.entry.below[replica, entry] == 0:
      _free(replicas, cache, replica, entry)
    return
  session, above = (
    cache.entry.key[replica, entry],
    cache.entry.above[replica, entry],
  )
  if session >= 0:
    for place in range(cache.hold_replica.shape[1]):
      if cache.hold_replica[session, place] == replica:
        cache.hold_replica[session, place] = -1
  _free(replicas, cache, replica, entry)
  release_prefix(replicas, cache, replica, above)


def hold(replicas, cache, replica, entry, session):
  """Notes a session's entry; the oldest of too many is dropped."""
  last = 0
  while last < cache.hold_replica.shape[1] - 1:
    if cache.hold_replica[session, last] < 0:
      break
    last += 1
  at = cache.hold_replica[session, last]
  if at >= 0:
    drop(replicas, cache, at, cache.hold_entry[session, last])
  for place in range(last, 0, -1):
    cache.hold_replica[session, place] = cache.hold_replica[session, place - 1]
    cache.hold_entry[session, place] = cache.hold_entry[session, place - 1]
  cache.hold_replica[session, 0] = replica
  cache.hold_entry[session, 0] = entry


def forget_session(cache, session):
  """Leaves a session's entries without a session; eviction drops them."""
  for place in range(cache.hold_replica.shape[1]):
    replica = cache.hold_replica[session, place]
    if replica >= 0:
      cache.entry.key[replica, cache.hold_entry[session, place]] = -1
      cache.hold_replica[session, place] = -1


def worth(sizes, cache, replica, entry, now):
  """Returns an entry's worth, as `eviction.LeastWorth` counts it."""
  length = cache.entry.length[replica, entry]
  rate = 0.5 / max(now - cache.entry.used[replica, entry], _SECONDS)
  cost = cache.entry.local[replica, entry] / max(sizes.local_pages, 1)
  pages = float(cache.entry.pages[replica, entry])
  if cache.entry.is_prefix[replica, entry]:
    age = now - cache.entry.made[replica, entry] + _HOUR
    rate += cache.entry.begun[replica, entry] / age
    # A session has two or three points.
    pages /= 1 + 2 * cache.entry.below[replica, entry]
  else:
    above = cache.entry.above[replica, entry]
    pages += cache.entry.pages[replica, above] / (
      1 + 2 * cache.entry.below[replica, above]
    )
    if cache.entry.place[replica, above] >= 0:
      length -= cache.entry.length[replica, above]
  cost += pages / sizes.pages
  return rate * length / max(cost, 1e-9)


def evict(sizes, replicas, cache, replica, now):
  """Drops the entry of least worth; returns whether there was one."""
  count = replicas.entries[replica]
  if count == 0:
    return False
  replicas.evictions[replica] += 1
  seed = policies.mix(replicas.evictions[replica], replica)
  best, least = np.int64(-1), np.inf
  is_drawn = 0 < sizes.drawn < count
  for step in range(sizes.drawn if is_drawn else count):
    place = policies.mix(seed, step) % count if is_drawn else step
    entry = cache.entry.listed[replica, place]
    if sizes.drawn == 0:
      value = cache.entry.used[replica, entry]
    else:
      value = worth(sizes, cache, replica, entry, now)
    if value < least:
      best, least = entry, value
  drop(replicas, cache, replica, best)
  return True


def make_room(sizes, replicas, cache, replica, pages, local, now):
  """Evicts until so many pages are free; returns whether they are."""
  while (
    replicas.free[replica] < pages
    or replicas.free_local[replica] < local
    or replicas.unused[replica] < 2
  ):
    if not evict(sizes, replicas, cache, replica, now):
      return False
  return True


def clear(replicas, cache, replica):
  """Empties a replica's cache; no row may run there."""
  while replicas.entries[replica] > 0:
    drop(replicas, cache, replica, cache.entry.listed[replica, 0])


def admit(sizes, replicas, requests, cache, replica, one, now):
  """Takes the pages of a request's row; returns whether there were enough.

  The row resumes what the cache has. Its session's entry becomes the row's; it
  is lost if the request has to wait for pages.
  """
  prefix, prompt = requests.prefix[one], requests.prompt[one]
  character, total = requests.character[one], prompt + requests.answer[one]
  resumed = count_resumable(cache, requests, replica, one)
  base = cache.prefix_at[replica, character]
  if base >= 0:
    cache.entry.below[replica, base] += 1
  entry = find_session(cache, replica, requests.session[one])
  if entry >= 0:
    drop(replicas, cache, replica, entry)
  low = resumed if resumed > prefix else prompt
  pages = count_pages(sizes, total) - prefix // sizes.page
  local = count_local(sizes, low, total)
  shared = count_pages(sizes, prefix) if base < 0 else 0
  ring = count_local(sizes, prefix, prefix) if resumed < prefix else 0
  if not make_room(
    sizes, replicas, cache, replica, pages + shared, local + ring, now
  ):
    if base >= 0:
      release_prefix(replicas, cache, replica, base)
    return False
  if base < 0:
    base = make_prefix(sizes, replicas, cache, replica, character, prefix, now)
    cache.entry.below[replica, base] = 1
  replicas.free[replica] -= pages
  replicas.free_local[replica] -= local + ring
  cache.entry.used[replica, base] = now
  cache.entry.begun[replica, base] += entry < 0 and resumed == min(
    prefix, prompt - 1
  )
  requests.pages[one], requests.local[one] = pages, local
  requests.resumed[one] = requests.held[one] = resumed
  requests.low[one] = low
  return True


def record_prefix(sizes, replicas, requests, cache, replica, one, now):
  """Makes the prefix of a running prompt resumable; its row has the pages."""
  prefix = requests.prefix[one]
  base = cache.prefix_at[replica, requests.character[one]]
  ring = count_local(sizes, prefix, prefix)
  if cache.entry.place[replica, base] >= 0:
    replicas.free_local[replica] += ring
    return
  cache.entry.local[replica, base] = ring
  cache.entry.used[replica, base] = cache.entry.made[replica, base] = now
  cache.entry.begun[replica, base] = 1
  list_entry(replicas, cache, replica, base)


def give_back(sizes, replicas, requests, cache, replica, one):
  """Gives a row's pages back."""
  prefix = requests.prefix[one]
  replicas.free[replica] += requests.pages[one]
  replicas.free_local[replica] += requests.local[one]
  if requests.held[one] < prefix:
    replicas.free_local[replica] += count_local(sizes, prefix, prefix)
  base = cache.prefix_at[replica, requests.character[one]]
  release_prefix(replicas, cache, replica, base)


def leave(sizes, replicas, requests, cache, replica, one, now):
  """Gives the pages of a row that has ended to its session's entry."""
  session = requests.session[one]
  older = find_session(cache, replica, session)
  if older >= 0:
    drop(replicas, cache, replica, older)
  if sizes.keeps == 0 or replicas.unused[replica] == 0:
    give_back(sizes, replicas, requests, cache, replica, one)
    return
  # The last token is drawn, and not in the cache.
  length = requests.prompt[one] + requests.answer[one] - 1
  entry = make_entry(replicas, cache, replica, session, now)
  base = cache.prefix_at[replica, requests.character[one]]
  cache.entry.length[replica, entry] = length
  cache.entry.low[replica, entry] = requests.low[one]
  cache.entry.pages[replica, entry] = requests.pages[one]
  cache.entry.local[replica, entry] = requests.local[one]
  cache.entry.above[replica, entry] = base
  cache.entry.used[replica, base] = now
  list_entry(replicas, cache, replica, entry)
  hold(replicas, cache, replica, entry, session)

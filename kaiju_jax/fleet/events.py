"""The event loop of a simulated fleet.

An event is a fault, a request that comes, or the end of a replica's stretch of
rounds; of equal times they go in this order. A request is routed when it comes,
by `policies.pick`. A replica that is lost has its requests routed anew, with
the tokens that were given out at the prompt's end.
"""

from typing import NamedTuple

import numpy as np

from kaiju_jax.fleet import entries
from kaiju_jax.fleet import rounds
from kaiju_jax.fleet import sessions as sessions_lib
from kaiju_jax.serving.routing import policies

# Kinds of faults: a replica's share changes; it loses its cache and requests;
# it fills its cache with the most popular prefixes; the table of sessions is
# emptied.
SHARE, LOSE, WARM, FORGET = range(4)
# Times to the first token are counted in bins that are .45 % wide.
BINS, LEAST, WIDTH = 4096, 1e-4, 0.0045
# Places of `Totals.counts`.
REQUESTS, HITS, PROMPT, RESUMED, PREFIX, PREFIX_RESUMED, ANSWER = range(7)
MOVED, LOST, ENDED = 7, 8, 9
# Places of `Totals.sums`.
FIRST, STAY, AREA, PRESENT, SINCE, LAST, BUSY, GIVEN = range(8)


class Totals(NamedTuple):
  """What a run adds up.

  Attributes:
    late: int64 [windows, BINS], requests by the window in which they came and
      the time to the first token.
    counts: int64 [10]; requests, those that resume anything, tokens of prompts
      and those that were resumed, of prefixes and those that were resumed,
      answers, requests that moved to another replica, those that found none,
      and those that ended.
    sums: float64 [8]; seconds to first tokens and to last ones, the integral
      of the requests present, these requests, and since when; the second at
      which the last session began, and what replicas had worked and answered.
  """

  late: np.ndarray
  counts: np.ndarray
  sums: np.ndarray


class Fleet(NamedTuple):
  """All that the loop changes; `faults` are float64 [f, 4].

  A fault is its second, its kind, its replica, and a share or how many
  prefixes. `ended` is room for the requests of a round.
  """

  replicas: tuple
  requests: tuple
  cache: tuple
  sessions: tuple
  totals: Totals
  table: np.ndarray
  faults: np.ndarray
  ended: np.ndarray


def _count_present(totals, now, change):
  totals.sums[AREA] += totals.sums[PRESENT] * (now - totals.sums[SINCE])
  totals.sums[SINCE] = now
  totals.sums[PRESENT] += change


def _route(law, shapes, sizes, policy, fleet, one, now):
  """Gives a request to a replica; returns whether one took it."""
  replicas, requests, totals = fleet.replicas, fleet.requests, fleet.totals
  count = totals.counts[REQUESTS] + totals.counts[MOVED]
  session = requests.session[one]
  digest = policies.mix(requests.character[one], 7)
  replica = policies.pick(
    digest, session, replicas.share, replicas.load, fleet.table, policy, count
  )
  if replica < 0:
    totals.counts[LOST] += 1
    return False
  if policy == policies.STICKY:
    policies.note(fleet.table, session, replica, count)
  rounds.enqueue(replicas, requests, fleet.cache, replica, one)
  if replicas.until[replica] == np.inf:
    rounds.begin(
      law, shapes, sizes, replicas, requests, fleet.cache, replica, now
    )
  else:
    rounds.shorten(sizes, replicas, replica, now)
  return True


def _come(law, shapes, sizes, policy, fleet, one, now):
  """Routes a request that comes."""
  requests, counts = fleet.requests, fleet.totals.counts
  if not _route(law, shapes, sizes, policy, fleet, one, now):
    return False
  counts[REQUESTS] += 1
  _count_present(fleet.totals, now, 1)
  counts[PROMPT] += requests.prompt[one]
  counts[PREFIX] += requests.prefix[one]
  return True


def _count_ended(fleet, one, begin, window):
  """Adds up a request that got its last token."""
  requests, totals = fleet.requests, fleet.totals
  came, first = requests.seconds[one], requests.first[one]
  totals.counts[ENDED] += 1
  totals.sums[STAY] += requests.done[one] - came
  resumed = requests.resumed[one]
  totals.counts[HITS] += resumed > 0
  totals.counts[RESUMED] += resumed
  totals.counts[PREFIX_RESUMED] += min(resumed, requests.prefix[one])
  totals.counts[ANSWER] += requests.answer[one]
  if came >= begin:
    late = first - came
    totals.sums[FIRST] += late
    place = int(np.log(max(late, LEAST) / LEAST) / WIDTH)
    row = min(int((came - begin) / window), len(totals.late) - 1)
    totals.late[row, min(place, BINS - 1)] += 1


def _finish(law, shapes, sizes, flow, fleet, replica, begin, window):
  """Ends a replica's stretch, and begins the next one."""
  replicas, requests, cache = fleet.replicas, fleet.requests, fleet.cache
  now = replicas.until[replica]
  count = rounds.end(sizes, replicas, requests, cache, replica, fleet.ended)
  for place in range(count):
    one = fleet.ended[place]
    _count_ended(fleet, one, begin, window)
    _count_present(fleet.totals, now, -1)
    if flow.sessions > 0:
      goes_on = sessions_lib.go_on(flow, fleet.sessions, one, now)
      if not goes_on:
        entries.forget_session(cache, one)
  rounds.begin(law, shapes, sizes, replicas, requests, cache, replica, now)


def _lose(law, shapes, sizes, flow, policy, fleet, replica, now):
  """Closes a replica, drops its cache, and routes its requests anew."""
  replicas, requests, cache = fleet.replicas, fleet.requests, fleet.cache
  replicas.share[replica] = 0
  first = -1
  for kind in range(2):
    rows = replicas.draws if kind else replicas.prompts
    count = replicas.drawing if kind else replicas.prompting
    for place in range(count[replica]):
      one = rows[replica, place]
      if kind:
        # Rounds that have begun are lost with the replica.
        left = requests.end[one] - replicas.rounds[replica]
        given = requests.answer[one] - left
        requests.prompt[one] += given
        requests.answer[one] = left
      entries.give_back(sizes, replicas, requests, cache, replica, one)
      requests.next[one] = first
      first = one
    count[replica] = 0
  for step in range(2):
    one = first if step else replicas.head[replica]
    if step == 0:
      replicas.head[replica] = replicas.tail[replica] = -1
      entries.clear(replicas, cache, replica)
      replicas.load[replica] = replicas.context[replica] = 0
      replicas.until[replica] = np.inf
    while one >= 0:
      after = requests.next[one]
      fleet.totals.counts[MOVED] += 1
      if not _route(law, shapes, sizes, policy, fleet, one, now):
        _count_present(fleet.totals, now, -1)
        _give_up(flow, fleet, one, now)
      one = after


def _give_up(flow, fleet, one, now):
  """Ends the session of a request that no replica takes."""
  if flow.sessions > 0:
    fleet.sessions.left[one] = 0
    sessions_lib.go_on(flow, fleet.sessions, one, now)
    entries.forget_session(fleet.cache, one)


def _warm(sizes, fleet, replica, count, flow, now):
  """Fills a replica's cache with the prefixes of the first characters."""
  replicas, cache = fleet.replicas, fleet.cache
  for character in range(count):
    if cache.prefix_at[replica, character] >= 0:
      continue
    prefix = sessions_lib.count_prefix(flow, character)
    pages = entries.count_pages(sizes, prefix)
    local = entries.count_local(sizes, prefix, prefix)
    if replicas.free[replica] < pages or replicas.free_local[replica] < local:
      return
    if replicas.unused[replica] < 2:
      return
    entry = entries.make_prefix(
      sizes, replicas, cache, replica, character, prefix, now
    )
    cache.entry.local[replica, entry] = local
    cache.entry.begun[replica, entry] = 1
    replicas.free_local[replica] -= local
    entries.list_entry(replicas, cache, replica, entry)


def _fail(law, shapes, sizes, flow, policy, fleet, fault, now):
  kind, replica = int(fault[1]), int(fault[2])
  if kind == SHARE:
    fleet.replicas.share[replica] = fault[3]
  elif kind == LOSE:
    _lose(law, shapes, sizes, flow, policy, fleet, replica, now)
  elif kind == WARM:
    _warm(sizes, fleet, replica, int(fault[3]), flow, now)
  else:
    fleet.table[:, :] = -1


def _receive(law, shapes, sizes, flow, policy, fleet, given, now):
  """Takes the next request, of a trace or of a session; returns `given`."""
  requests, sessions = fleet.requests, fleet.sessions
  if flow.sessions == 0:
    _come(law, shapes, sizes, policy, fleet, given, now)
    return given + 1
  if sessions.waiting[0] > 0 and sessions.times[0] <= sessions.start[0]:
    slot = sessions_lib.pop(sessions)
  else:
    slot = sessions_lib.begin_session(flow, sessions, requests)
    sessions_lib.plan_next(flow, sessions)
    if sessions.start[0] == np.inf:
      totals = fleet.totals
      totals.sums[LAST] = now
      totals.sums[BUSY] = fleet.replicas.busy.sum()
      totals.sums[GIVEN] = totals.counts[ANSWER]
  if slot < 0:
    fleet.totals.counts[LOST] += 1
    return given
  sessions_lib.draw_request(flow, sessions, requests, slot, now)
  if not _come(law, shapes, sizes, policy, fleet, slot, now):
    _give_up(flow, fleet, slot, now)
  return given


def run(law, shapes, sizes, flow, policy, fleet, begin, window):
  """Runs a fleet until no event is left; returns how many there were.

  Args:
    law: `state.Law`.
    shapes: int64 [n, 2] of a chunk, rows and tokens.
    sizes: `state.Sizes`.
    flow: `sessions.Flow`; without sessions the requests are a trace, in order.
    policy: an index of `policies.NAMES`.
    fleet: what it changes.
    begin, window: the second from which times to the first token count, and
      the seconds of a window.
  """
  until, sessions = fleet.replicas.until, fleet.sessions
  # A constant would have numba compile all functions once more.
  given = fault = events = np.int64(0)
  if flow.sessions > 0:
    sessions_lib.plan_next(flow, sessions)
  while True:
    if flow.sessions > 0:
      comes = min(sessions.start[0], sessions.times[0])
    elif given < len(fleet.requests.seconds):
      comes = fleet.requests.seconds[given]
    else:
      comes = np.inf
    replica, ends = np.int64(0), until[0]
    for place in range(1, len(until)):
      if until[place] < ends:
        replica, ends = place, until[place]
    if comes == np.inf and ends == np.inf:
      return events
    events += 1
    if fault < len(fleet.faults) and fleet.faults[fault, 0] <= min(comes, ends):
      now = fleet.faults[fault, 0]
      _fail(law, shapes, sizes, flow, policy, fleet, fleet.faults[fault], now)
      fault += 1
    elif comes <= ends:
      given = _receive(law, shapes, sizes, flow, policy, fleet, given, comes)
    else:
      _finish(law, shapes, sizes, flow, fleet, replica, begin, window)

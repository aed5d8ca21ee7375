"""The event loop of a simulated fleet.

An event is a fault, a request that comes, or the end of a replica's stretch of
rounds; of equal times they go in this order. `policies.pick` routes a request
when it comes. A replica that is lost has its requests routed anew, with the
tokens that were drawn at the prompt's end.
"""

from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.fleet import entries
from kaiju_jax.fleet import rounds
from kaiju_jax.fleet import sessions as sessions_lib
from kaiju_jax.fleet import state
from kaiju_jax.serving.routing import policies

# Kinds of faults: a replica's share changes; it loses its cache and requests;
# it fills its cache with the most popular prefixes; the table of sessions is
# emptied.
SHARE, LOSE, WARM, FORGET = range(4)
# Times to the first token are counted in bins that are .45 % wide.
BINS, LEAST, WIDTH = 4096, 1e-4, 0.0045
WINDOW = 3600.0  # Seconds of a window of arrivals, which are counted apart.
# Places of `Totals.counts`: requests, those that resume anything, tokens of
# prompts and those resumed, of prefixes and those resumed, and of answers;
# requests that moved to another replica, that no replica took, that ended.
REQUESTS, HITS, PROMPT, RESUMED, PREFIX, PREFIX_RESUMED, ANSWER = range(7)
MOVED, LOST, ENDED = 7, 8, 9
# Places of `Totals.sums`: seconds to first tokens and to last ones; the
# integral over time of the requests present, how many those are, and since
# when; the second at which the last session began, and the busy seconds and
# tokens of answers until then.
FIRST, STAY, AREA, PRESENT, SINCE, LAST, BUSY, GIVEN = range(8)


class Totals(NamedTuple):
  """What a run adds up."""

  # int64 [windows, BINS], requests by the window in which they came and the
  # time to the first token.
  late: np.ndarray
  counts: np.ndarray  # int64 [10].
  sums: np.ndarray  # float64 [8].


class Fleet(NamedTuple):
  """All that the loop reads and changes."""

  world: state.World
  # Without sessions the requests are a trace, in order.
  flow: sessions_lib.Flow
  sessions: sessions_lib.Sessions
  totals: Totals
  policy: int  # An index of `policies.NAMES`.
  table: np.ndarray  # The router's table of sessions.
  faults: np.ndarray  # float64 [f, 4]: second, kind, replica, share or count.
  finished: np.ndarray  # Room for the requests that end in one round.
  begin: float  # The second from which times to the first token count.


def _count_present(totals, now, change):
  totals.sums[AREA] += totals.sums[PRESENT] * (now - totals.sums[SINCE])
  totals.sums[SINCE] = now
  totals.sums[PRESENT] += change


def _route(fleet, request, now):
  """Gives a request to a replica; returns whether one took it."""
  world, totals, policy = fleet.world, fleet.totals, fleet.policy
  replicas = world.replicas
  count = totals.counts[REQUESTS] + totals.counts[MOVED]
  session = world.requests.session[request]
  digest = policies.mix(world.requests.character[request], 7)
  replica = policies.pick(
    digest, session, replicas.share, replicas.load, fleet.table, policy, count
  )
  if replica < 0:
    totals.counts[LOST] += 1
    return False
  if policy == policies.STICKY:
    policies.note(fleet.table, session, replica, count)
  rounds.enqueue(world, replica, request)
  if replicas.stretch_end[replica] == np.inf:
    rounds.begin_stretch(world, replica, now)
  else:
    rounds.cut_stretch(world, replica, now)
  return True


def _arrive(fleet, request, now):
  """Routes a request that comes; returns whether a replica took it."""
  requests, counts = fleet.world.requests, fleet.totals.counts
  if not _route(fleet, request, now):
    return False
  counts[REQUESTS] += 1
  _count_present(fleet.totals, now, 1)
  counts[PROMPT] += requests.prompt[request]
  counts[PREFIX] += requests.prefix[request]
  return True


def _count_finished(fleet, request):
  """Adds up a request that got its last token."""
  requests, totals = fleet.world.requests, fleet.totals
  came, first = requests.seconds[request], requests.first_token[request]
  totals.counts[ENDED] += 1
  totals.sums[STAY] += requests.last_token[request] - came
  resumed = requests.resumed[request]
  totals.counts[HITS] += resumed > 0
  totals.counts[RESUMED] += resumed
  totals.counts[PREFIX_RESUMED] += min(resumed, requests.prefix[request])
  totals.counts[ANSWER] += requests.answer[request]
  if came >= fleet.begin:
    late = first - came
    totals.sums[FIRST] += late
    place = int(np.log(max(late, LEAST) / LEAST) / WIDTH)
    row = min(int((came - fleet.begin) / WINDOW), len(totals.late) - 1)
    totals.late[row, min(place, BINS - 1)] += 1


def _end_stretch(fleet, replica):
  """Ends a replica's stretch, and begins the next one."""
  world = fleet.world
  now = world.replicas.stretch_end[replica]
  count = rounds.end_stretch(world, replica, fleet.finished)
  for place in range(count):
    request = fleet.finished[place]
    _count_finished(fleet, request)
    _count_present(fleet.totals, now, -1)
    if fleet.flow.sessions > 0:
      goes_on = sessions_lib.plan_request(
        fleet.flow, fleet.sessions, request, now
      )
      if not goes_on:
        entries.forget_session(world.cache, request)
  rounds.begin_stretch(world, replica, now)


def _lose(fleet, replica, now):
  """Closes a replica, drops its cache, and routes its requests anew."""
  world = fleet.world
  replicas, requests = world.replicas, world.requests
  replicas.share[replica] = 0
  running = -1  # A list of requests, by `next_in_queue`.
  for kind in range(2):
    rows = replicas.decoding if kind else replicas.prefilling
    count = replicas.decode_count if kind else replicas.prefill_count
    for place in range(count[replica]):
      request = rows[replica, place]
      if kind:
        # Rounds that have begun are lost with the replica.
        left = requests.last_round[request] - replicas.rounds_run[replica]
        drawn = requests.answer[request] - left
        requests.prompt[request] += drawn
        requests.answer[request] = left
      entries.release_row(world, replica, request)
      requests.next_in_queue[request] = running
      running = request
    count[replica] = 0
  waiting = replicas.queue_head[replica]
  replicas.queue_head[replica] = replicas.queue_tail[replica] = -1
  entries.clear(world, replica)
  replicas.load[replica] = replicas.context_tokens[replica] = 0
  replicas.stretch_end[replica] = np.inf
  for request in (waiting, running):
    while request >= 0:
      after = requests.next_in_queue[request]
      fleet.totals.counts[MOVED] += 1
      if not _route(fleet, request, now):
        _count_present(fleet.totals, now, -1)
        _abandon(fleet, request, now)
      request = after


def _abandon(fleet, request, now):
  """Ends the session of a request that no replica takes."""
  if fleet.flow.sessions > 0:
    fleet.sessions.left[request] = 0
    sessions_lib.plan_request(fleet.flow, fleet.sessions, request, now)
    entries.forget_session(fleet.world.cache, request)


def _warm(fleet, replica, count, now):
  """Fills a replica's cache with the prefixes of the first characters."""
  world = fleet.world
  replicas, cache, sizes = world.replicas, world.cache, world.sizes
  for character in range(count):
    if cache.prefix_at[replica, character] >= 0:
      continue
    prefix = sessions_lib.count_prefix(fleet.flow, character)
    local = entries.count_local(sizes, prefix, prefix)
    if (
      replicas.free_pages[replica] < entries.count_pages(sizes, prefix)
      or replicas.free_local_pages[replica] < local
      or replicas.spare_count[replica] < 2
    ):
      return
    entry = entries.make_prefix(world, replica, character, prefix, now)
    cache.entry.local_pages[replica, entry] = local
    cache.entry.sessions_begun[replica, entry] = 1
    replicas.free_local_pages[replica] -= local
    entries.list_entry(world, replica, entry)


def _apply_fault(fleet, fault):
  now, kind, replica = fault[0], int(fault[1]), int(fault[2])
  if kind == SHARE:
    fleet.world.replicas.share[replica] = fault[3]
  elif kind == LOSE:
    _lose(fleet, replica, now)
  elif kind == WARM:
    _warm(fleet, replica, int(fault[3]), now)
  else:
    fleet.table[:, :] = -1


def _receive_drawn(fleet, now):
  """Takes the next request of a session, which may be a new one."""
  flow, sessions, totals = fleet.flow, fleet.sessions, fleet.totals
  requests = fleet.world.requests
  if sessions.waiting[0] > 0 and sessions.times[0] <= sessions.start[0]:
    slot = sessions_lib.pop(sessions)
  else:
    slot = sessions_lib.begin_session(flow, sessions, requests)
    sessions_lib.plan_session(flow, sessions)
    if sessions.start[0] == np.inf:
      totals.sums[LAST] = now
      totals.sums[BUSY] = fleet.world.replicas.busy_seconds.sum()
      totals.sums[GIVEN] = totals.counts[ANSWER]
  if slot < 0:
    totals.counts[LOST] += 1
    return
  sessions_lib.draw_request(flow, sessions, requests, slot, now)
  if not _arrive(fleet, slot, now):
    _abandon(fleet, slot, now)


def run(fleet: Any) -> np.int64:
  """Runs a fleet until no event is left; returns how many there were."""
  stretch_end, sessions = fleet.world.replicas.stretch_end, fleet.sessions
  is_drawn, trace = fleet.flow.sessions > 0, fleet.world.requests.seconds
  # A constant would have numba compile all functions once more.
  given = fault = events = np.int64(0)
  if is_drawn:
    sessions_lib.plan_session(fleet.flow, sessions)
  while True:
    if is_drawn:
      comes = min(sessions.start[0], sessions.times[0])
    elif given < len(trace):
      comes = trace[given]
    else:
      comes = np.inf
    replica, ends = np.int64(0), stretch_end[0]
    for place in range(1, len(stretch_end)):
      if stretch_end[place] < ends:
        replica, ends = place, stretch_end[place]
    if comes == np.inf and ends == np.inf:
      return events
    events += 1
    if fault < len(fleet.faults) and fleet.faults[fault, 0] <= min(comes, ends):
      _apply_fault(fleet, fleet.faults[fault])
      fault += 1
    elif comes <= ends:
      if is_drawn:
        _receive_drawn(fleet, comes)
      else:
        _arrive(fleet, given, comes)
        given += 1
    else:
      _end_stretch(fleet, replica)

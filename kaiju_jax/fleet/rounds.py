"""Simulates a replica's continuous batching, as `decoding/engine` does it.

A round is one decode step of every row that decodes, and one chunk that
prefills prompts, in the shape that `schedule.batch` chooses. A prompt whose
last chunk runs gets its first token in that round. A chunk ends where the
character's prefix ends, so that the cache can record the prefix. Requests get
rows in the order in which they came; one whose prefix another prompt prefills
now waits for it.

Every function reads and changes the arrays of `world` (`state.World`), in which
`replica` and `request` are numbers. A round takes the seconds of `world.law`
(`state.Law`), which a calibration fitted to a measured engine. Times are in
seconds of the simulation.

A *stretch* is the rounds with one batch: until an answer, a prompt, its prefix
or its whole chunks end, or a row is filled; one round if several prompts are
prefilling. Its k-th round takes first_round_seconds + (k − 1) ·
seconds_per_round_increment.
"""

import numpy as np

from kaiju_jax.fleet import entries
from kaiju_jax.fleet import state

# As in `decoding/engine/schedule.py`, but for the first: waiting requests that
# are looked past; rounds after which a prompt goes first; a round's fixed cost
# in tokens.
_OVERTAKES, _MOST_SKIPPED, _ROUND_TOKENS = 8, 3, 64


def _sum_seconds(replicas, replica, count):
  """Returns the seconds of the first `count` rounds of the stretch."""
  increment = replicas.seconds_per_round_increment[replica]
  return replicas.first_round_seconds[replica] * count + increment * (
    count * (count - 1) // 2
  )


def _count_rounds(replicas, replica, seconds):
  """Returns the fewest rounds of a stretch that take `seconds`, at least 1."""
  first = replicas.first_round_seconds[replica]
  increment = replicas.seconds_per_round_increment[replica]
  if increment > 0:
    half = first - increment / 2
    root = np.sqrt(half * half + 2 * increment * seconds)
    estimate = (root - half) / increment
  else:
    estimate = seconds / first
  count = max(1, int(min(estimate, 1e9)))
  while _sum_seconds(replicas, replica, count) < seconds:
    count += 1
  return count


def enqueue(world: state.World, replica: int, request: int) -> None:
  """Appends the request to the replica's queue, and adds to its load."""
  replicas, requests = world.replicas, world.requests
  requests.replica[request] = replica
  requests.next_in_queue[request] = -1
  if replicas.queue_head[replica] < 0:
    replicas.queue_head[replica] = request
  else:
    requests.next_in_queue[replicas.queue_tail[replica]] = request
  replicas.queue_tail[replica] = request
  resumed = entries.count_resumable(world, replica, request)
  requests.pending_tokens[request] = requests.prompt[request] - resumed
  replicas.load[replica] += requests.pending_tokens[request] + 1


def _waits_for_prefix(world, replica, request):
  """Returns whether a prefilling prompt will cache more of its prefix."""
  replicas, requests = world.replicas, world.requests
  resumed = -1
  for place in range(replicas.prefill_count[replica]):
    other = replicas.prefilling[replica, place]
    if requests.character[other] != requests.character[request]:
      continue
    prefix = requests.prefix[other]
    if requests.prefilled[other] < prefix < requests.prompt[other]:
      if resumed < 0:
        resumed = entries.count_resumable(world, replica, request)
      shared = min(prefix, requests.prompt[request] - 1)
      if shared >= resumed + world.sizes.page:
        return True
  return False


def _admit_waiting(world, replica, now):
  """Gives free rows to waiting requests, in the order in which they came."""
  replicas, requests = world.replicas, world.requests
  running = replicas.decode_count[replica] + replicas.prefill_count[replica]
  rows = world.sizes.rows - running
  previous, request = -1, replicas.queue_head[replica]
  tried, limit = 0, _OVERTAKES + rows
  while request >= 0 and rows > 0 and tried < limit:
    tried += 1
    following = requests.next_in_queue[request]
    if _waits_for_prefix(world, replica, request):
      previous, request = request, following
      continue
    if not entries.admit(world, replica, request, now):
      break
    rows -= 1
    if previous < 0:
      replicas.queue_head[replica] = following
    else:
      requests.next_in_queue[previous] = following
    if following < 0:
      replicas.queue_tail[replica] = previous
    left = requests.prompt[request] - requests.prefilled[request]
    replicas.load[replica] += left - requests.pending_tokens[request]
    requests.pending_tokens[request] = left
    requests.rounds_skipped[request] = 0
    replicas.prefilling[replica, replicas.prefill_count[replica]] = request
    replicas.prefill_count[replica] += 1
    request = following


def _precedes(requests, one, other):
  """Returns whether a prompt is prefilled before another.

  The shorter rest goes first, after prompts that were skipped too often.
  """
  skipped = requests.rounds_skipped[one], requests.rounds_skipped[other]
  if max(skipped[0], skipped[1]) >= _MOST_SKIPPED:
    return skipped[0] > skipped[1]
  left = requests.prompt[one] - requests.prefilled[one]
  return left < requests.prompt[other] - requests.prefilled[other]


def _choose_chunk(world, replica):
  """Chooses the prompts of the next chunk; returns the tokens of its shape.

  The chunk has the shape with the most useful tokens for its size.
  """
  shapes, replicas, requests = world.shapes, world.replicas, world.requests
  order = replicas.chunk_order[replica]
  count = replicas.prefill_count[replica]
  for place in range(count):
    request, at = replicas.prefilling[replica, place], place
    while at > 0 and _precedes(
      requests, request, replicas.prefilling[replica, order[at - 1]]
    ):
      order[at] = order[at - 1]
      at -= 1
    order[at] = place
  best, most, least = 0, -1.0, 0
  for shape in range(len(shapes)):
    rows, size = shapes[shape, 0], shapes[shape, 1]
    tokens = 0
    for place in range(min(rows, count)):
      request = replicas.prefilling[replica, order[place]]
      left = requests.prompt[request] - requests.prefilled[request]
      tokens += min(size, left)
    value = tokens / (rows * size + _ROUND_TOKENS)
    if value > most or (value == most and rows * size < least):
      best, most, least = shape, value, rows * size
  replicas.chunk_rows[replica] = min(shapes[best, 0], count)
  replicas.chunk_tokens[replica] = shapes[best, 1]
  return least


def _count_to_record(requests, request):
  """Returns the tokens to prefill until the prefix ends, or the prompt."""
  prefilled, prefix = requests.prefilled[request], requests.prefix[request]
  if prefilled < prefix < requests.prompt[request]:
    return prefix - prefilled
  return requests.prompt[request] - prefilled


def begin_stretch(world: state.World, replica: int, now: float) -> None:
  """Schedules the next change of the batch; idles if the batch is empty."""
  law, replicas, requests = world.law, world.replicas, world.requests
  _admit_waiting(world, replica, now)
  rows = replicas.decode_count[replica]
  prompts = replicas.prefill_count[replica]
  replicas.stretch_begin[replica] = now
  replicas.chunk_rows[replica] = 0
  if rows == 0 and prompts == 0:
    replicas.stretch_end[replica] = np.inf
    return
  context = replicas.context_tokens[replica]
  seconds = law.fixed + law.row * rows + law.context * context
  increment, count = law.context * rows, np.int64(2**40)
  for place in range(rows):
    request = replicas.decoding[replica, place]
    left = requests.last_round[request] - replicas.rounds_run[replica]
    count = min(count, left)
  if prompts > 0:
    seconds += law.chunk + law.token * _choose_chunk(world, replica)
    size, tokens = replicas.chunk_tokens[replica], np.int64(0)
    for place in range(replicas.chunk_rows[replica]):
      at = replicas.chunk_order[replica, place]
      request = replicas.prefilling[replica, at]
      tokens = min(size, _count_to_record(requests, request))
      seconds += law.attended * tokens * requests.prefilled[request]
    if prompts > 1:
      count = np.int64(1)
    else:
      # Whole chunks of one prompt differ only in the tokens they attend to.
      chunks = max(1, _count_to_record(requests, request) // size)
      count = min(count, np.int64(chunks))
      increment += law.attended * tokens * tokens
  replicas.first_round_seconds[replica] = seconds
  replicas.seconds_per_round_increment[replica] = increment
  replicas.stretch_rounds[replica] = count
  _set_end(replicas, replica)


def _set_end(replicas, replica):
  count = replicas.stretch_rounds[replica]
  seconds = _sum_seconds(replicas, replica, count)
  replicas.stretch_end[replica] = replicas.stretch_begin[replica] + seconds


def cut_stretch(world: state.World, replica: int, now: float) -> None:
  """Ends the stretch with its present round, if a row is free then."""
  replicas = world.replicas
  running = replicas.decode_count[replica] + replicas.prefill_count[replica]
  if running < world.sizes.rows:
    elapsed = now - replicas.stretch_begin[replica]
    count = _count_rounds(replicas, replica, elapsed)
    if count < replicas.stretch_rounds[replica]:
      replicas.stretch_rounds[replica] = count
      _set_end(replicas, replica)


def end_stretch(world: state.World, replica: int, finished: int):
  """Ends a stretch, and frees the rows of requests that are complete.

  Writes these requests into `finished`, and returns their number.
  """
  replicas, requests = world.replicas, world.requests
  count, now = replicas.stretch_rounds[replica], replicas.stretch_end[replica]
  replicas.busy_seconds[replica] += now - replicas.stretch_begin[replica]
  replicas.rounds_run[replica] += count
  replicas.context_tokens[replica] += count * replicas.decode_count[replica]
  for place in range(replicas.prefill_count[replica]):
    requests.rounds_skipped[replicas.prefilling[replica, place]] += count
  for place in range(replicas.chunk_rows[replica]):
    at = replicas.chunk_order[replica, place]
    request = replicas.prefilling[replica, at]
    size = replicas.chunk_tokens[replica]
    tokens = min(size, _count_to_record(requests, request)) * count
    requests.prefilled[request] += tokens
    requests.rounds_skipped[request] = 0
    requests.pending_tokens[request] -= tokens
    replicas.load[replica] -= tokens
    prefix = requests.prefix[request]
    if requests.prefilled[request] == prefix < requests.prompt[request]:
      entries.record_prefix(world, replica, request, now)
  _begin_decoding(replicas, requests, replica, now)
  return _release_finished(world, replica, finished, now)


def _begin_decoding(replicas, requests, replica, now):
  """Moves prompts that are complete from `prefilling` to `decoding`."""
  kept = 0
  for place in range(replicas.prefill_count[replica]):
    request = replicas.prefilling[replica, place]
    if requests.prefilled[request] < requests.prompt[request]:
      replicas.prefilling[replica, kept] = request
      kept += 1
      continue
    if np.isnan(requests.first_token[request]):
      requests.first_token[request] = now
    left = requests.answer[request] - 1
    requests.last_round[request] = replicas.rounds_run[replica] + left
    replicas.decoding[replica, replicas.decode_count[replica]] = request
    replicas.decode_count[replica] += 1
    replicas.context_tokens[replica] += requests.prompt[request]
  replicas.prefill_count[replica] = kept


def _release_finished(world, replica, finished, now):
  """Frees the rows of complete answers; returns how many there are."""
  replicas, requests = world.replicas, world.requests
  kept = found = 0
  for place in range(replicas.decode_count[replica]):
    request = replicas.decoding[replica, place]
    if requests.last_round[request] > replicas.rounds_run[replica]:
      replicas.decoding[replica, kept] = request
      kept += 1
      continue
    requests.last_token[request] = now
    replicas.load[replica] -= 1
    length = requests.prompt[request] + requests.answer[request] - 1
    replicas.context_tokens[replica] -= length
    entries.keep_session(world, replica, request, now)
    finished[found] = request
    found += 1
  replicas.decode_count[replica] = kept
  return found

"""Replicas that go in rounds, as `decoding/engine` does.

In a round all rows that draw take a step, and one chunk of prompts runs, in the
shape that `schedule.batch` chooses. A prompt whose last chunk runs draws its
first token in that round. A chunk ends where the character's prefix ends, so
that it is recorded. Requests join in the order in which they came; one whose
prefix another prompt runs now waits for it.

Between changes of who takes part, rounds are counted, not stepped: the k-th
round of a stretch takes step + (k − 1) · growth seconds.
"""

import numpy as np

from kaiju_jax.fleet import entries

# As in `decoding/engine/schedule.py`.
_OVERTAKES, _PASSES, _ROUND = 8, 3, 64


def add_up(replicas, replica, count):
  """Returns the seconds of a stretch's first `count` rounds."""
  growth = replicas.growth[replica] * (count * (count - 1) // 2)
  return replicas.step[replica] * count + growth


def count_until(replicas, replica, seconds):
  """Returns the least count of rounds that take so many seconds, at least 1."""
  step, growth = replicas.step[replica], replicas.growth[replica]
  if growth > 0:
    half = step - growth / 2
    found = (np.sqrt(half * half + 2 * growth * seconds) - half) / growth
  else:
    found = seconds / step
  count = max(1, int(min(found, 1e9)))
  while add_up(replicas, replica, count) < seconds:
    count += 1
  return count


def enqueue(replicas, requests, cache, replica, one):
  """Lets a request wait at a replica."""
  requests.replica[one], requests.next[one] = replica, -1
  if replicas.head[replica] < 0:
    replicas.head[replica] = one
  else:
    requests.next[replicas.tail[replica]] = one
  replicas.tail[replica] = one
  resumed = entries.count_resumable(cache, requests, replica, one)
  requests.owed[one] = requests.prompt[one] - resumed
  replicas.load[replica] += requests.owed[one] + 1


def _follows(sizes, replicas, requests, cache, replica, one):
  """Returns whether a prompt that runs will record more of this one."""
  resumed = -1
  for place in range(replicas.prompting[replica]):
    other = replicas.prompts[replica, place]
    if requests.character[other] != requests.character[one]:
      continue
    prefix = requests.prefix[other]
    if requests.held[other] < prefix < requests.prompt[other]:
      if resumed < 0:
        resumed = entries.count_resumable(cache, requests, replica, one)
      if min(prefix, requests.prompt[one] - 1) >= resumed + sizes.page:
        return True
  return False


def join(sizes, replicas, requests, cache, replica, now):
  """Gives rows to waiting requests, in the order in which they came."""
  before, one, seen = -1, replicas.head[replica], 0
  rows = sizes.rows - replicas.drawing[replica] - replicas.prompting[replica]
  most = _OVERTAKES + rows
  while one >= 0 and rows > 0 and seen < most:
    seen += 1
    after = requests.next[one]
    if _follows(sizes, replicas, requests, cache, replica, one):
      before, one = one, after
      continue
    if not entries.admit(sizes, replicas, requests, cache, replica, one, now):
      break
    rows -= 1
    if before < 0:
      replicas.head[replica] = after
    else:
      requests.next[before] = after
    if after < 0:
      replicas.tail[replica] = before
    left = requests.prompt[one] - requests.held[one]
    replicas.load[replica] += left - requests.owed[one]
    requests.owed[one] = left
    requests.passed[one] = 0
    replicas.prompts[replica, replicas.prompting[replica]] = one
    replicas.prompting[replica] += 1
    one = after


def _is_sooner(requests, one, other):
  """Returns whether a prompt's chunk goes before another's."""
  passed, than = requests.passed[one], requests.passed[other]
  if passed >= _PASSES or than >= _PASSES:
    return passed > than
  left = requests.prompt[one] - requests.held[one]
  return left < requests.prompt[other] - requests.held[other]


def choose_chunk(shapes, replicas, requests, replica):
  """Chooses the prompts of the next chunk; returns the shape's number.

  It puts their places among `prompts` into `part`'s first entries.
  """
  order = replicas.part[replica]
  count = replicas.prompting[replica]
  for place in range(count):
    one, at = replicas.prompts[replica, place], place
    while at > 0 and _is_sooner(
      requests, one, replicas.prompts[replica, order[at - 1]]
    ):
      order[at] = order[at - 1]
      at -= 1
    order[at] = place
  best, most, least = 0, -1.0, 0
  for shape in range(len(shapes)):
    rows, size = shapes[shape, 0], shapes[shape, 1]
    tokens = 0
    for place in range(min(rows, count)):
      one = replicas.prompts[replica, order[place]]
      tokens += min(size, requests.prompt[one] - requests.held[one])
    value = tokens / (rows * size + _ROUND)
    if value > most or (value == most and rows * size < least):
      best, most, least = shape, value, rows * size
  replicas.chosen[replica] = min(shapes[best, 0], count)
  return best


def count_to_stop(requests, one):
  """Returns the tokens of a prompt before its next point."""
  held, prefix = requests.held[one], requests.prefix[one]
  if held < prefix < requests.prompt[one]:
    return prefix - held
  return requests.prompt[one] - held


def begin(law, shapes, sizes, replicas, requests, cache, replica, now):
  """Begins a stretch of rounds, or rests if nothing runs."""
  join(sizes, replicas, requests, cache, replica, now)
  rows, prompts = replicas.drawing[replica], replicas.prompting[replica]
  replicas.clock[replica] = now
  replicas.chosen[replica] = 0
  if rows == 0 and prompts == 0:
    replicas.until[replica] = np.inf
    return
  step = law.fixed + law.row * rows + law.context * replicas.context[replica]
  growth, count = law.context * rows, np.int64(2**40)
  for place in range(rows):
    one = replicas.draws[replica, place]
    count = min(count, requests.end[one] - replicas.rounds[replica])
  if prompts > 0:
    shape = choose_chunk(shapes, replicas, requests, replica)
    size = shapes[shape, 1]
    step += law.chunk + law.token * (shapes[shape, 0] * size)
    for place in range(replicas.chosen[replica]):
      one = replicas.prompts[replica, replicas.part[replica, place]]
      tokens = min(size, count_to_stop(requests, one))
      step += law.attended * tokens * requests.held[one]
    if prompts > 1:
      count = np.int64(1)
    else:
      # Whole chunks of one prompt are alike.
      count = min(count, np.int64(max(1, count_to_stop(requests, one) // size)))
      growth += law.attended * tokens * tokens
    replicas.chunk[replica] = size
  replicas.step[replica], replicas.growth[replica] = step, growth
  replicas.count[replica] = count
  replicas.until[replica] = now + add_up(replicas, replica, count)


def shorten(sizes, replicas, replica, now):
  """Ends a stretch with its present round, if a new request may join then."""
  running = replicas.drawing[replica] + replicas.prompting[replica]
  if running < sizes.rows:
    seconds = now - replicas.clock[replica]
    count = count_until(replicas, replica, seconds)
    if count < replicas.count[replica]:
      replicas.count[replica] = count
      begun = replicas.clock[replica]
      replicas.until[replica] = begun + add_up(replicas, replica, count)


def end(sizes, replicas, requests, cache, replica, ended):
  """Ends a stretch; writes requests that got their last token into `ended`.

  Returns how many they are. Their rows are free.
  """
  count, now = replicas.count[replica], replicas.until[replica]
  replicas.busy[replica] += now - replicas.clock[replica]
  replicas.rounds[replica] += count
  replicas.context[replica] += count * replicas.drawing[replica]
  for place in range(replicas.prompting[replica]):
    requests.passed[replicas.prompts[replica, place]] += count
  for place in range(replicas.chosen[replica]):
    one = replicas.prompts[replica, replicas.part[replica, place]]
    tokens = min(replicas.chunk[replica], count_to_stop(requests, one)) * count
    requests.held[one] += tokens
    requests.passed[one] = 0
    requests.owed[one] -= tokens
    replicas.load[replica] -= tokens
    if requests.held[one] == requests.prefix[one] < requests.prompt[one]:
      entries.record_prefix(sizes, replicas, requests, cache, replica, one, now)
  _draw_first(replicas, requests, replica, now)
  return _close(sizes, replicas, requests, cache, replica, ended, now)


def _draw_first(replicas, requests, replica, now):
  """Lets prompts that have run draw, and closes up the others."""
  kept = 0
  for place in range(replicas.prompting[replica]):
    one = replicas.prompts[replica, place]
    if requests.held[one] < requests.prompt[one]:
      replicas.prompts[replica, kept] = one
      kept += 1
      continue
    if np.isnan(requests.first[one]):
      requests.first[one] = now
    requests.end[one] = replicas.rounds[replica] + requests.answer[one] - 1
    replicas.draws[replica, replicas.drawing[replica]] = one
    replicas.drawing[replica] += 1
    replicas.context[replica] += requests.prompt[one]
  replicas.prompting[replica] = kept


def _close(sizes, replicas, requests, cache, replica, ended, now):
  kept = found = 0
  for place in range(replicas.drawing[replica]):
    one = replicas.draws[replica, place]
    if requests.end[one] > replicas.rounds[replica]:
      replicas.draws[replica, kept] = one
      kept += 1
      continue
    requests.done[one] = now
    replicas.load[replica] -= 1
    replicas.context[replica] -= requests.prompt[one] + requests.answer[one] - 1
    entries.leave(sizes, replicas, requests, cache, replica, one, now)
    ended[found] = one
    found += 1
  replicas.drawing[replica] = kept
  return found

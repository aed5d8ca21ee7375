"""Sessions that are drawn while they run, so that ten millions need no trace.

Sessions begin as a Poisson process whose rate follows the day, with a peak of
`peak` times the mean; each draws its character by Zipf's law and a geometric
number of messages. A message follows the answer to the one before it after a
log-normal pause. A swipe requests another answer to the same message. A text
that outgrows `context` drops half of its history, and what was cached of it.

Every draw hashes the seed, the session's number and a counter: the same numbers
in the same order give the same sessions, whatever serves them. The day's shape
and the ranges of prefixes are source 003's; all else is our guess, as in
`people.py`.
"""

import math
from typing import NamedTuple

import numpy as np

from kaiju_jax.serving.routing import policies

_DAY = 86_400.0


class Flow(NamedTuple):
  """The parameters of drawn sessions."""

  seed: int
  sessions: int  # How many begin; 0 for a trace, whose requests are given.
  rate: float  # Sessions that begin per second, on average over a day.
  peak: float  # The rate at the day's peak over the mean, 1 to 2.
  hour: float  # The hour of the peak.
  messages: float  # Mean requests of a session.
  swipes: float  # Fraction of the requests behind the first that are swipes.
  # Median seconds between an answer and the next request, and the standard
  # deviation of their logarithm.
  think: float
  think_spread: float
  message: float  # Median tokens.
  answer: float  # Median tokens.
  spread: float  # The deviation of the logarithm of both.
  longest: int  # Most tokens of a message or an answer.
  context: int  # Most tokens of a prompt and its answer.
  low: float  # Fewest tokens of a prefix, log-uniform up to `high`.
  high: float


class Sessions(NamedTuple):
  """Live sessions, arrays [s], and the times of their next requests."""

  number: np.ndarray
  turn: np.ndarray
  left: np.ndarray  # Requests to come.
  length: np.ndarray  # Tokens of the text so far.
  spare: np.ndarray  # Unused slots.
  # A heap of `waiting` times of next requests, and whose they are.
  times: np.ndarray
  slots: np.ndarray
  waiting: np.ndarray
  # Sessions begun, live, most live at a time; candidates of a beginning.
  counts: np.ndarray
  start: np.ndarray  # When the next session begins.
  ends: np.ndarray  # The characters' cumulative law.


def make_sessions(slots: int, ends: np.ndarray) -> Sessions:
  """Returns no live sessions, of at most `slots`."""
  return Sessions(
    number=np.zeros(slots, np.int64),
    turn=np.zeros(slots, np.int64),
    left=np.zeros(slots, np.int64),
    length=np.zeros(slots, np.int64),
    spare=np.arange(slots, dtype=np.int64),
    times=np.full(slots + 1, np.inf),
    slots=np.zeros(slots + 1, np.int64),
    counts=np.zeros(4, np.int64),
    waiting=np.zeros(1, np.int64),
    start=np.zeros(1),
    ends=ends,
  )


def make_law(characters: int, exponent: float) -> np.ndarray:
  """Returns the cumulative probabilities of Zipf's law, float64 [c]."""
  weight = np.arange(1, characters + 1) ** -float(exponent)
  return np.cumsum(weight / weight.sum())


def _draw(stream, number, turn):
  """Returns a uniform number in (0, 1).

  Streams are sums, not constants: numba compiles a function per constant.
  """
  seed = policies.mix(policies.mix(stream, number), turn)
  return (seed + 0.5) / 4294967296.0


def _draw_normal(stream, number, turn):
  radius = math.sqrt(-2 * math.log(_draw(stream, number, turn)))
  return radius * math.cos(2 * math.pi * _draw(stream + 1, number, turn))


def _draw_tokens(flow, stream, median, number, turn):
  size = median * math.exp(flow.spread * _draw_normal(stream, number, turn))
  return max(1, min(flow.longest, int(size)))


def count_prefix(flow, character: int) -> int:
  """Returns the tokens of a character's prefix."""
  low, high = math.log(flow.low), math.log(flow.high)
  part = _draw(16 * flow.seed, character, character)
  # Rounding may take a token from equal bounds.
  return max(1, int(math.exp(low + (high - low) * part) + 1e-6))


def plan_session(flow, sessions) -> None:
  """Draws when the next session begins; infinity after the last one."""
  if sessions.counts[0] >= flow.sessions:
    sessions.start[0] = np.inf
    return
  now = sessions.start[0]
  while True:
    count = sessions.counts[3]
    sessions.counts[3] += 1
    now -= math.log(_draw(16 * flow.seed + 1, count, count)) / (
      flow.rate * flow.peak
    )
    phase = 2 * math.pi * (now / _DAY - flow.hour / 24)
    rate = 1 + (flow.peak - 1) * math.cos(phase)
    if _draw(16 * flow.seed + 2, count, count) * flow.peak < rate:
      sessions.start[0] = now
      return


def push(sessions, time: float, slot: int) -> None:
  """Puts a session's next request into the heap."""
  place = sessions.waiting[0]
  sessions.waiting[0] = place + 1
  while place > 0:
    above = (place - 1) >> 1
    if sessions.times[above] <= time:
      break
    sessions.times[place] = sessions.times[above]
    sessions.slots[place] = sessions.slots[above]
    place = above
  sessions.times[place] = time
  sessions.slots[place] = slot


def pop(sessions):
  """Takes the session whose request comes first."""
  found = sessions.slots[0]
  last = sessions.waiting[0] - 1
  sessions.waiting[0] = last
  time, slot = sessions.times[last], sessions.slots[last]
  sessions.times[last] = np.inf
  place = 0
  while 2 * place + 1 < last:
    below = 2 * place + 1
    if below + 1 < last and sessions.times[below + 1] < sessions.times[below]:
      below += 1
    if sessions.times[below] >= time:
      break
    sessions.times[place] = sessions.times[below]
    sessions.slots[place] = sessions.slots[below]
    place = below
  if last > 0:
    sessions.times[place] = time
    sessions.slots[place] = slot
  return found


def begin_session(flow, sessions, requests):
  """Draws a session; returns its slot, or −1 if too many are live."""
  number, live = sessions.counts[0], sessions.counts[1]
  sessions.counts[0] += 1
  if live == len(sessions.spare):
    return -1
  slot = sessions.spare[live]
  sessions.counts[1] = live + 1
  sessions.counts[2] = max(sessions.counts[2], live + 1)
  sessions.number[slot], sessions.turn[slot] = number, 0
  sessions.length[slot] = 0
  left = 1
  if flow.messages > 1:
    drawn = math.log(_draw(16 * flow.seed + 3, number, number))
    left += int(drawn / math.log(1 - 1 / flow.messages))
  sessions.left[slot] = left
  character = np.searchsorted(
    sessions.ends, _draw(16 * flow.seed + 4, number, number)
  )
  character = min(character, len(sessions.ends) - 1)
  requests.character[slot] = character
  requests.prefix[slot] = count_prefix(flow, character)
  requests.session[slot] = slot
  return slot


def draw_request(flow, sessions, requests, slot: int, now: float) -> None:
  """Draws a session's next request."""
  number, turn = sessions.number[slot], sessions.turn[slot]
  prefix, length = requests.prefix[slot], sessions.length[slot]
  sessions.turn[slot] = turn + 1
  answer = _draw_tokens(flow, 16 * flow.seed + 6, flow.answer, number, turn)
  if turn > 0 and _draw(16 * flow.seed + 5, number, turn) < flow.swipes:
    prompt = requests.prompt[slot]
    requests.reusable[slot] = prompt
  else:
    message = _draw_tokens(flow, 16 * flow.seed + 8, flow.message, number, turn)
    requests.reusable[slot] = length
    if length == 0:
      length = prefix
    if length + message + answer > flow.context:
      length = prefix + (length - prefix) // 2
      requests.reusable[slot] = prefix
    prompt = length + message
  requests.prompt[slot], requests.answer[slot] = prompt, answer
  requests.seconds[slot] = now
  requests.first_token[slot] = np.nan
  sessions.length[slot] = prompt + answer


def plan_request(flow, sessions, slot: int, now: float):
  """Plans the next request of a session; returns whether there is one."""
  sessions.left[slot] -= 1
  if sessions.left[slot] <= 0:
    sessions.counts[1] -= 1
    sessions.spare[sessions.counts[1]] = slot
    return False
  number, turn = sessions.number[slot], sessions.turn[slot]
  pause = flow.think * math.exp(
    flow.think_spread * _draw_normal(16 * flow.seed + 10, number, turn)
  )
  push(sessions, now + pause, slot)
  return True

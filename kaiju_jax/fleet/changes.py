"""Replays a change of what caches hold, in the middle of people's traffic.

    build   other weights, or another format of prompts: nothing that was cached
            before can be resumed
    clock   a format whose prompts begin with the time, as a careless one does:
            nothing that was cached before its last tick can be resumed, ever

A rollout's plan (`serving/routing/rollout.py`) says which share of the
conversations has the change, and when: of new ones, where open ones stay with
what they began with, as in our fleet, and of all otherwise. Prefixes may be
warmed before: the most used ones are recorded as the changed prompts have them,
though nobody asks.

One cache serves both sorts of prompts; it stands for all replicas, whose memory
they share. A clock's prompts are warmed for the tick of their warming alone.

Source 003: a change that lets hits fall below 50 % is blocked "until the cache
warm-up period is included in the rollout plan". That hits are those of tokens,
over each step of the ramp, and that what is changed is also judged by its own
requests after the last step, is our guess.
"""

import bisect
import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import hashlib
import math
from typing import NamedTuple

import numpy as np

from kaiju_jax.fleet import caches
from kaiju_jax.fleet import replay
from kaiju_jax.fleet import traffic
from kaiju_jax.serving.routing import rollout

# No plan.
AT_ONCE = rollout.Plan(shares=(1.0,))
# Pieces and conversations of a trace have lower numbers.
_CHANGED = 2**40


class Step(NamedTuple):
  """The hits of a step."""

  share: float  # Of conversations that have the change; 0 before it.
  # Requests that came, but for the first ones of conversations that began
  # before the trace: no cache of the trace could have their history.
  requests: int = 0
  changed: int = 0  # Those of them that had the change.
  # tokens, hits: tokens of their prompts, and those that the cache had.
  tokens: int = 0
  hits: int = 0
  # own_tokens, own_hits: the same of the changed ones alone.
  own_tokens: int = 0
  own_hits: int = 0

  @property
  def rate(self) -> float:
    """The fraction of prompt tokens that the cache had; NaN without any."""
    return self.hits / self.tokens if self.tokens else math.nan

  @property
  def own_rate(self) -> float:
    """The same, of the changed requests alone."""
    return self.own_hits / self.own_tokens if self.own_tokens else math.nan


class Found(NamedTuple):
  """The replay of a change."""

  before: Step  # The time of one step before it.
  steps: tuple[Step, ...]  # One per share.
  after: Step  # All that comes behind the last step.
  warmed: int  # Tokens of the prefixes that were warmed.


def replay_change(
  requests: Sequence[traffic.Request],
  cache: caches.Points,
  kind: str,
  plan: rollout.Plan = AT_ONCE,
  prefixes: int = 0,
  open_stay: bool = False,
  tick: float = 1.0,
) -> Found:
  """Serves a trace in whose middle a change begins.

  Args:
    cache: an empty cache.
    kind: 'build' or 'clock'.
    plan: its shares, and how long each is held.
    prefixes: how many are warmed before the first step.
    open_stay: whether open conversations keep what they began with.
    tick: seconds of the clock's smallest unit.

  Raises:
    ValueError: the trace ends before the plan does.
  """
  middle = (requests[0].seconds + requests[-1].seconds) / 2
  starts = [middle + plan.hold * n for n in range(len(plan.shares) + 1)]
  if starts[-1] >= requests[-1].seconds:
    raise ValueError(
      f'hold={plan.hold:g}, {len(plan.shares)} times: the trace ends'
      f' {requests[-1].seconds - middle:.0f} s after the change begins; draw'
      ' more requests.'
    )
  sessions = _Sessions(open_stay)
  known: dict[int, traffic.Piece] = {}
  uses: collections.Counter[int] = collections.Counter()
  steps = [Step(share) for share in (0.0, *plan.shares, 1.0)]
  warmed, place = 0, 0
  for one, cause in zip(requests, replay.find_causes(requests)):
    if place == 0 and one.seconds >= middle:
      most = (known[character] for character, _ in uses.most_common(prefixes))
      for warming in _warming(most, kind, middle, tick):
        cache.serve(warming)
        warmed += warming.shared
    place = bisect.bisect_right(starts, one.seconds)
    uses[one.character] += 1
    known[one.character] = one.prompt[0]
    is_changed = sessions.have_change(one.session, steps[place].share)
    hits = cache.serve(change(one, kind, tick) if is_changed else one)
    if one.seconds >= middle - plan.hold and cause != 'first seen':
      steps[place] = _add(steps[place], one, hits, is_changed)
  return Found(steps[0], tuple(steps[1:-1]), steps[-1], warmed)


class _Sessions:
  """The conversations, and which of them have the change."""

  def __init__(self, open_stay: bool):
    self._open_stay = open_stay
    self._known: dict[int, bool] = {}

  def have_change(self, session: int, share: float) -> bool:
    """Returns whether one has the change, at a step of a share."""
    if session not in self._known or not self._open_stay:
      self._known[session] = _draw(session) < share
    return self._known[session]


def change(
  request: traffic.Request, kind: str, tick: float = 1.0
) -> traffic.Request:
  """Returns a request as the change has it.

  Args:
    kind: 'build' or 'clock'.
    tick: seconds of the clock's smallest unit.
  """
  prefix = request.prompt[0]
  version = 1 + int(request.seconds // tick) if kind == 'clock' else 0
  # Other tokens than any piece's; the first one alone makes another text.
  tokens = prefix.tokens.copy()
  tokens[0] = -1 - version
  number = _CHANGED * (1 + version) + prefix.number
  piece = traffic.Piece(number, tokens)
  return request._replace(prompt=(piece, *request.prompt[1:]))


def _warming(
  prefixes: Iterable[traffic.Piece], kind: str, now: float, tick: float
) -> Iterator[traffic.Request]:
  """Yields requests that record prefixes, each with a token behind it."""
  end = traffic.Piece(-1, np.zeros(1, np.int32))
  for number, prefix in enumerate(prefixes, _CHANGED):
    one = traffic.Request(now, -1, number, 'turn', (prefix, end), end)
    yield change(one, kind, tick)


def _draw(session: int) -> float:
  """Returns a number in 0…1 for a conversation, the same at each step."""
  digest = hashlib.blake2b(str(session).encode(), digest_size=6).digest()
  return int.from_bytes(digest) / 2**48


def _add(
  step: Step, request: traffic.Request, hits: int, is_changed: bool
) -> Step:
  tokens = request.length
  return step._replace(
    requests=step.requests + 1,
    changed=step.changed + is_changed,
    tokens=step.tokens + tokens,
    hits=step.hits + hits,
    own_tokens=step.own_tokens + is_changed * tokens,
    own_hits=step.own_hits + is_changed * hits,
  )

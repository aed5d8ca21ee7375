"""When an engine is too busy for another request, and for how long.

The first token of a new request comes once a row is free and the prompts before
it, and its own, have run. All of that is counted in steps and chunks, from what
sequences may yet draw at most, and each is taken as long as it seldom is. What
is refused is refused at once, with the wait that is to be expected.
"""

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple

from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.requests import request as request_lib

# Weight of the newest time in a mean, and of its error in the deviation.
_NEWEST, _NEWEST_DEVIATION = 0.125, 0.25


class Limits(NamedTuple):
  """When an engine refuses or ends what is asked of it; None for never.

  Attributes:
    queue: sequences that wait at most.
    wait: seconds until a first token, at most, as far as can be expected.
    lease: seconds after which a sequence is cancelled that nobody reads through
      a `Stream`, and for which nobody calls `Engine.read`.
  """

  queue: int | None = None
  wait: float | None = None
  lease: float | None = None


class Work(NamedTuple):
  """What a sequence has yet to do.

  Attributes:
    prompt: tokens to prefill.
    tokens: that it may draw.
  """

  prompt: int
  tokens: int


class Load(NamedTuple):
  """What an engine does at the moment.

  Attributes:
    waiting: sequences without a row.
    running: sequences with one.
    prompt: tokens to prefill.
    wait: seconds until the first token of another sequence, without those of
      its own prompt.
    points: texts that prompts can go on from.
  """

  waiting: int
  running: int
  prompt: int
  wait: float
  points: int


@dataclasses.dataclass
class Estimate:
  """How long something takes, by the latest times that it took.

  Attributes:
    mean: seconds; 0 before the first.
    deviation: how far times lie from it.
  """

  mean: float = 0.0
  deviation: float = 0.0

  def note(self, seconds: float) -> None:
    """Notes a time."""
    if not self.mean:
      self.mean = seconds
      return
    error = seconds - self.mean
    self.mean += _NEWEST * error
    self.deviation += _NEWEST_DEVIATION * (abs(error) - self.deviation)

  @property
  def high(self) -> float:
    """What is seldom exceeded: the mean and two deviations (Jacobson 1988)."""
    return self.mean + 2 * self.deviation


@dataclasses.dataclass
class Pace:
  """How long rounds take.

  Attributes:
    size: prompt tokens of a chunk.
    step: of a round in which no prompt runs.
    chunk: what a chunk of prompts adds.
  """

  size: int
  step: Estimate = dataclasses.field(default_factory=Estimate)
  chunk: Estimate = dataclasses.field(default_factory=Estimate)

  def note(self, seconds: float, draws: bool, prefills: bool) -> None:
    """Notes how long a round took, and what ran in it."""
    if prefills:
      self.chunk.note(max(seconds - self.step.mean * draws, 0.0))
    elif draws:
      self.step.note(seconds)

  def calls(self, prompt: int) -> int:
    """Returns how many chunks a prompt takes, where it shares none."""
    return -(-prompt // self.size)

  def load(
    self,
    waiting: Iterable[Work],
    running: Iterable[Work],
    free: int,
    points: int,
  ) -> Load:
    """Returns what an engine does.

    Args:
      waiting: what sequences without a row have to do.
      running: what those with one have to do.
      free: rows that nobody has.
      points: texts that prompts can go on from.
    """
    waiting, running = list(waiting), list(running)
    rounds = schedule.expected_wait(
      [work.tokens + self.calls(work.prompt) for work in waiting],
      [work.tokens + self.calls(work.prompt) for work in running],
      free,
    )
    prompts = [work.prompt for work in (*waiting, *running)]
    wait = (
      rounds * self.step.high + sum(map(self.calls, prompts)) * self.chunk.high
    )
    return Load(len(waiting), len(running), sum(prompts), wait, points)


def refuse(limits: Limits, load: Load, pace: Pace, prompt: int) -> None:
  """Refuses a request that would wait for too long.

  Args:
    limits: of the engine.
    load: what it does.
    pace: of its rounds.
    prompt: tokens of the request's prompt.

  Raises:
    request.Busy: says when to ask again. One that waits for nobody is not
      refused for its own prompt, which would take as long later.
  """
  # Behind what waits comes its own prompt, and before all the round that runs.
  wait = load.wait + (pace.calls(prompt) + 1) * (
    pace.chunk.high + pace.step.high
  )
  if limits.queue is not None and load.waiting >= limits.queue:
    raise request_lib.Busy(
      f'{load.waiting} sequences wait, as many as may: ask again in'
      f' {wait:.1f} s.',
      wait,
    )
  if limits.wait is not None and load.wait and wait > limits.wait:
    raise request_lib.Busy(
      f'the first token would come after {wait:.1f} s, and {limits.wait:g} s'
      ' are allowed: ask again then.',
      wait,
    )

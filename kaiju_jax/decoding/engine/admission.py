"""Admission: decides whether a new request may wait, and estimates how long.

A request is refused at once (`request.Busy`), with the expected wait, where too
many sequences wait or its first token would come too late. The first token
comes when a row is free and all prompts ahead, and its own, have run. The
estimate counts these as rounds and chunks: all waiting sequences, whatever
their priority, come first, and running ones draw all their tokens. Each round
and chunk takes a duration that is seldom exceeded.
"""

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple

from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.requests import request as request_lib

# Weight of the newest duration in the mean, of its error in the deviation.
_NEWEST, _NEWEST_DEVIATION = 0.125, 0.25


class Limits(NamedTuple):
  """Limits at which an engine refuses or ends sequences; None for none.

  Attributes:
    queue: most sequences that wait.
    wait: most seconds to expect until a first token.
    lease: seconds after which a sequence is cancelled that no caller reads.
  """

  queue: int | None = None
  wait: float | None = None
  lease: float | None = None


class Work(NamedTuple):
  """The tokens that a sequence has left to prefill, and may still draw."""

  prompt: int
  tokens: int


class Load(NamedTuple):
  """An engine's work at the moment.

  `prompt` counts tokens to prefill, `points` texts that prompts can resume.
  `wait` is the seconds until a new sequence's first token, without its own
  prompt.
  """

  waiting: int
  running: int
  prompt: int
  wait: float
  points: int


@dataclasses.dataclass
class Estimate:
  """A running estimate of a duration: mean and mean deviation, in seconds."""

  mean: float = 0.0
  deviation: float = 0.0

  def note(self, seconds: float) -> None:
    """Takes in a duration."""
    if not self.mean:
      self.mean = seconds
      return
    error = seconds - self.mean
    self.mean += _NEWEST * error
    self.deviation += _NEWEST_DEVIATION * (abs(error) - self.deviation)

  @property
  def high(self) -> float:
    """A duration that is seldom exceeded (Jacobson 1988)."""
    return self.mean + 2 * self.deviation


@dataclasses.dataclass
class Pace:
  """The durations of rounds, and of what a chunk of `size` tokens adds."""

  size: int
  step: Estimate = dataclasses.field(default_factory=Estimate)
  chunk: Estimate = dataclasses.field(default_factory=Estimate)

  def note(self, seconds: float, draws: bool, prefills: bool) -> None:
    """Takes in the duration of a round that drew, prefilled, or both."""
    if prefills:
      self.chunk.note(max(seconds - self.step.mean * draws, 0.0))
    elif draws:
      self.step.note(seconds)

  def calls(self, prompt: int) -> int:
    """Returns the number of chunks of a prompt that shares none of them."""
    return -(-prompt // self.size)

  def load(
    self,
    waiting: Iterable[Work],
    running: Iterable[Work],
    free: int,
    points: int,
  ) -> Load:
    """Returns the load of an engine with `free` free rows and some points."""
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
  """Refuses a request if too many wait, or its first token would be too late.

  `prompt` counts its tokens that are not in the cache. Raises request.Busy with
  the expected wait. A request that nothing else delays is not refused for its
  own prompt, which would take as long later.
  """
  # Its own prompt runs after all that wait, and one round runs already.
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

"""Measures the pace of steps, without compilation and pauses."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import time
from typing import NamedTuple


class Lap(NamedTuple):
  """The pace between two records."""

  tokens_per_second: float  # Tokens per second.
  step_seconds: float  # Seconds per step.


class Throughput:
  """A clock between steps that leaves out compilation and pauses.

  The first step only starts the clock, because it includes the compilation.
  """

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    self._now = now
    self._idle = 0.0
    self._first: tuple[int, float] | None = None
    self._lap: tuple[int, float, float] | None = None
    self._latest: tuple[int, float] | None = None

  def tick(self, done: int) -> None:
    """Notes that a step is complete, and how much of the run is then done."""
    self._latest = (done, self._now() - self._idle)
    self._first = self._first or self._latest

  def lap(self, step: int, tokens: float) -> Lap | None:
    """Returns the pace from the previous call's step to the latest one.

    Args:
      step: the latest step.
      tokens: the run's tokens up to it.

    Returns:
      None at the first call.
    """
    before, self._lap = self._lap, (step, tokens, self._latest[1])
    if before is None or self._lap[2] <= before[2]:
      return None
    steps, tokens, seconds = (b - a for a, b in zip(before, self._lap))
    return Lap(tokens / seconds, seconds / steps)

  def seconds_left(self, total: int) -> float | None:
    """Returns the seconds until `total` is done, pauses left out.

    `total` has the units of `tick`, such as steps or rows. The result is None
    until a second step is complete.
    """
    done = self._latest[0] - self._first[0]
    if not done:
      return None
    elapsed = self._latest[1] - self._first[1]
    return elapsed / done * (total - self._latest[0])

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Stops the clock while entered, for evaluation and saving."""
    start = self._now()
    try:
      yield
    finally:
      self._idle += self._now() - start

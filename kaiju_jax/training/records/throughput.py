"""Measures tokens per second, without compilation and pauses."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import time


class Throughput:
  """A clock between steps that leaves out compilation and pauses.

  The first step only starts the clock, because it includes the compilation.
  """

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    self._now = now
    self._idle = 0.0
    self._first: tuple[int, float] | None = None
    self._lap: tuple[float, float] | None = None
    self._latest: tuple[int, float] | None = None

  def tick(self, done: int) -> None:
    """Notes that a step is complete, and how much of the run is then done."""
    self._latest = (done, self._now() - self._idle)
    self._first = self._first or self._latest

  def tokens_per_second(self, tokens: float) -> float | None:
    """Returns the rate from the previous call's step to the latest one.

    Args:
      tokens: the run's tokens up to the latest step.

    Returns:
      Tokens per second; None at the first call.
    """
    before, self._lap = self._lap, (tokens, self._latest[1])
    if before is None or self._lap[1] <= before[1]:
      return None
    return (tokens - before[0]) / (self._lap[1] - before[1])

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

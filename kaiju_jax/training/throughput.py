"""Tokens per second in the steady state."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import time


class Throughput:
  """Measures between steps; compilation and pauses are left out.

  The first step seen only starts the clock: it holds the compilation.
  """

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    self._now = now
    self._idle = 0.0
    self._first: tuple[int, float] | None = None
    self._lap: tuple[float, float] | None = None
    self._latest: tuple[int, float] | None = None

  def tick(self, done: int) -> None:
    """Notes that a step is complete, and how much of the run is done then."""
    self._latest = (done, self._now() - self._idle)
    self._first = self._first or self._latest

  def tokens_per_second(self, tokens: float) -> float | None:
    """Returns the rate since the last call, at the latest step's tokens."""
    before, self._lap = self._lap, (tokens, self._latest[1])
    if before is None or self._lap[1] <= before[1]:
      return None
    return (tokens - before[0]) / (self._lap[1] - before[1])

  def seconds_left(self, total: int) -> float | None:
    """Returns the time until `total` is done, evaluations and saves left out.

    In the units of `tick`, such as steps or rows.
    """
    done = self._latest[0] - self._first[0]
    if not done:
      return None
    elapsed = self._latest[1] - self._first[1]
    return elapsed / done * (total - self._latest[0])

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Leaves out what happens within: evaluation, saving."""
    start = self._now()
    try:
      yield
    finally:
      self._idle += self._now() - start

"""Times computations side by side in one process."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import contextvars
import math
import statistics
import time
from typing import Any
from typing import NamedTuple

import jax

_end = contextvars.ContextVar('end', default=math.inf)


class Spread(NamedTuple):
  """A figure that was taken several times, such as the seconds of a call.

  Attributes:
    median: of all rounds.
    least: of all rounds.
    most: of all rounds.
    rounds: how often it was taken.
  """

  median: float
  least: float
  most: float
  rounds: int


def spread(values: Sequence[float]) -> Spread:
  """Returns the spread of one or more values."""
  middle = statistics.median(values)
  return Spread(middle, min(values), max(values), len(values))


@contextlib.contextmanager
def bound_time(seconds: float) -> Iterator[None]:
  """Makes timings inside it begin no further round after so many seconds."""
  token = _end.set(min(_end.get(), time.perf_counter() + seconds))
  try:
    yield
  finally:
    _end.reset(token)


def time_left() -> float:
  """Returns the seconds that `bound_time` leaves; infinity outside of it."""
  return _end.get() - time.perf_counter()


def spreads(
  runs: Mapping[str, Callable[[], Any]],
  repeats: int,
  calls: int = 1,
  clock: Callable[[], float] | None = None,
) -> dict[str, Spread]:
  """Returns the seconds of a call of each run.

  Every round times each run once, so that other load on the machine affects all
  runs alike. An untimed call precedes each timed one, because a run that frees
  gigabytes slows down the call after it. There is at least one round.

  Args:
    runs: calls by name, each of which returns arrays.
    repeats: rounds, as far as `bound_time` leaves time.
    calls: calls per timing. They are dispatched one after the other with one
      wait at the end, so that an accelerator computes while Python dispatches.
    clock: by default the wall's. `time.process_time` gives processor time, of
      all threads together: other work on the machine changes it little, where
      wall time says how long a long computation waited for its core.
  """
  clock = clock or time.perf_counter
  seconds = {name: [] for name in runs}
  for number in range(repeats):
    if number and time_left() <= 0:
      break
    for name, run in runs.items():
      jax.block_until_ready(run())
      start = clock()
      for _ in range(calls):
        last = run()
      jax.block_until_ready(last)
      seconds[name].append((clock() - start) / calls)
  return {name: spread(each) for name, each in seconds.items()}


def runnable(
  runs: Mapping[str, Callable[[], Any]],
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
  """Calls every run once; returns those that work, and why the others fail."""
  found, problems = {}, {}
  for name, run in runs.items():
    try:
      jax.block_until_ready(run())
    except Exception as error:  # Compilers and libraries fail in many ways.
      problems[name] = tell(error)
    else:
      found[name] = run
  return found, problems


def tell(error: Exception) -> str:
  """Returns an error's type and the first line of its message."""
  return f'{type(error).__name__}: {error}'.splitlines()[0]


def medians(
  runs: Mapping[str, Callable[[], Any]],
  repeats: int,
  calls: int = 1,
  clock: Callable[[], float] | None = None,
) -> dict[str, float]:
  """Returns the median seconds of a call of each run; see `spreads`."""
  found = spreads(runs, repeats, calls, clock)
  return {name: each.median for name, each in found.items()}

"""Times computations by the wall clock, side by side in one process."""

from collections.abc import Callable
from collections.abc import Mapping
import statistics
import time
from typing import Any

import jax


def medians(
  runs: Mapping[str, Callable[[], Any]], repeats: int, calls: int = 1
) -> dict[str, float]:
  """Returns the median seconds of a call of each run.

  Every round times each run once, so that other load on the machine affects all
  runs alike. An untimed call precedes each timed one, because a run that frees
  gigabytes slows down the call after it.

  Args:
    runs: calls by name, each of which returns arrays.
    repeats: rounds.
    calls: calls per timing. They are dispatched one after the other with one
      wait at the end, so that an accelerator computes while Python dispatches.
  """
  seconds = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      jax.block_until_ready(run())
      start = time.perf_counter()
      for _ in range(calls):
        last = run()
      jax.block_until_ready(last)
      seconds[name].append((time.perf_counter() - start) / calls)
  return {name: statistics.median(each) for name, each in seconds.items()}

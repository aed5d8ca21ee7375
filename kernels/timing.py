"""Times computations side by side in one process."""

from collections.abc import Callable
from collections.abc import Mapping
import statistics
import time
from typing import Any

import jax


def medians(
  runs: Mapping[str, Callable[[], Any]],
  repeats: int,
  calls: int = 1,
  clock: Callable[[], float] | None = None,
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
    clock: by default the wall's. `time.process_time` gives processor time, of
      all threads together: other work on the machine changes it little, where
      wall time says how long a long computation waited for its core.
  """
  clock = clock or time.perf_counter
  seconds = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      jax.block_until_ready(run())
      start = clock()
      for _ in range(calls):
        last = run()
      jax.block_until_ready(last)
      seconds[name].append((clock() - start) / calls)
  return {name: statistics.median(each) for name, each in seconds.items()}

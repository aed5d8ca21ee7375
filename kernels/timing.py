"""Wall-clock comparison of computations, side by side in one process."""

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

  Every round times each run once, so that what else the machine does falls on
  all alike. An untimed call goes before each timed one: a run that frees
  gigabytes slows the next call down, whoever makes it.

  Args:
    runs: by name, a call whose results are arrays; it is waited for.
    repeats: rounds.
    calls: that a timing takes together, sent off one after the other and waited
      for once: an accelerator then computes one while the next is sent.
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

"""Processor time of computations, side by side in one process.

Wall time on a machine with other work says how long a computation waited: a
short one is over before it loses its core, a long one is not. Processor time,
of all threads together, is changed little by that. On one core that is free,
the two are the same.
"""

from collections.abc import Callable
from collections.abc import Mapping
import statistics
import time
from typing import Any


def medians(
  runs: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, float]:
  """Returns the median processor seconds of a call of each run.

  Every round times each run once, after an untimed call of it.

  Args:
    runs: calls by name, each of which returns arrays or nothing.
    repeats: rounds.
  """
  import jax

  seconds = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      jax.block_until_ready(run())
      start = time.process_time()
      jax.block_until_ready(run())
      seconds[name].append(time.process_time() - start)
  return {name: statistics.median(each) for name, each in seconds.items()}

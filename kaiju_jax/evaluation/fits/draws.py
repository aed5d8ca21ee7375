"""Intervals of what was fitted again and again to data drawn anew."""

from collections.abc import Sequence

import numpy as np


def interval(draws: Sequence[float]) -> tuple[float, float]:
  """Returns the 95 % interval of draws, NaN where there are none."""
  if not len(draws):
    return float('nan'), float('nan')
  low, high = np.quantile(draws, [0.025, 0.975])
  return float(low), float(high)

"""Draws from laws of probability by uniform numbers alone.

Generators of numpy may change how they draw from a law; uniform numbers are the
stablest that they have, so that a trace stays as it was frozen.
"""

import numpy as np


def poisson(
  rng: np.random.Generator, rate: float, begin: float, end: float
) -> np.ndarray:
  """Returns the moments of a Poisson process in [begin, end), ascending."""
  mean = rate * (end - begin)
  gaps = -np.log1p(-rng.random(int(mean + 10 * mean**0.5 + 10)))
  moments = begin + np.cumsum(gaps) / max(rate, 1e-300)
  return moments[moments < end]


def geometric(rng: np.random.Generator, mean: float, size: int) -> np.ndarray:
  """Returns int64 [size] from 1 on."""
  if mean == 1:
    return np.ones(size, np.int64)
  scaled = np.log1p(-rng.random(size)) / np.log1p(-1 / mean)
  return 1 + scaled.astype(np.int64)


def lognormal(
  rng: np.random.Generator, law: tuple[float, float], size: int
) -> np.ndarray:
  """Returns float64 [size]; `law` is the median and the deviation of logs."""
  from scipy import special

  median, spread = law
  return median * np.exp(spread * special.ndtri(rng.random(size)))


def lognormal_mean(law: tuple[float, float]) -> float:
  """Returns the mean of `lognormal`."""
  median, spread = law
  return float(median * np.exp(spread**2 / 2))

"""How good sixteen levels could be: power laws, and the best code there is.

Squinch's header stays, and with it the ratio r = |x| / maxabs ≤ 1 of each
number; what is varied is the map from four bits to levels of r. An encoder
takes the level that is nearest in the logarithm, so that a map's error is

    E |ln r − ln level(r)|       over the r > 0

    power law    level k = ((k + c) / 16)^p, 0 < c ≤ 1: a point of the interval
                 from (k / 16)^p to ((k + 1) / 16)^p; p and c found numerically
    best code    levels that minimize the error over a sample: a k-medians
                 problem on a line, solved exactly by dynamic programming over
                 a histogram (Wang & Song 2011), then moved to the medians of
                 the sample itself

(With a free factor before it, a power law has the geometric series as its limit
p → ∞, which no sixteen levels beat on evenly spread logarithms.)

A map that has a zero spends a level on it: what lies below `least` is flushed,
and the other fifteen are fitted to the rest. Two maps compare where they flush
the same numbers.

The header's step is part of it: ln6 puts maxabs up to e^(1/6) above the block's
largest, so that r = 1 is hardly reached. `ratios(x, None)` leaves it out.
"""

import itertools
from typing import NamedTuple

import numpy as np

from kaiju_jax.kernels.squinch import reference

LEVELS = 16
# Below this r, `zero` rounds to zero: 15·√r < 1/2.
ZERO_FLUSHES_BELOW = 1 / 900
_BINS = 1024


def ratios(x_RC: np.ndarray, header: str | None = 'ln6') -> np.ndarray:
  """Returns r = |x| / maxabs, float64[R, C]; NaN in blocks without values.

  Args:
    x_RC: R a multiple of 8.
    header: Squinch's; None divides by the block's largest itself.
  """
  maxabs_RC = _maxabs(x_RC, header)
  size_RC = np.abs(np.asarray(x_RC, np.float64))
  return size_RC / np.where(maxabs_RC == 0, np.nan, maxabs_RC)


def _maxabs(x_RC: np.ndarray, header: str | None) -> np.ndarray:
  """Returns what each number's header says, 0 in a block without values."""
  x_RC = np.asarray(x_RC, np.float32)
  if header is None:
    size_GIC = np.abs(x_RC).reshape(-1, reference.GROUP, x_RC.shape[1])
    maxabs_GC = size_GIC.max(axis=1).astype(np.float64)
  else:
    q_GC = np.asarray(reference.encode(x_RC, header=header)[0], np.float64)
    step = {'ln6': np.exp(1 / 6), 'quarter': 2**0.25}[header]
    maxabs_GC = np.where(q_GC == 0, 0, step ** (q_GC - 128))
  return np.repeat(maxabs_GC, reference.GROUP, axis=0)


def nearest(r: np.ndarray, levels: np.ndarray) -> np.ndarray:
  """Returns the level nearest to each r ≥ 0 in the logarithm."""
  levels = np.sort(levels)
  edges = np.sqrt(levels[1:] * levels[:-1])
  return levels[np.searchsorted(edges, r)]


def error(r: np.ndarray, levels: np.ndarray) -> float:
  """Returns the mean |ln r − ln level| of r > 0."""
  return float(np.mean(np.abs(np.log(nearest(r, levels) / r))))


def decoded(
  x_RC: np.ndarray,
  levels: np.ndarray,
  least: float = 0.0,
  header: str | None = 'ln6',
) -> np.ndarray:
  """Returns what arrives by a map, float64[R, C].

  Args:
    x_RC: finite; R a multiple of 8.
    levels: values of r, without the zero.
    least: r below it arrives as zero; with 0, nothing does in a block that has
      values, not even a zero.
    header: Squinch's.
  """
  r_RC = np.nan_to_num(ratios(x_RC, header))
  size_RC = np.where(r_RC >= least, nearest(r_RC, levels), 0)
  size_RC = size_RC * _maxabs(x_RC, header)
  return np.where(np.asarray(x_RC) < 0, -size_RC, size_RC)


class PowerLaw(NamedTuple):
  """Levels ((k + c) / 16)^p, k = 0 … 15; without k = 0 beside a zero."""

  power: float
  offset: float
  levels: np.ndarray
  error: float


def power_law(r: np.ndarray, count: int = LEVELS) -> PowerLaw:
  """Returns the power law with the least error on r > 0.

  By a grid that is narrowed around its best point, on a histogram of ln r; the
  error is the sample's own.

  Args:
    r: the sample.
    count: levels; the highest `count` of the sixteen.
  """
  centers, weights = _histogram(r)
  kept = np.arange(LEVELS - count, LEVELS)

  def levels_of(power, offset):
    return ((kept + offset) / LEVELS) ** power

  def error_of(point):
    away = np.log(nearest(np.exp(centers), levels_of(*point))) - centers
    return float(np.abs(away) @ weights)

  # Coarse steps first, fine enough not to fall into the wrong valley.
  powers, offsets = np.linspace(0.5, 6, 56), np.linspace(0.02, 1, 25)
  for _ in range(4):
    best = min(itertools.product(powers, offsets), key=error_of)
    powers, offsets = (
      np.linspace(at - step, at + step, 9)
      for at, step in zip(
        best, (powers[1] - powers[0], offsets[1] - offsets[0])
      )
    )
    offsets = np.clip(offsets, 0.001, 1)
  levels = levels_of(*best)
  return PowerLaw(float(best[0]), float(best[1]), levels, error(r, levels))


def best_levels(r: np.ndarray, count: int = LEVELS) -> np.ndarray:
  """Returns the `count` levels with the least error on the sample r > 0."""
  centers, weights = _histogram(r)
  levels = np.exp(_medians_on_a_line(centers, weights, count))
  sample = np.sort(np.log(r))
  for _ in range(20):
    edges = np.log(levels[1:] * levels[:-1]) / 2
    cuts = [0, *np.searchsorted(sample, edges), len(sample)]
    medians = [
      np.median(sample[a:b]) if b > a else np.log(level)
      for a, b, level in zip(cuts[:-1], cuts[1:], levels)
    ]
    levels = np.exp(medians)
  return levels


def refined(
  r: np.ndarray, levels: np.ndarray, squares: float = 100.0
) -> np.ndarray:
  """Returns levels moved to a valley of |ln r − ln level| with its squares.

  The best code has few levels near r = 1, where the squared error lies. This
  one minimizes E(|ln r − ln level| + squares · (r − level)²) in the valley that
  `levels` stand in, Lloyd's way: numbers to their nearest level, levels to the
  minimum over their numbers.

  Args:
    r: the sample, > 0.
    levels: to start from, ascending.
    squares: weight of the squared error. (Our guess.)
  """
  # Imported here: scipy takes longer to import than all the rest.
  from scipy import optimize

  centers, weights = _histogram(r, 8 * _BINS)
  levels = np.log(levels)
  for _ in range(60):
    edges = (levels[1:] + levels[:-1]) / 2
    cuts = [0, *np.searchsorted(centers, edges), len(centers)]
    for place, (a, b) in enumerate(itertools.pairwise(cuts)):
      if b - a < 2:
        continue
      part, mass = centers[a:b], weights[a:b]

      def cost(level, part=part, mass=mass):
        square = np.square(np.exp(part) - np.exp(level))
        return float(mass @ (np.abs(part - level) + squares * square))

      levels[place] = optimize.minimize_scalar(
        cost, bounds=(part[0], part[-1]), method='bounded'
      ).x
  return np.exp(levels)


def _histogram(
  r: np.ndarray, bins: int = _BINS
) -> tuple[np.ndarray, np.ndarray]:
  """Returns centres in ln r, ascending, and counts, empty bins left out."""
  log_r = np.log(r)
  counts, edges = np.histogram(log_r, bins)
  sums, _ = np.histogram(log_r, edges, weights=log_r)
  full = counts > 0
  return sums[full] / counts[full], counts[full].astype(np.float64)


def _medians_on_a_line(
  centers: np.ndarray, weights: np.ndarray, count: int
) -> np.ndarray:
  """Returns the k-medians of weighted points on a line, exactly.

  cost[i, j] is what points i … j − 1 pay at their median; the best of m levels
  for the first j points is then min over i of best[m − 1, i] + cost[i, j].
  """
  mass = np.concatenate([[0], np.cumsum(weights)])
  moment = np.concatenate([[0], np.cumsum(weights * centers)])
  size = len(centers)
  i, j = np.triu_indices(size + 1, 1)
  # The first point at which half of the interval's mass is reached.
  middle = np.searchsorted(mass, (mass[i] + mass[j]) / 2, 'left') - 1
  middle = np.clip(middle, i, j - 1)
  m = centers[middle]
  below = m * (mass[middle] - mass[i]) - (moment[middle] - moment[i])
  above = (moment[j] - moment[middle]) - m * (mass[j] - mass[middle])
  cost = np.full((size + 1, size + 1), np.inf)
  cost[i, j] = below + above

  best = cost[0]
  origins = []
  for _ in range(count - 1):
    through = best[:, None] + cost
    origins.append(np.argmin(through, axis=0))
    best = np.min(through, axis=0)
  ends = [size]
  for origin in reversed(origins):
    ends.append(int(origin[ends[-1]]))
  ends = [0, *reversed(ends)]
  medians = []
  for a, b in itertools.pairwise(ends):
    half = np.searchsorted(mass, (mass[a] + mass[b]) / 2, 'left') - 1
    medians.append(centers[min(max(half, a), b - 1)])
  return np.array(medians)

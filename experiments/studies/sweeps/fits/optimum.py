"""Fits the best learning rate of a width, and its trend over widths.

Near its lowest point the final loss is about a parabola in the logarithm of the
rate. Over widths W the best rate is about a power law:

    L(ln r) = L* + c·(ln r − ln r*)²          c > 0
    ln r*(W) = a + b·ln W                     b = 0: one rate fits all widths

The forms are our guess; the sources name "hyperparameter tweaks inspired by
scaling laws". The parabola is fitted only to rates near the one with the lowest
mean loss, because divergence bends it farther away. Intervals come from drawing
the seeds again. A fit is not trusted if the lowest loss stands at the grid's
edge, or if the parabola reaches far below every measured loss.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.reporting import statistics

DRAWS = 1000
_UNDER = 0.01  # The fraction by which a parabola may undercut the losses.


class Optimum(NamedTuple):
  """The best rate of one width."""

  log_rate: float  # Ln r*.
  loss: float  # L*.
  # float[draws], ln r* of the seeds drawn again; empty for one seed.
  draws: np.ndarray
  # Reasons not to trust it, in words; empty if none are known.
  doubts: tuple[str, ...]

  def interval(self) -> tuple[float, float]:
    """Returns the 95 % interval of ln r*, NaN for one seed."""
    return statistics.percentiles(self.draws)


class Line(NamedTuple):
  """ln r* = a + b·ln W."""

  a: float  # Intercept.
  b: float  # Slope.
  draws: np.ndarray  # float[draws, 2], (a, b) of the optima's draws.

  def predict(self, width: float) -> float:
    """Returns ln r* at a width."""
    return self.a + self.b * np.log(width)

  def interval(self, width: float) -> tuple[float, float]:
    """Returns the 95 % interval of `at`, NaN where there are no draws."""
    return statistics.percentiles(self.draws @ [1.0, np.log(width)])

  def slope_interval(self) -> tuple[float, float]:
    """Returns the 95 % interval of the slope."""
    return statistics.percentiles(self.draws[:, 1])


def optimum(
  log_rates: Sequence[float],
  losses: np.ndarray,
  factor: float = 2.0,
) -> Optimum:
  """Fits the parabola.

  Args:
    log_rates: float[R], ln of the rates, rising; at least 3.
    losses: float[S, R], final loss of each seed at each rate. A loss that is
      not finite counts as the worst.
    factor: how far rates of the fit are from the best one, at most; its two
      neighbours are always used.
  """
  log_rates, losses = np.asarray(log_rates, float), np.asarray(losses, float)
  finite = np.isfinite(losses)
  if not finite.any():
    doubt = 'every run diverged: try lower rates'
    return Optimum(float(log_rates[0]), np.nan, np.zeros(0), (doubt,))
  losses = np.where(finite, losses, losses[finite].max())
  log_rate, loss, doubts = _vertex(log_rates, losses.mean(0), factor)
  draws = np.zeros(0)
  if len(losses) > 1:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(losses), (DRAWS, len(losses)))
    draws = np.array(
      [_vertex(log_rates, losses[one].mean(0), factor)[0] for one in drawn]
    )
  return Optimum(log_rate, loss, draws, doubts)


def _vertex(
  x: np.ndarray, y: np.ndarray, factor: float
) -> tuple[float, float, tuple[str, ...]]:
  """Returns ln r*, L* and doubts; the lowest point if no parabola fits."""
  lowest = int(np.argmin(y))
  if lowest in (0, len(x) - 1):
    end = 'lowest' if lowest == 0 else 'highest'
    doubt = f'the best rate is the {end} of the grid: extend it'
    return float(x[lowest]), float(y[lowest]), (doubt,)
  near = np.abs(x - x[lowest]) <= np.log(factor) + 1e-9
  near[lowest - 1 : lowest + 2] = True
  x, y, middle = x[near], y[near], x[lowest]
  c, slope, level = np.polyfit(x - middle, y, 2)
  if c <= 0:
    doubt = 'the losses do not curve upwards around the lowest'
    return float(middle), float(y.min()), (doubt,)
  vertex = middle - slope / (2 * c)
  loss = level - slope**2 / (4 * c)
  if not x[0] <= vertex <= x[-1]:
    doubt = 'the parabola is lowest outside the rates that it was fitted to'
    return float(middle), float(y.min()), (doubt,)
  under = 1 - loss / y.min()
  if under <= _UNDER:
    return float(vertex), float(loss), ()
  doubt = (
    f'the parabola is lowest {under:.1%} under all that was measured: the rates'
    ' are too far apart'
  )
  return float(vertex), float(loss), (doubt,)


def line(widths: Sequence[float], optima: Sequence[Optimum]) -> Line:
  """Fits ln r* over ln W by least squares; at least two widths."""
  x = np.log(np.asarray(widths, float))
  b, a = np.polyfit(x, [one.log_rate for one in optima], 1)
  if not all(len(one.draws) for one in optima):
    return Line(float(a), float(b), np.zeros((0, 2)))
  drawn = np.polyfit(x, np.stack([one.draws for one in optima]), 1)
  return Line(float(a), float(b), drawn[::-1].T)

"""Measures of a codec: how far off numbers are, how many are lost, which way.

Over all x, with y what arrives:

    snr        10 · log₁₀(Σ x² / Σ (x − y)²), dB: the largest numbers decide
    cosine     of the angle between x and y
    gain       Σ x·y / Σ x² − 1: how far y is stretched along x

and over the x that are not zero, each counting the same, which is how Adam
reads a gradient:

    flushed    share with y = 0
    signs      share with x·y < 0
    log_error  mean |ln(|y| / |x|)| of those that arrive (y ≠ 0): read it beside
               `flushed`, for flushing the worst numbers lowers it
    distance   mean of 2·|x − y| / (|x| + |y|), at most 2, which is what a
               flushed number or a wrong sign counts: it compares codecs that
               flush with those that do not (our choice)
    bias       mean of (y − x) / x, what is flushed counting −1; without
               flushing the smallest numbers decide it

and over the x that are zero

    raised     share with y ≠ 0
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Tally(NamedTuple):
  """Sums from which `Quality` follows; those of two arrays add up."""

  count: float = 0.0
  square: float = 0.0
  arrived_square: float = 0.0
  product: float = 0.0
  error_square: float = 0.0
  nonzero: float = 0.0
  flushed: float = 0.0
  wrong_sign: float = 0.0
  log_error: float = 0.0
  distance: float = 0.0
  relative: float = 0.0
  raised: float = 0.0


class Quality(NamedTuple):
  """See the module's text; NaN where there is nothing to take a mean of."""

  snr: float
  cosine: float
  gain: float
  flushed: float
  signs: float
  log_error: float
  distance: float
  bias: float
  raised: float


def tally(x: np.ndarray, y: np.ndarray) -> Tally:
  """Returns the sums over one array.

  Args:
    x: what was sent, finite.
    y: what arrived, of the same shape.

  Raises:
    ValueError: other shapes, or numbers that are not finite.
  """
  x, y = np.asarray(x, np.float64).ravel(), np.asarray(y, np.float64).ravel()
  if x.shape != y.shape:
    raise ValueError(f'{x.size} numbers sent, {y.size} arrived.')
  if not (np.isfinite(x).all() and np.isfinite(y).all()):
    raise ValueError('inf or NaN among the numbers: nothing can be said.')
  live = x != 0
  x_live, y_live = x[live], y[live]
  arrived = y_live != 0
  ratio = y_live[arrived] / x_live[arrived]
  return Tally(
    count=x.size,
    square=float(x @ x),
    arrived_square=float(y @ y),
    product=float(x @ y),
    error_square=float((x - y) @ (x - y)),
    nonzero=x_live.size,
    flushed=x_live.size - ratio.size,
    wrong_sign=float(np.sum(ratio < 0)),
    log_error=float(np.sum(np.abs(np.log(np.abs(ratio))))),
    distance=float(np.sum(distance(x_live, y_live))),
    relative=float(np.sum(y_live / x_live - 1)),
    raised=float(np.sum(y[~live] != 0)),
  )


def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns 2·|x − y| / (|x| + |y|) of each pair, x not zero."""
  return 2 * np.abs(x - y) / (np.abs(x) + np.abs(y))


def total(tallies: Iterable[Tally]) -> Tally:
  """Returns the sums over several arrays together."""
  return Tally(*(sum(column) for column in zip(Tally(), *tallies)))


def quality(sums: Tally) -> Quality:
  """Returns what the sums amount to."""
  zeros = sums.count - sums.nonzero
  norms = np.sqrt(sums.square * sums.arrived_square)
  snr = np.inf
  if sums.error_square:
    snr = 10 * np.log10(_share(sums.square, sums.error_square))
  return Quality(
    snr=float(snr),
    cosine=_share(sums.product, norms),
    gain=_share(sums.product - sums.square, sums.square),
    flushed=_share(sums.flushed, sums.nonzero),
    signs=_share(sums.wrong_sign, sums.nonzero),
    log_error=_share(sums.log_error, sums.nonzero - sums.flushed),
    distance=_share(sums.distance, sums.nonzero),
    bias=_share(sums.relative, sums.nonzero),
    raised=_share(sums.raised, zeros),
  )


def _share(part: float, whole: float) -> float:
  return float(part / whole) if whole else float('nan')


class Curve(NamedTuple):
  """Along the size of x against the largest of its Squinch block."""

  # Lower edges of the bins, in octaves below the largest (0 … −n).
  log2: np.ndarray
  count: np.ndarray  # Numbers in each bin.
  distance: np.ndarray  # Mean in each bin; NaN in an empty one.
  flushed: np.ndarray  # Share in each bin.


def curve(
  x_RC: np.ndarray,
  y_RC: np.ndarray,
  octaves: int = 14,
  bins_an_octave: int = 4,
  block: int = 8,
) -> Curve:
  """Returns the error along the magnitude.

  Args:
    x_RC: what was sent; R a multiple of `block`.
    octaves: how far below the block's largest; what is smaller is left out.
    block: rows whose largest is 1, the same for every codec.
  """
  x_GIC = np.abs(np.asarray(x_RC, np.float64)).reshape(-1, block, x_RC.shape[1])
  largest_G1C = x_GIC.max(axis=1, keepdims=True)
  with np.errstate(divide='ignore', invalid='ignore'):
    below = -np.log2(x_GIC / largest_G1C).reshape(x_RC.shape)
  bins = octaves * bins_an_octave
  keep = below < octaves  # False for zeros, and for blocks of nothing else.
  place = np.floor(below[keep] * bins_an_octave).astype(int)
  x, y = np.asarray(x_RC)[keep], np.asarray(y_RC)[keep]

  def summed(weights):
    return np.bincount(place, weights, minlength=bins)[:bins]

  count = summed(np.ones(x.size))
  with np.errstate(invalid='ignore'):
    return Curve(
      log2=-(np.arange(bins) + 1) / bins_an_octave,
      count=count,
      distance=summed(distance(x, y)) / count,
      flushed=summed(y == 0) / count,
    )

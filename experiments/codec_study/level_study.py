"""Squinch's two maps against the best ones, distribution by distribution.

The eight numbers of a block are drawn alike and independently, and the block
is then scaled by e^u, u uniform over ±5: no place between two steps of the
header is preferred. Log-uniform over n octaves is 2^(−n·u), u uniform over
[0, 1): the block's largest lies a little below the upper end.

The header's step is included everywhere, with the header named. For `zero`,
both its error and the best code's error exclude the numbers that `zero`
flushes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kaiju_jax.kernels.squinch import reference

from . import gradient_codecs
from . import level_maps
from . import quality as codec_quality

OCTAVES = (4, 5, 6)


def distributions(blocks: int, seed: int = 0) -> dict[str, np.ndarray]:
  """Returns {name: float32[8, blocks]}."""
  rng = np.random.default_rng(seed)
  shape = (8, blocks)
  drawn = {
    f'log-uniform {octaves}': np.exp2(-rng.uniform(0, octaves, shape))
    for octaves in OCTAVES
  } | {
    'Gaussian': rng.standard_normal(shape),
    'Laplace': rng.laplace(size=shape),
    'Student t₃': rng.standard_t(3, shape),
  }
  scale = np.exp(rng.uniform(-5, 5, blocks))[None]
  return {name: (x * scale).astype(np.float32) for name, x in drawn.items()}


class Study(NamedTuple):
  """Mean |ln| errors of one distribution.

  Attributes:
    zero: error of the map with a zero, without the numbers that it flushes.
    fitted: error of the fitted table, which flushes the same numbers.
    flushed: share that it flushes.
    zero_best: error of the best fifteen levels for the same numbers.
    floor: error of the map without a zero.
    power: the best power law.
    best: the best sixteen levels.
    best_error: theirs.
  """

  zero: float
  fitted: float
  flushed: float
  zero_best: float
  floor: float
  power: level_maps.PowerLaw
  best: np.ndarray
  best_error: float


def study(x_RC: np.ndarray, header: str = 'ln6') -> Study:
  """Returns how far both maps are from the best on x; R a multiple of 8."""
  zero, floor, fitted = (
    codec_quality.quality(
      codec_quality.tally(x_RC, gradient_codecs.squinch(x_RC, elements, header))
    )
    for elements in ('zero', 'floor', 'fitted')
  )
  r = _ratios(x_RC, header)
  arriving = r[r >= level_maps.ZERO_FLUSHES_BELOW]
  best = level_maps.best_levels(r)
  return Study(
    zero=zero.log_error,
    fitted=fitted.log_error,
    flushed=zero.flushed,
    zero_best=level_maps.error(
      arriving, level_maps.best_levels(arriving, level_maps.LEVELS - 1)
    ),
    floor=floor.log_error,
    power=level_maps.power_law(r),
    best=best,
    best_error=level_maps.error(r, best),
  )


def sampled(x_RC: np.ndarray, numbers: int, seed: int = 0) -> np.ndarray:
  """Returns whole columns of x, drawn, of no more than so many numbers."""
  columns = max(1, numbers // x_RC.shape[0])
  if x_RC.shape[1] <= columns:
    return x_RC
  rng = np.random.default_rng(seed)
  return x_RC[:, rng.choice(x_RC.shape[1], columns, replace=False)]


def _ratios(x_RC: np.ndarray, header: str) -> np.ndarray:
  r = level_maps.ratios(x_RC, header).ravel()
  return r[r > 0]


class Map(NamedTuple):
  """Levels of r, and below which r a number is flushed."""

  levels: np.ndarray
  least: float = 0.0


def fitted(x_RC: np.ndarray, header: str = 'ln6') -> dict[str, Map]:
  """Returns the maps that would be Squinch's rivals, fitted to x."""
  r = _ratios(x_RC, header)
  least = level_maps.ZERO_FLUSHES_BELOW
  arriving = r[r >= least]
  fifteen = level_maps.LEVELS - 1
  k = np.arange(level_maps.LEVELS)
  floor = (2 * k * (k + 1) + 1) / 512
  zero = (k[1:] / fifteen) ** 2
  return {
    'power law': Map(level_maps.power_law(r).levels),
    'best 16': Map(level_maps.best_levels(r)),
    'refined floor': Map(level_maps.refined(r, floor)),
    'zero, power law': Map(
      level_maps.power_law(arriving, fifteen).levels, least
    ),
    'zero, best 15': Map(level_maps.best_levels(arriving, fifteen), least),
    'refined zero': Map(level_maps.refined(arriving, zero), least),
  }


def held_out(
  maps: Mapping[str, Map], x_RC: np.ndarray, header: str = 'ln6'
) -> dict[str, codec_quality.Quality]:
  """Returns the maps' quality, and Squinch's, on what they were not fitted to.

  Args:
    maps: what `fitted` returned.
    x_RC: R a multiple of 8.
    header: the header of all of them.
  """
  arrived = {
    elements: gradient_codecs.squinch(x_RC, elements, header)
    for elements in reference.ELEMENTS
  } | {
    name: level_maps.decoded(x_RC, one.levels, one.least, header)
    for name, one in maps.items()
  }
  return {
    name: codec_quality.quality(codec_quality.tally(x_RC, y_RC))
    for name, y_RC in arrived.items()
  }

"""Limits that are proposed for codes, against the values themselves."""

import numpy as np
import pytest

from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import histograms

SHAPE = 2, 2, 4


def counts_of(values, limits):
  """Codes values [layers, 2, S, K] as a cache does."""
  codes = np.rint(np.abs(values) * 127 / limits[:, :, None])
  codes = np.minimum(codes, 127).astype(np.uint8)
  tokens = np.zeros(values.shape[2], np.int32)
  return histograms.count([histograms.Sample(b'', tokens, codes)])


def normal(size, spread=1.0, seed=0):
  rng = np.random.default_rng(seed)
  layers, sides, channels = SHAPE
  return rng.normal(0, spread, (layers, sides, size, channels))


def test_limits_come_to_the_quantile_of_values_in_some_checkpoints():
  """From limits far too wide and too narrow, whose codes alone are seen."""
  values = normal(60_000)
  wanted = np.quantile(np.abs(values), 1 - calibration.BEYOND, axis=2)
  for start in (12.0, 1.0):
    limits = np.full(SHAPE, start, np.float32)
    for _ in range(12):
      limits = calibration.propose(limits, counts_of(values, limits))
    # Between once and twice as many are cut as are meant to be.
    ratio = limits / wanted
    assert ratio.min() > 0.92 and ratio.max() < 1.03, start


def test_a_step_is_bounded_both_ways():
  values = normal(30_000)
  limits = np.full(SHAPE, 0.1, np.float32)
  grown = calibration.propose(limits, counts_of(values, limits))
  np.testing.assert_allclose(grown, 0.1 * calibration.GROWTH, rtol=1e-6)
  limits = np.full(SHAPE, 100.0, np.float32)
  shrunk = calibration.propose(limits, counts_of(values, limits))
  np.testing.assert_allclose(shrunk, 100 * calibration.SHRINK, rtol=1e-6)


def test_each_channel_has_its_own():
  values = normal(30_000)
  values[1, 0, :, 2] *= 5
  limits = np.full(SHAPE, 3.5, np.float32)
  found = calibration.propose(limits, counts_of(values, limits)) / limits
  is_grown = found > 1.2
  assert is_grown[1, 0, 2] and is_grown.sum() == 1


def test_few_values_move_nothing():
  limits = np.full(SHAPE, 0.1, np.float32)
  few = counts_of(normal(int(calibration.LEAST) - 1), limits)
  np.testing.assert_array_equal(calibration.propose(limits, few), limits)
  nothing = histograms.Counts.zeros(2, 4)
  np.testing.assert_array_equal(calibration.propose(limits, nothing), limits)


def test_a_tail_at_the_rail_alone_widens():
  """Few values beyond the limit are as allowed; more are not."""
  for share, factor in ((0.5, 1.0), (1.9, 1.0), (2.1, calibration.GROWTH)):
    counts = histograms.Counts.zeros(2, 4)
    total, rail = 10**6, share * calibration.BEYOND * 10**6
    counts.codes[..., 126] = total - rail
    counts.codes[..., 127] = rail
    found = calibration.propose(np.ones(SHAPE, np.float32), counts)
    assert found == pytest.approx(np.full(SHAPE, factor), rel=0.005)

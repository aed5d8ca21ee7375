"""Counts of codes and tokens, and their divergence."""

import numpy as np
import pytest
import scipy.stats

from kaiju_jax.serving.drift import histograms

RNG = np.random.default_rng(0)


def sample(tokens, codes, character=b'a'):
  return histograms.Sample(
    character, np.array(tokens, np.int32), np.array(codes, np.uint8)
  )


def drawn(seed=0, layers=3, size=5, channels=4, most=128):
  rng = np.random.default_rng(seed)
  codes = rng.integers(0, most, (layers, 2, size, channels))
  return sample(rng.integers(0, 50_000, size), codes, b'%d' % seed)


def test_each_code_is_counted_at_its_layer_side_channel_and_level():
  one, other = drawn(1), drawn(2)
  found = histograms.count([one, other], [1.0, 0.5])
  expected = np.zeros((3, 2, 4, 128))
  for weight, each in ((1.0, one), (0.5, other)):
    for (layer, side, _, channel), code in np.ndenumerate(each.codes):
      expected[layer, side, channel, code] += weight
  np.testing.assert_array_equal(found.codes, expected)
  assert found.tokens.sum() == 7.5
  plain = histograms.count([one, other])
  np.testing.assert_array_equal(
    plain.codes, histograms.count([one, other], [1.0, 1.0]).codes
  )


def test_bins_double_and_the_rail_has_its_own():
  edges = [0, 1, 2, 4, 8, 16, 32, 64, 126, 127]
  assert len(edges) == histograms.BINS
  codes = np.eye(128)[None, None]
  found = histograms.bin_codes(codes)[0, 0]
  expected = [
    next(n for n, edge in enumerate(edges) if level <= edge)
    for level in range(128)
  ]
  np.testing.assert_array_equal(found.argmax(-1), expected)
  assert (found.sum(-1) == 1).all()


def test_buckets_spread_neighbouring_tokens():
  found = np.bincount(histograms.bucket(np.arange(4_096)), minlength=256)
  assert len(found) == histograms.BUCKETS
  assert found.min() >= 8 and found.max() <= 24
  large = histograms.bucket(np.array([2**31 - 1], np.int32))
  assert 0 <= large[0] < 256


def test_the_divergence_is_the_entropy_of_scipy():
  window, baseline = (
    histograms.count([drawn(n) for n in numbers])
    for numbers in (range(40), range(40, 400))
  )
  found = histograms.diverge(window, baseline)
  keep = 1 - 1e-3
  q = keep * baseline.tokens / baseline.tokens.sum() + 1e-3 / 256
  assert found.tokens == pytest.approx(scipy.stats.entropy(window.tokens, q))
  p, q = (
    histograms.bin_codes(x.codes).reshape(-1, histograms.BINS)
    for x in (window, baseline)
  )
  q = keep * q / q.sum(-1, keepdims=True) + 1e-3 / histograms.BINS
  expected = np.mean([scipy.stats.entropy(a, b) for a, b in zip(p, q)])
  assert found.codes == pytest.approx(expected)


def test_a_window_of_the_baseline_s_own_counts_hardly_diverges():
  baseline = histograms.count([drawn(n) for n in range(400)])
  same = histograms.diverge(baseline, baseline)
  assert 0 <= same.tokens < 1e-5 and 0 <= same.codes < 1e-4


def test_codes_that_a_baseline_never_had_diverge_by_a_finite_number():
  baseline = histograms.count([drawn(n, most=4) for n in range(100)])
  window = histograms.count([drawn(n) for n in range(100)])
  assert 1 < histograms.diverge(window, baseline).codes < 10


def test_counts_decay():
  counts = histograms.Counts.zeros(3, 4)
  counts.add(histograms.count([drawn()]))
  counts.add(histograms.count([drawn()]), kept=0.5)
  assert counts.tokens.sum() == 5 * 1.5
  assert counts.codes.sum() == 3 * 2 * 5 * 4 * 1.5

"""Figures of merit against arithmetic by hand."""

import math

import numpy as np
import pytest

from kaiju_jax.experiments.studies import codecs


def test_quality_by_hand():
  x = [4.0, -2.0, 1.0, -1.0, 0.0, 0.0]
  y = [2.0, -3.0, 0.0, 0.5, 0.0, 7.0]
  found = codecs.quality(codecs.tally(x, y))
  # Σx² = 22; errors 2, 1, 1, −1.5, 0, −7: Σ = 4 + 1 + 1 + 2.25 + 49 = 57.25.
  assert found.snr == pytest.approx(10 * math.log10(22 / 57.25))
  # Σxy = 8 + 6 − 0.5 = 13.5; Σy² = 4 + 9 + 0.25 + 49 = 62.25.
  assert found.cosine == pytest.approx(13.5 / math.sqrt(22 * 62.25))
  assert found.gain == pytest.approx(13.5 / 22 - 1)
  # Four are not zero: one is flushed, one turned round.
  assert found.flushed == 0.25
  assert found.signs == 0.25
  # Of the three that arrive: ln 2, ln 1.5, ln 2.
  assert found.log_error == pytest.approx(
    (math.log(2) + math.log(1.5) + math.log(2)) / 3
  )
  # 2·2/6, 2·1/5, and 2 for each of what is flushed and what is turned round.
  assert found.distance == pytest.approx((2 / 3 + 0.4 + 2 + 2) / 4)
  # −1/2, +1/2, −1, −3/2.
  assert found.bias == pytest.approx(-2.5 / 4)
  # Of two zeros, one arrives as 7.
  assert found.raised == 0.5


def test_what_arrives_as_it_was_has_no_error():
  x = np.array([[1.0, -2], [0, 3]])
  found = codecs.quality(codecs.tally(x, x))
  assert found.snr == math.inf and found.cosine == pytest.approx(1)
  assert found[2:] == (0, 0, 0, 0, 0, 0, 0)


def test_zeros_alone_have_no_errors_to_speak_of():
  found = codecs.quality(codecs.tally([0.0, 0.0], [0.0, 0.0]))
  assert math.isnan(found.log_error) and math.isnan(found.flushed)
  assert found.raised == 0


def test_small_errors_are_the_same_in_the_logarithm_and_in_the_distance():
  x = np.random.default_rng(0).standard_normal(1000)
  y = x * (1 + 0.01 * np.random.default_rng(1).standard_normal(1000))
  found = codecs.quality(codecs.tally(x, y))
  assert found.distance == pytest.approx(found.log_error, rel=1e-4)


def test_tallies_of_parts_add_up_to_that_of_the_whole():
  rng = np.random.default_rng(0)
  x, y = rng.integers(-3, 4, (2, 60)).astype(float)
  parts = [codecs.tally(x[a:b], y[a:b]) for a, b in ((0, 7), (7, 40), (40, 60))]
  whole = codecs.tally(x, y)
  np.testing.assert_allclose(codecs.total(parts), whole, rtol=1e-12)


def test_the_curve_by_hand():
  # Largest 8: octaves below it 0, 0.6, 1, 1.25, 2 and beyond; and a zero.
  x_RC = np.array([[8, -(2**2.4), 4, 2**1.75, -2, 2**-20, 0, 8]]).T
  y_RC = np.array([[8, -(2**2.4), 2, 0.0, -2, 1.0, 5, 16]]).T
  found = codecs.curve(x_RC, y_RC, octaves=3, bins_an_octave=2)
  assert found.log2.tolist() == [-0.5, -1, -1.5, -2, -2.5, -3]
  assert found.count.tolist() == [2, 1, 2, 0, 1, 0]
  # 2·8/24 and 0; 0; 2·2/6 and, flushed, 2; 0.
  np.testing.assert_allclose(
    found.distance, [1 / 3, 0, (2 / 3 + 2) / 2, np.nan, 0, np.nan]
  )
  np.testing.assert_allclose(found.flushed, [0, 0, 0.5, np.nan, 0, np.nan])


def test_the_curve_has_no_place_for_a_block_of_zeros():
  zeros_RC = np.zeros((8, 2))
  assert codecs.curve(zeros_RC, zeros_RC).count.sum() == 0


def test_what_cannot_be_compared_is_refused():
  with pytest.raises(ValueError, match='3 numbers sent, 2 arrived'):
    codecs.tally([1, 2, 3], [1, 2])
  with pytest.raises(ValueError, match='inf or NaN'):
    codecs.tally([1.0], [math.nan])

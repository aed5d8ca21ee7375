"""Levels: how near Squinch's are to the best there are."""

import itertools

import numpy as np
import pytest

from experiments.codec_study import gradient_codecs
from experiments.codec_study import level_maps
from experiments.codec_study import level_study
from experiments.codec_study import quality as codec_quality

DRAWN = level_study.distributions(6_000, seed=1)
SQUARES = (np.arange(1, 16) / 15) ** 2


def ratios(name):
  r = level_maps.ratios(DRAWN[name]).ravel()
  return r[r > 0]


@pytest.mark.parametrize('octaves', level_study.OCTAVES)
@pytest.mark.parametrize('header', ['ln6', 'quarter'])
def test_floor_is_within_a_tenth_of_the_best_power_law(octaves, header):
  found = level_study.study(DRAWN[f'log-uniform {octaves}'], header)
  assert found.floor <= 1.10 * found.power.error
  # Both are held to what no sixteen levels do better than.
  assert found.best_error < found.power.error


def test_distributions_are_what_their_names_say():
  for octaves in level_study.OCTAVES:
    r = level_maps.ratios(DRAWN[f'log-uniform {octaves}'], None)
    # Eight numbers evenly in [0, 1): the largest is 1/9 below the upper end on
    # average, and the mean 1/2 below it.
    assert np.mean(-np.log2(r)) == pytest.approx(
      octaves * (1 / 2 - 1 / 9), rel=0.02
    )
    assert np.max(-np.log2(r)) < octaves
  r = level_maps.ratios(DRAWN['Gaussian'], None)
  assert np.all(r.max(axis=0) == 1)
  again = level_study.distributions(6_000, seed=1)
  np.testing.assert_array_equal(again['Laplace'], DRAWN['Laplace'])


@pytest.mark.parametrize('header', ['ln6', 'quarter', None])
def test_ratios_are_those_of_the_definition(header):
  x_RC = np.array([[3.0, 0], [-1, 0], *[[0, 0]] * 6], np.float32)
  # floor(6·ln 3 + 129) = 135; the next quarter above 3 is 2^1.75.
  maxabs = {'ln6': np.exp(7 / 6), 'quarter': 2**1.75, None: 3}[header]
  r_RC = level_maps.ratios(x_RC, header)
  np.testing.assert_allclose(r_RC[:3, 0], [3 / maxabs, 1 / maxabs, 0])
  assert np.all(np.isnan(r_RC[:, 1]))


@pytest.mark.parametrize('header', ['ln6', 'quarter'])
def test_a_map_of_squares_arrives_as_squinch_but_for_its_edges(header):
  x_RC = DRAWN['Laplace'][:, :2000]
  arrived = level_maps.decoded(
    x_RC, SQUARES, level_maps.ZERO_FLUSHES_BELOW, header
  )
  zero = np.asarray(gradient_codecs.squinch(x_RC, 'zero', header))
  # Halves of the root and means of the logarithm lie close together.
  same = np.isclose(arrived, zero, rtol=1e-5)
  assert same.mean() > 0.95
  np.testing.assert_array_equal(arrived == 0, zero == 0)
  assert np.all(arrived * x_RC >= 0)


def test_a_map_without_a_zero_raises_zeros_but_not_blocks_of_them():
  x_RC = np.zeros((8, 2), np.float32)
  x_RC[0, 0] = -1
  arrived = level_maps.decoded(x_RC, np.array([0.25, 1.0]))
  largest = np.exp(1 / 6)  # floor(6·ln 1 + 129) = 129.
  np.testing.assert_allclose(arrived[:2, 0], [-largest, largest / 4])
  assert np.all(arrived[:, 1] == 0)


def test_errors_by_hand():
  levels = np.array([0.1, 0.4])  # The edge is at 0.2.
  r = np.array([0.05, 0.19, 0.21, 0.4])
  np.testing.assert_array_equal(
    level_maps.nearest(r, levels), [0.1, 0.1, 0.4, 0.4]
  )
  wanted = (np.log(2) + np.log(1.9) + np.log(0.4 / 0.21)) / 4
  assert level_maps.error(r, levels) == pytest.approx(wanted)


def test_the_best_levels_are_those_of_every_way_to_cut():
  r = np.sort(np.random.default_rng(0).uniform(0.01, 1, 12))

  def paid(part):
    return np.abs(np.log(part) - np.median(np.log(part))).sum()

  least = min(
    paid(r[:a]) + paid(r[a:b]) + paid(r[b:])
    for a, b in itertools.combinations(range(1, 12), 2)
  )
  levels = level_maps.best_levels(r, 3)
  assert 12 * level_maps.error(r, levels) == pytest.approx(least)


@pytest.mark.parametrize('name', DRAWN)
def test_no_map_of_sixteen_levels_beats_the_best(name):
  r = ratios(name)
  best = level_maps.error(r, level_maps.best_levels(r))
  rng = np.random.default_rng(0)
  for _ in range(20):
    levels = level_maps.best_levels(r) * np.exp(rng.normal(0, 0.03, 16))
    assert level_maps.error(r, levels) > best
  assert level_maps.power_law(r).error > best


def test_on_even_logarithms_the_best_levels_are_even_too():
  r = np.exp2(-np.random.default_rng(0).uniform(0, 4, 200_000))
  levels = np.log2(level_maps.best_levels(r))
  np.testing.assert_allclose(np.diff(levels), 4 / 16, atol=0.02)
  # Sixteen intervals of a quarter of an octave: a quarter of it is the mean.
  wanted = np.log(2) * 4 / 16 / 4
  assert level_maps.error(r, np.exp2(levels)) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize('power, offset', [(2.0, 0.5), (1.5, 0.9), (3.0, 0.3)])
def test_a_power_law_is_found_again(power, offset):
  levels = ((np.arange(16) + offset) / 16) ** power
  found = level_maps.power_law(np.repeat(levels, 50))
  assert found.power == pytest.approx(power, abs=0.02)
  assert found.offset == pytest.approx(offset, abs=0.02)
  assert found.error < 0.01


@pytest.mark.parametrize('name', ['log-uniform 5', 'Student t₃'])
def test_no_power_law_of_a_fine_grid_is_better(name):
  r = ratios(name)[::4]
  found = level_maps.power_law(r)
  for power, offset in itertools.product(
    np.arange(1, 4, 0.05), np.arange(0.05, 1.01, 0.05)
  ):
    levels = ((np.arange(16) + offset) / 16) ** power
    assert level_maps.error(r, levels) > 0.999 * found.error


def test_refined_levels_are_nearer_and_lose_no_squares():
  r = ratios('Gaussian')
  r = r[r >= level_maps.ZERO_FLUSHES_BELOW]
  levels = level_maps.refined(r, SQUARES)
  assert level_maps.error(r, levels) < 0.97 * level_maps.error(r, SQUARES)

  def square(levels):
    return np.mean(np.square(r - level_maps.nearest(r, levels)))

  assert square(levels) < square(SQUARES)
  # Each is best at what it was asked for.
  alone = level_maps.refined(r, SQUARES, squares=0)
  assert level_maps.error(r, alone) < level_maps.error(r, levels)
  assert square(levels) < 0.99 * square(alone)


def test_fitted_maps_flush_what_zero_flushes():
  x_RC = DRAWN['Laplace']
  found = level_study.held_out(level_study.fitted(x_RC), x_RC)
  flushed = found['zero'].flushed
  assert 0 < flushed < 0.01
  for name, quality in found.items():
    wanted = flushed if 'zero' in name or name == 'fitted' else 0
    assert quality.flushed == pytest.approx(wanted, abs=2e-5)
  assert found['best 16'].log_error < found['floor'].log_error
  assert found['zero, best 15'].log_error < found['zero'].log_error


def test_a_sample_is_whole_columns():
  x_RC = np.arange(8 * 100).reshape(8, 100)
  drawn_RC = level_study.sampled(x_RC, 80)
  assert drawn_RC.shape == (8, 10)
  places = drawn_RC[0]
  assert len(set(places.tolist())) == 10
  np.testing.assert_array_equal(drawn_RC, x_RC[:, places])
  assert level_study.sampled(x_RC, 800) is x_RC


def test_the_study_says_what_squinch_does():
  x_RC = DRAWN['Student t₃']
  found = level_study.study(x_RC)
  zero = codec_quality.quality(
    codec_quality.tally(x_RC, gradient_codecs.squinch(x_RC, 'zero'))
  )
  assert (found.zero, found.flushed) == (zero.log_error, zero.flushed)
  assert found.zero > found.zero_best and found.floor > found.best_error

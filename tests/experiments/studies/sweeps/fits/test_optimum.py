"""The best rate over widths, from planted curves with noise."""

import numpy as np
import pytest

from kaiju_jax.experiments.studies.sweeps.fits import optimum

RATES = np.log(2e-3 * np.sqrt(2.0) ** np.arange(-4, 5))


def planted(best, seeds=4, noise=2e-3, rates=RATES, seed=0):
  """Losses [S, R] of a parabola that steepens where rates diverge."""
  rng = np.random.default_rng(seed)
  x = rates - best
  loss = 2.0 + 0.05 * x**2 + 0.05 * np.maximum(x - 0.9, 0) ** 3
  shared = rng.normal(0, 0.02, (seeds, 1))  # A seed's own level.
  return loss + shared + rng.normal(0, noise, (seeds, len(rates)))


@pytest.mark.parametrize('best', [-6.5, -6.2, -5.9])
def test_the_vertex_is_found_between_the_rates(best):
  found = optimum.optimum(RATES, planted(best))
  assert abs(found.log_rate - best) < 0.1
  assert abs(found.loss - 2.0) < 0.03
  low, high = found.interval()
  assert low - 0.02 < best < high + 0.02 and high - low < 0.5
  assert found.doubts == ()


def test_one_seed_has_no_interval():
  found = optimum.optimum(RATES, planted(-6.2, seeds=1, noise=0.0))
  assert abs(found.log_rate + 6.2) < 1e-6
  assert np.isnan(found.interval()).all()


@pytest.mark.parametrize(
  'best, which', [(RATES[0] - 0.5, 'lowest'), (RATES[-1] + 0.5, 'highest')]
)
def test_an_optimum_at_the_edge_is_not_trusted(best, which):
  found = optimum.optimum(RATES, planted(best))
  assert found.doubts == (
    f'the best rate is the {which} of the grid: extend it',
  )


def test_a_parabola_far_below_all_that_was_measured_is_not_trusted():
  """Three rates so far apart that none is near the optimum."""
  rates = np.log([2e-3, 8e-3, 3.2e-2])
  found = optimum.optimum(rates, np.array([[3.0, 2.0, 2.01]]), factor=4.0)
  assert 'under all that was measured' in found.doubts[0]
  near = optimum.optimum(rates, np.array([[2.01, 2.0, 2.008]]), factor=4.0)
  assert near.doubts == ()


def test_a_rate_that_diverges_is_the_worst_not_nan():
  losses = planted(-6.2)
  losses[1, -2:] = np.nan, np.inf
  found = optimum.optimum(RATES, losses)
  assert abs(found.log_rate + 6.2) < 0.1


def test_the_next_width_is_predicted_and_the_first_ones_rate_misses_it():
  """ln r* falls by .8 per ln W; the contrast keeps the narrowest's rate."""
  widths = [48, 64, 96, 128]
  true = {w: -5.6 - 0.8 * np.log(w / 48) for w in [*widths, 192]}
  optima = [
    optimum.optimum(RATES, planted(true[w], noise=1e-3, seed=w)) for w in widths
  ]
  line = optimum.line(widths, optima)
  assert abs(line.b + 0.8) < 0.1
  low, high = line.slope_interval()
  assert low < -0.8 < high or abs(line.b + 0.8) < 0.05
  assert abs(line.predict(192) - true[192]) < np.log(1.4) / 2
  low, high = line.interval(192)
  assert low < line.predict(192) < high
  assert abs(optima[0].log_rate - true[192]) > 2 * np.log(1.4)


def test_intervals_hold_the_middle_95_percent_of_the_draws():
  draws = np.random.default_rng(0).permutation(401) / 400
  found = optimum.Optimum(0.5, 2.0, draws, ())
  assert found.interval() == pytest.approx((0.025, 0.975))
  line = optimum.Line(0.0, 0.5, np.stack([0 * draws, draws], axis=1))
  assert line.slope_interval() == pytest.approx((0.025, 0.975))
  assert line.interval(np.e) == pytest.approx((0.025, 0.975))

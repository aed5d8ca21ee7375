"""The scaling law, from planted losses with noise."""

import numpy as np
import pytest

from kaiju_jax.experiments.studies.sweeps.fits import scaling

TRUE = scaling.Law(e=1.2, a=30.0, b=60.0, alpha=0.4, beta=0.35)
SIZES = 2e4 * 2.0 ** np.arange(5)
TOKENS = 2.5e5 * 2.0 ** np.arange(4)


def runs(law=TRUE, noise=1e-3, seed=0):
  n, d = (x.ravel() for x in np.meshgrid(SIZES, TOKENS))
  rng = np.random.default_rng(seed)
  return n, d, law.predict(n, d) * (1 + rng.normal(0, noise, len(n)))


def test_exact_losses_give_back_the_law():
  found = scaling.fit(*runs(noise=0.0), draws=2)
  np.testing.assert_allclose(found.law, TRUE, rtol=2e-2)
  np.testing.assert_allclose(found.residuals, 0, atol=1e-5)


def test_the_largest_run_is_predicted_and_both_contrasts_miss_it():
  """Eight times the parameters and tokens of the largest that is fitted."""
  n, d, y = runs()
  truth = TRUE.predict(16 * SIZES[-1], 16 * TOKENS[-1])
  found = scaling.fit(n, d, y)
  place = 16 * SIZES[-1], 16 * TOKENS[-1]
  assert abs(found.law.predict(*place) / truth - 1) < 0.02
  low, high = found.predict_interval(*place)
  assert low < truth < high
  without = scaling.fit(n, d, y, with_e=False, draws=2)
  assert abs(without.law.predict(*place) / truth - 1) > 0.04
  assert y[-1] / truth - 1 > 0.1, 'the last point carried over'


def test_a_law_of_another_form_leaves_a_pattern():
  """Tokens that a large model gains more from: no sum of two terms does so."""
  n, d, y = runs()
  bent = y * (1 + 0.02 * np.log(n / SIZES[2]) * np.log(d / TOKENS[1]))
  assert scaling.fit(n, d, y, draws=2).doubts == ()
  doubts = ' '.join(scaling.fit(n, d, bent, draws=2).doubts)
  assert 'the residuals follow a curve' in doubts


def test_what_the_data_do_not_say_is_doubted():
  flat = scaling.Law(1.2, 0.0, 60.0, 0.4, 0.35)
  assert scaling.fit(*runs(flat), draws=2).doubts
  noisy = scaling.fit(*runs(noise=0.05), draws=30)
  assert any('hardly determined' in doubt for doubt in noisy.doubts)


@pytest.mark.parametrize(
  'keep, message',
  [(slice(0, 5), '5 runs of 5 sizes and 1 token'), (slice(0, 10), '2 token')],
)
def test_too_few_runs_are_refused(keep, message):
  with pytest.raises(ValueError, match=message):
    scaling.fit(*(x[keep] for x in runs()))


def test_a_loss_that_is_not_finite_is_refused():
  n, d, y = runs()
  y[3] = np.nan
  with pytest.raises(ValueError, match='losses must be finite'):
    scaling.fit(n, d, y)


def test_intervals_hold_the_middle_95_percent_of_the_draws():
  values = np.random.default_rng(0).permutation(401) / 400
  laws = tuple(scaling.Law(value, 0, 0, 1, 1) for value in values.tolist())
  found = scaling.Fit(laws[0], np.zeros(1), laws, ())
  assert found.interval('e') == pytest.approx((0.025, 0.975))
  assert found.predict_interval(10, 10) == pytest.approx((0.025, 0.975))

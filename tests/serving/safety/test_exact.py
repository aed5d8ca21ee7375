"""Exact bounds, against scipy's own and against the sources' figures."""

import pytest
from scipy import stats

from kaiju_jax.serving.safety import exact


@pytest.mark.parametrize('trials', [1, 7, 600, 2995])
@pytest.mark.parametrize('confidence', [0.9, 0.95, 0.975])
def test_bounds_are_scipys(trials, confidence):
  for hits in {0, 1, trials // 2, trials - 1, trials}:
    for alternative, ours in (
      ('greater', exact.at_least(hits, trials, confidence)),
      ('less', exact.at_most(hits, trials, confidence)),
    ):
      test = stats.binomtest(hits, trials, alternative=alternative)
      theirs = test.proportion_ci(confidence, 'exact')
      theirs = theirs.low if alternative == 'greater' else theirs.high
      assert ours == pytest.approx(theirs, abs=1e-9)


def test_the_figures_of_the_evaluation():
  assert exact.at_most(0, 300, 0.95) == pytest.approx(0.00994, abs=1e-5)
  assert exact.at_most(1, 600, 0.95) == pytest.approx(0.00788, abs=1e-5)
  assert exact.at_most(2, 600, 0.95) == pytest.approx(0.01046, abs=1e-5)
  assert exact.count_needed(0.01, 0.95) == 299
  assert exact.count_needed(0.001, 0.95) == 2995


@pytest.mark.parametrize('claim', [0.3, 0.01, 0.002])
def test_needed_is_the_least(claim):
  trials = exact.count_needed(claim, 0.975)
  assert exact.at_most(0, trials, 0.975) <= claim
  assert exact.at_most(0, trials - 1, 0.975) > claim


@pytest.mark.parametrize(
  'rate, claim, power', [(0.0, 0.05, 0.8), (0.01, 0.05, 0.8), (0.02, 0.03, 0.6)]
)
def test_so_many_trials_prove_the_claim_so_often(rate, claim, power):
  def chance(trials):
    hits = range(trials + 1)
    proven = [x for x in hits if exact.at_most(x, trials, 0.95) <= claim]
    return stats.binom.cdf(max(proven), trials, rate) if proven else 0.0

  trials = exact.count_for_power(rate, claim, 0.95, power)
  # The chance falls until one hit more is allowed: one trial less is too few.
  assert chance(trials - 1) < power <= chance(trials)


@pytest.mark.parametrize(
  'rate, power, field', [(0.05, 0.8, 'rate'), (-0.1, 0.8, 'rate'),
                         (0.01, 0.0, 'power'), (0.01, 1.0, 'power')],
)  # fmt: skip
def test_a_power_that_no_count_has_is_refused(rate, power, field):
  with pytest.raises(ValueError, match=f'^{field}='):
    exact.count_for_power(rate, 0.05, 0.95, power)


def test_refusals():
  for hits, trials in (-1, 5), (6, 5), (0, 0):
    with pytest.raises(ValueError, match=f'{hits} of {trials}: needs'):
      exact.at_least(hits, trials, 0.95)
  with pytest.raises(ValueError, match=r'confidence=1\.0'):
    exact.at_most(1, 5, 1.0)
  with pytest.raises(ValueError, match=r'claim=0'):
    exact.count_needed(0, 0.95)

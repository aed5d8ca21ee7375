"""Intervals, held to scipy, to published tables and to arithmetic by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from kaiju_jax.reporting import statistics


@pytest.mark.parametrize('total', [1, 8, 704])
def test_wilson_is_scipys(total):
  for right in {0, 1, total // 3, total - 1, total}:
    theirs = stats.binomtest(right, total).proportion_ci(method='wilson')
    assert statistics.wilson(right, total) == pytest.approx(
      (theirs.low, theirs.high), abs=1e-12
    )


def test_all_right_is_not_surely_always_right():
  low, high = statistics.wilson(704, 704)
  assert high == 1 and low == pytest.approx(1 - 3.8416 / 707.84, abs=1e-4)
  assert statistics.wilson(0, 704).low == 0


def test_the_difference_is_newcombes_published_one():
  # Newcombe 1998, table II, contrast (a), method 10.
  d, interval = statistics.newcombe((56, 70), (48, 80))
  assert d == pytest.approx(0.2)
  assert interval == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_differences_change_sign_with_their_order():
  cases = [(0, 9), (4, 9), (9, 9), (100, 352), (351, 352)]
  for first, second in itertools.product(cases, cases):
    d, (low, high) = statistics.newcombe(first, second)
    back, (back_low, back_high) = statistics.newcombe(second, first)
    assert (d, low, high) == pytest.approx((-back, -back_high, -back_low))
    assert low <= d <= high


@pytest.mark.parametrize('trials', [1, 7, 600, 2995])
@pytest.mark.parametrize('confidence', [0.9, 0.95, 0.975])
def test_bounds_are_scipys(trials, confidence):
  for hits in {0, 1, trials // 2, trials - 1, trials}:
    for alternative, ours in (
      ('greater', statistics.at_least(hits, trials, confidence)),
      ('less', statistics.at_most(hits, trials, confidence)),
    ):
      test = stats.binomtest(hits, trials, alternative=alternative)
      theirs = test.proportion_ci(confidence, 'exact')
      theirs = theirs.low if alternative == 'greater' else theirs.high
      assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize('claim', [0.3, 0.01, 0.002])
def test_needed_is_the_least(claim):
  trials = statistics.count_needed(claim, 0.975)
  assert statistics.at_most(0, trials, 0.975) <= claim
  assert statistics.at_most(0, trials - 1, 0.975) > claim


@pytest.mark.parametrize(
  'rate, claim, power', [(0.0, 0.05, 0.8), (0.01, 0.05, 0.8), (0.02, 0.03, 0.6)]
)
def test_so_many_trials_prove_the_claim_so_often(rate, claim, power):
  def chance(trials):
    hits = range(trials + 1)
    proven = [x for x in hits if statistics.at_most(x, trials, 0.95) <= claim]
    return stats.binom.cdf(max(proven), trials, rate) if proven else 0.0

  trials = statistics.count_for_power(rate, claim, 0.95, power)
  # The chance falls until one hit more is allowed: one trial less is too few.
  assert chance(trials - 1) < power <= chance(trials)


@pytest.mark.parametrize(
  'rate, power, field', [(0.05, 0.8, 'rate'), (-0.1, 0.8, 'rate'),
                         (0.01, 0.0, 'power'), (0.01, 1.0, 'power')],
)  # fmt: skip
def test_a_power_that_no_count_has_is_refused(rate, power, field):
  with pytest.raises(ValueError, match=f'^{field}='):
    statistics.count_for_power(rate, 0.05, 0.95, power)


def test_refusals():
  for hits, trials in (-1, 5), (6, 5), (0, 0):
    for bound in statistics.wilson, lambda *x: statistics.at_least(*x, 0.95):
      with pytest.raises(ValueError, match=f'{hits} of {trials}: needs'):
        bound(hits, trials)
  with pytest.raises(ValueError, match=r'confidence=1\.0'):
    statistics.at_most(1, 5, 1.0)
  with pytest.raises(ValueError, match=r'claim=0'):
    statistics.count_needed(0, 0.95)


def test_one_seed_has_a_difference_and_no_interval():
  d = statistics.difference({0: 3.0}, {0: 1.0, 1: 2.0})
  assert (d.mean, d.baseline, d.seeds) == (2.0, 1.0, 1)
  assert math.isnan(d.half_width)
  assert math.isnan(statistics.spread([3.0]))


@pytest.mark.parametrize('count, other', [(1, 1), (1, 5), (0, 3)])
def test_too_few_seeds_say_so_instead_of_an_interval(count, other):
  arm, baseline = dict.fromkeys(range(count), 3.0), {9: 1.0, 8: 1.0, 7: 1.0}
  baseline = dict(list(baseline.items())[:other])
  d = statistics.difference(arm, baseline)
  assert (d.how, d.seeds) == ('too few', 0)
  for value in (d.half_width, d.p, d.detectable(), d.detectable(3)):
    assert math.isnan(value)
  assert str(d) == ('+2.0000 (no interval: too few seeds)' if count else '–')


def test_a_diverged_seed_leaves_no_difference():
  d = statistics.difference({0: math.nan, 1: 1.0}, {0: 1.0, 1: 1.0})
  assert math.isnan(d.mean) and math.isnan(d.half_width)


@pytest.mark.parametrize('count', [2, 3, 8])
def test_a_paired_difference_is_scipys_t_test(count):
  random = np.random.default_rng(count)
  arm, baseline = random.normal([[0.3], [0]], 1, (2, count))
  ours = statistics.difference(
    # In other orders, and with a seed of its own each.
    {99: 5.0} | dict(enumerate(arm)),
    dict(reversed([*enumerate(baseline), (98, -5.0)])),
  )
  theirs = stats.ttest_rel(arm, baseline)
  low, high = theirs.confidence_interval()
  assert (ours.how, ours.seeds, ours.freedom) == ('paired', count, count - 1)
  assert ours.p == pytest.approx(theirs.pvalue)
  assert ours.mean - ours.half_width == pytest.approx(low)
  assert ours.mean + ours.half_width == pytest.approx(high)
  assert ours.baseline == pytest.approx(baseline.mean())
  assert statistics.half_width(arm - baseline) == pytest.approx(ours.half_width)


@pytest.mark.parametrize('counts', [(2, 2), (3, 7), (8, 2)])
@pytest.mark.parametrize('shared', [False, True])
def test_without_pairs_a_difference_is_welchs(counts, shared):
  random = np.random.default_rng(counts)
  arm, baseline = (
    random.normal(0, scale, count) for scale, count in zip((1, 5), counts)
  )
  # One seed in common is no pair of seeds.
  seeds = range(counts[0] - shared, 20)
  ours = statistics.difference(dict(enumerate(arm)), dict(zip(seeds, baseline)))
  theirs = stats.ttest_ind(arm, baseline, equal_var=False)
  assert (ours.how, ours.seeds) == ('Welch', 0)
  assert ours.p == pytest.approx(theirs.pvalue)
  assert ours.freedom == pytest.approx(theirs.df)
  low, high = theirs.confidence_interval()
  assert ours.mean + ours.half_width == pytest.approx(high)
  assert ours.mean - ours.half_width == pytest.approx(low)
  assert ours.baseline == pytest.approx(baseline.mean())


def test_equal_differences_are_certain_and_none_is_none():
  same = statistics.difference({0: 1.25, 1: 50.25}, {0: 1.0, 1: 50.0})
  assert (same.mean, same.p, same.half_width) == (0.25, 0, 0)
  nothing = statistics.difference({0: 2.0, 1: 2.0}, {4: 2.0, 5: 2.0})
  assert (nothing.how, nothing.p, nothing.half_width) == ('Welch', 1, 0)


def test_holm_by_hand():
  ps = [0.01, math.nan, 0.04, 0.03, 0.005]
  # Sorted ·4, ·3, ·2, ·1: .02, .03, .06, .04, which must not fall.
  found = statistics.holm(ps)
  assert math.isnan(found.pop(1))
  assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert statistics.holm([0.6, 0.7]) == [1, 1] and statistics.holm([]) == []


@pytest.mark.parametrize('count, compared', [(2, 1), (3, 1), (3, 11), (20, 4)])
@pytest.mark.parametrize('power', [0.5, 0.8, 0.95])
def test_the_smallest_effect_is_shown_with_the_asked_power(
  count, compared, power
):
  one = statistics.difference(
    {seed: seed % 3 * 0.7 for seed in range(count)},
    dict.fromkeys(range(count), 0.0),
  )
  shift = one.detectable(compared, power) / one.error
  critical = stats.t.isf(0.05 / compared / 2, count - 1)
  found = stats.nct.sf(critical, count - 1, shift)
  assert found == pytest.approx(power, abs=1e-3)
  assert one.detectable() == one.detectable(1, 0.8)

"""Intervals of proportions, held to scipy and to a published table."""

import itertools

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
  d, interval = statistics.difference((56, 70), (48, 80))
  assert d == pytest.approx(0.2)
  assert interval == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_differences_change_sign_with_their_order():
  cases = [(0, 9), (4, 9), (9, 9), (100, 352), (351, 352)]
  for first, second in itertools.product(cases, cases):
    d, (low, high) = statistics.difference(first, second)
    back, (back_low, back_high) = statistics.difference(second, first)
    assert (d, low, high) == pytest.approx((-back, -back_high, -back_low))
    assert low <= d <= high


@pytest.mark.parametrize('right, total', [(0, 0), (3, 2), (-1, 2)])
def test_what_is_no_proportion_is_refused(right, total):
  with pytest.raises(ValueError, match=f'right={right}, total={total}: '):
    statistics.wilson(right, total)

"""The filter: a character counts for 10 times its share of the week."""

import numpy as np
import pytest

from kaiju_jax.serving.drift import guard as guard_lib

DAY = guard_lib.DAY


def week(tokens, days=7):
  shares = guard_lib.Shares()
  for day in range(days):
    shares.add(tokens, day * DAY)
  return shares, days * DAY


def counted(tokens, weights):
  return {x: n * weights[x] for x, n in tokens.items()}


def test_before_a_day_nothing_is_cut():
  shares = guard_lib.Shares()
  tokens = {b'a': 1.0, b'b': 99.0}
  assert shares.weigh(tokens, 0.0) == {b'a': 1.0, b'b': 1.0}
  shares.add({b'a': 1.0}, 100.0)
  assert shares.weigh(tokens, DAY) == {b'a': 1.0, b'b': 1.0}
  assert shares.weigh(tokens, DAY + 100)[b'b'] < 1


def test_today_is_no_past():
  shares, now = week({b'a': 990.0, b'b': 10.0})
  tokens = {b'a': 10.0, b'b': 990.0}
  before = shares.weigh(tokens, now)
  shares.add(tokens, now)
  assert shares.weigh(tokens, now + DAY / 2) == before
  assert shares.weigh(tokens, now + DAY) == {b'a': 1.0, b'b': 1.0}


def test_the_baseline_is_of_seven_days():
  shares, _ = week({b'a': 100.0}, days=1)
  tokens = {b'a': 50.0, b'b': 50.0}
  for day in range(1, 9):
    shares.add({b'b': 100.0}, day * DAY)
    # Of seven days, a has one until the eighth.
    assert (shares.weigh(tokens, day * DAY)[b'a'] == 1) == (day < 8)
  assert sorted(shares.days) == list(range(1, 9))


@pytest.mark.parametrize('seed', range(200))
def test_no_character_counts_for_more_than_its_bound(seed):
  rng = np.random.default_rng(seed)

  def draw():
    names = rng.choice(40, rng.integers(1, 40), replace=False)
    return {bytes([x]): float(rng.integers(1, 1000)) for x in names.tolist()}

  before, tokens = draw(), draw()
  shares, now = week(before)
  weights = shares.weigh(tokens, now)
  assert weights.keys() == tokens.keys()
  assert all(0 < x <= 1 + 1e-9 for x in weights.values())
  found, total = counted(tokens, weights), sum(before.values())
  bounds = {
    x: min(1, max(guard_lib.FLOOR, 10 * before.get(x, 0) / total))
    for x in tokens
  }
  if sum(bounds.values()) < 1:
    # Nobody fills the rest: all stand at their bounds, in proportion.
    ratios = [found[x] / bounds[x] for x in tokens]
    assert max(ratios) == pytest.approx(min(ratios))
    return
  for x in tokens:
    share = found[x] / sum(found.values())
    assert share <= bounds[x] * (1 + 1e-9)
    # Nobody is cut below it.
    assert weights[x] > 1 - 1e-9 or share == pytest.approx(bounds[x])


def test_what_is_remembered_of_a_day_is_bounded(monkeypatch):
  monkeypatch.setattr(guard_lib, 'REMEMBERED', 10)
  shares = guard_lib.Shares()
  shares.add({b'%d' % n: 1.0 + n for n in range(25)}, 0.0)
  assert set(shares.days[0]) == {b'%d' % n for n in range(20, 25)}

"""The guard: what freezes it, what does not, and what cannot move its bar."""

import math

import numpy as np
import pytest

from kaiju_jax.serving.drift import guard as guard_lib
from kaiju_jax.serving.drift import histograms


def quiet(count, seed=0, degrees=40):
  """Returns divergences as of finite samples: sums of squares."""
  rng = np.random.default_rng(seed)
  values = rng.chisquare(degrees, (count, 2)) / degrees * [0.04, 0.002]
  return [histograms.Divergence(*map(float, pair)) for pair in values]


def times(one, factor):
  return histograms.Divergence(one.tokens * factor, one.codes * factor)


@pytest.fixture
def guard():
  """Returns a guard with 200 quiet windows behind it."""
  made = guard_lib.Guard()
  for one in quiet(200):
    made.judge(one)
  assert not made.is_frozen
  return made


def plain(values):
  """Returns which windows a mean + 3 σ of KL lets stand out."""
  history, found = list(values[: guard_lib.LEAST]), []
  for value in values[guard_lib.LEAST :]:
    above = value > np.mean(history) + 3 * np.std(history)
    found.append(above)
    if not above:
      history.append(value)
  return found


def test_quiet_windows_hardly_ever_freeze_it_and_do_a_plain_rule():
  """At most .3 % of 3,000 windows, whose KL has the skew of 12 squares."""
  guard, frozen = guard_lib.Guard(), 0
  windows = quiet(guard_lib.LEAST + 3_000, degrees=12)
  for number, one in enumerate(windows):
    was = guard.is_frozen
    guard.judge(one)
    assert number >= guard_lib.LEAST or not guard.is_frozen
    frozen += guard.is_frozen and not was
  assert frozen <= 9
  contrast = plain([one.tokens for one in windows])
  assert np.mean(contrast) > 0.003


@pytest.mark.parametrize(
  'windows, factor, frozen_at',
  [('LLL', 3, 2), ('LCCLCC', 9, None), ('LCL', 9, 3)],
)
def test_two_loud_windows_of_three_freeze_it(guard, windows, factor, frozen_at):
  calm = quiet(1, seed=2)[0]
  for number, one in enumerate(windows, 1):
    assert guard.judge(times(calm, factor) if one == 'L' else calm) == (
      one == 'C'
    )
    assert guard.is_frozen == (frozen_at is not None and number >= frozen_at)


@pytest.mark.parametrize('which', ['tokens', 'codes'])
def test_either_divergence_freezes_it(guard, which):
  for one in quiet(2, seed=3):
    value = 5 * getattr(one, which)
    assert not guard.judge(one._replace(**{which: value}))
  assert guard.is_frozen


def test_it_thaws_after_calm_windows_in_a_row(guard):
  loud = times(quiet(1)[0], 9)
  for _ in range(2):
    guard.judge(loud)
  calm = quiet(2 * guard_lib.CALM, seed=4)
  for one in calm[: guard_lib.CALM - 1]:
    guard.judge(one)
  guard.judge(loud)  # Begins anew.
  for number, one in enumerate(calm[: guard_lib.CALM]):
    assert guard.is_frozen, number
    guard.judge(one)
  assert not guard.is_frozen


def test_what_stands_out_never_enters_the_history(guard):
  before = guard.tokens.threshold, guard.codes.threshold
  for _ in range(500):
    guard.judge(times(quiet(1)[0], 3))
  assert (guard.tokens.threshold, guard.codes.threshold) == before


def test_a_tenth_of_strange_windows_in_the_history_hides_no_spike():
  """The share that a plain σ does not survive."""
  guard, values = guard_lib.Guard(), []
  for number, one in enumerate(quiet(guard_lib.LEAST)):
    one = times(one, 6) if number % 10 == 5 else one
    values.append(one.tokens)
    guard.judge(one)
  spike = histograms.Divergence(0.14, 0.007)
  assert spike.tokens < np.mean(values) + 3 * np.std(values)
  assert not guard.judge(spike)


def test_slow_drift_does_not_raise_the_bar_for_ever():
  guard = guard_lib.Guard()
  windows = quiet(10_000, seed=5)
  for one in windows[: guard_lib.LEAST]:
    guard.judge(one)
  first = guard.tokens.threshold
  for number, one in enumerate(windows):
    factor = math.exp(number / 1_500)
    guard.judge(times(one, factor))
    if guard.is_frozen:
      break
  assert guard.is_frozen and 1.5 < factor < 2 * guard_lib.RISE
  assert guard.tokens.threshold <= guard_lib.RISE * first * (1 + 1e-9)


def test_the_history_is_a_week():
  series = guard_lib.Series()
  for value in range(guard_lib.MOST + 50):
    series.add(value + 1.0)
  assert len(series.history) == guard_lib.MOST
  assert series.history[0] == math.log(51)


def test_the_threshold_is_three_sigmas_of_normal_logarithms():
  rng = np.random.default_rng(0)
  series = guard_lib.Series()
  assert series.threshold == math.inf
  for value in np.exp(rng.normal(-3, 0.2, guard_lib.MOST)):
    series.add(value)
  assert math.log(series.threshold) == pytest.approx(-3 + 0.6, abs=0.05)


def test_no_divergence_at_all_is_quiet():
  guard = guard_lib.Guard()
  for _ in range(2 * guard_lib.LEAST):
    assert guard.judge(histograms.Divergence(0.0, 0.0))

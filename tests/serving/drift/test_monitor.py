"""Windows end, count what they should, and checkpoints go on as they were."""

import numpy as np
import pytest

from kaiju_jax.serving.drift import guard as guard_lib
from kaiju_jax.serving.drift import monitor as monitor_lib
from tests.serving.drift import drawn_pages

LEARNED = monitor_lib.BASELINE + guard_lib.LEAST


def learned(days=0.0):
  """Returns a monitor with all its history, and the next window's second."""
  made = monitor_lib.Monitor(drawn_pages.LIMITS)
  step = max(monitor_lib.SECONDS, days * guard_lib.DAY / LEARNED)
  for number in range(LEARNED):
    made.close(drawn_pages.pages(number), number * step)
  return made, LEARNED * step


def test_a_window_ends_with_its_seconds_and_its_pages():
  made = monitor_lib.Monitor(drawn_pages.LIMITS)
  assert made.add(drawn_pages.pages(0, 80), 100.0) is None
  assert made.add(drawn_pages.pages(1, 80), 200.0) is None  # Too early.
  assert made.add([], 279.0) is None
  assert made.add([], 280.0) is not None
  assert (
    made.add(drawn_pages.pages(2, drawn_pages.PAGES - 1), 900.0) is None
  )  # Too few.
  assert made.add(drawn_pages.pages(3, 1), 910.0) is not None
  assert (
    made.windows == 2
    and made.baseline.tokens.sum()
    == (160 + drawn_pages.PAGES) * drawn_pages.SIZE
  )


def test_what_is_wanted_is_spread_over_the_window():
  made = monitor_lib.Monitor(drawn_pages.LIMITS)
  assert made.count_wanted(0.0) == 0
  assert made.count_wanted(monitor_lib.SECONDS / 2) == drawn_pages.PAGES // 2
  made.add(
    drawn_pages.pages(0, drawn_pages.PAGES // 2), monitor_lib.SECONDS / 2
  )
  assert made.count_wanted(monitor_lib.SECONDS / 2) == 0
  assert made.count_wanted(10 * monitor_lib.SECONDS) == drawn_pages.PAGES // 2
  made.add(drawn_pages.pages(0, drawn_pages.PAGES), 20 * monitor_lib.SECONDS)
  assert made.count_wanted(20 * monitor_lib.SECONDS) == 0


def test_the_baseline_comes_first_and_then_the_history():
  made = monitor_lib.Monitor(drawn_pages.LIMITS)
  for number in range(monitor_lib.BASELINE):
    one = made.close(drawn_pages.pages(number), 0.0)
    assert one.divergence is None and not one.is_quiet
  total = monitor_lib.BASELINE * drawn_pages.PAGES * drawn_pages.SIZE
  assert made.baseline.tokens.sum() == total and not made.recent.tokens.any()
  one = made.close(drawn_pages.pages(-1 % 2**32), 0.0)
  assert one.is_quiet and one.divergence.tokens > 0
  assert made.baseline.tokens.sum() == total
  assert made.recent.tokens.sum() == drawn_pages.PAGES * drawn_pages.SIZE


def test_strange_windows_are_not_counted_and_freeze():
  made, now = learned()
  assert not made.guard.is_frozen
  before = made.recent.codes.copy(), made.propose()
  for number in range(6):
    assert not made.close(drawn_pages.pages(number, foreign=40), now).is_quiet
  assert made.guard.is_frozen
  assert made.close(
    drawn_pages.pages(7), now
  ).is_quiet  # Quiet, and still frozen.
  np.testing.assert_array_equal(made.recent.codes, before[0])
  np.testing.assert_array_equal(made.propose(), before[1])


def test_the_filter_bounds_a_spike_that_the_guard_lets_pass():
  made, now = learned(days=2)
  made.guard.judge = lambda _: True
  for number in range(300):
    made.close(drawn_pages.pages(number, foreign=40), now + number * 180)
  # Only foreign codes are above 100.
  share = made.recent.codes[..., 101:].sum() / made.recent.codes.sum()
  # A character without a past counts for the floor, not for 40 of 128 pages.
  assert share == pytest.approx(guard_lib.FLOOR, rel=0.05)
  # Remembered is what was counted, or a spike would raise its own bound.
  today = made.shares.days[max(made.shares.days)]
  remembered = today[b'foreign'] / sum(today.values())
  assert remembered == pytest.approx(guard_lib.FLOOR, rel=0.05)


def test_older_windows_fade():
  made, _ = learned()
  full = made.recent.tokens.sum()
  most = drawn_pages.PAGES * drawn_pages.SIZE * monitor_lib.RECENT
  assert 0.5 * most < full < most


def test_a_checkpoint_goes_on_bit_for_bit():
  made, now = learned(days=2)
  for number in range(3):
    made.close(drawn_pages.pages(number, foreign=40), now)
  data = made.to_bytes({'weights': 'w'})
  again = monitor_lib.Monitor.from_bytes(memoryview(data))
  assert again.guard.is_frozen and again.windows == made.windows
  for name in 'tokens', 'codes':
    one, other = (getattr(x.guard, name) for x in (made, again))
    assert one.first == other.first is not None
  for number in range(3, 60):
    found = [
      one.close(drawn_pages.pages(number, foreign=number % 2), now + number)
      for one in (made, again)
    ]
    assert found[0] == found[1]
    assert made.guard.is_frozen == again.guard.is_frozen
  np.testing.assert_allclose(made.recent.codes, again.recent.codes, rtol=1e-5)
  assert made.shares == again.shares
  for name in 'tokens', 'codes':
    one, other = (getattr(x.guard, name) for x in (made, again))
    assert one.threshold == other.threshold < np.inf
  np.testing.assert_allclose(made.propose(), again.propose(), rtol=1e-6)


def test_what_is_no_checkpoint_is_refused():
  data = monitor_lib.Monitor(drawn_pages.LIMITS).to_bytes({})
  for wrong in (b'', data[:-10], data.replace(b'drift 1', b'drift 2')):
    with pytest.raises(ValueError, match=r'it is no checkpoint|its format'):
      monitor_lib.parse(wrong)

"""The clock of comparisons, on a clock that the test turns itself."""

import time

import pytest

from kaiju_jax.kernels import timing


@pytest.fixture
def clock(monkeypatch):
  """Returns how to make a run that takes the given seconds, call by call."""
  now = 0.0
  calls = []

  def run(name, costs):
    costs = iter(costs)

    def step():
      nonlocal now
      now += next(costs)
      calls.append(name)

    return step

  monkeypatch.setattr(time, 'perf_counter', lambda: now)
  run.calls = calls
  return run


def test_medians_of_interleaved_runs_after_an_untimed_call(clock):
  medians = timing.medians(
    {
      'a': clock('a', [100, 1, 100, 5, 100, 2]),
      'b': clock('b', [1, 40, 1, 20, 1, 30]),
    },
    repeats=3,
  )
  assert medians == pytest.approx({'a': 2, 'b': 30})
  assert ''.join(clock.calls) == 'aabb' * 3


def test_calls_sent_off_together_share_the_time(clock):
  medians = timing.medians(
    {'a': clock('a', [100, 1, 2, 6, 100, 2, 2, 2])}, repeats=2, calls=3
  )
  assert medians == pytest.approx({'a': (3 + 2) / 2})
  assert ''.join(clock.calls) == 'aaaa' * 2


def test_another_clock_counts():
  ticks = iter([10.0, 13.0])
  found = timing.medians({'a': lambda: ()}, 1, clock=lambda: next(ticks))
  assert found == {'a': 3.0}


def test_time_that_is_up_ends_after_a_whole_round(clock):
  runs = {'a': clock('a', [1, 4] * 9), 'b': clock('b', [1, 2] * 9)}
  with timing.bound_time(12):
    assert timing.time_left() == 12
    found = timing.spreads(runs, repeats=9)
  # A round takes 8 seconds: a second begins, a third does not.
  assert found == {'a': (4, 4, 4, 2), 'b': (2, 2, 2, 2)}
  with timing.bound_time(0), timing.bound_time(100):
    assert timing.spreads({'a': clock('a', [1, 4])}, repeats=9)['a'].rounds == 1
  assert timing.time_left() == float('inf')

"""The clock of comparisons, on a clock that the test turns itself."""

import time

import pytest

from kaiju_jax.kernels import timing


def test_medians_of_interleaved_runs_after_an_untimed_call(monkeypatch):
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
  medians = timing.medians(
    {
      'a': run('a', [100, 1, 100, 5, 100, 2]),
      'b': run('b', [1, 40, 1, 20, 1, 30]),
    },
    repeats=3,
  )
  assert medians == pytest.approx({'a': 2, 'b': 30})
  assert ''.join(calls) == 'aabb' * 3

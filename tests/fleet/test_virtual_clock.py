"""Simulated rounds, joins and caches against the engine's own scheduler."""

import numpy as np
import pytest

from kaiju_jax.fleet import events
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state
from tests.fleet import virtual_clock

LAW = state.Law(0.008, 2e-4, 1e-6, 1e-4, 1e-7, 3e-3)
SIZES = state.Sizes(6, 16, 64, 20_000, 20_000, 16, 1)
SHAPES = [(1, 8), (1, 64), (4, 16)]


def compare(
  seed, count, gap, monkeypatch, law=LAW, characters=5, prefix=(40, 400)
):
  trace, asked = virtual_clock.requests_of(
    seed, count, sessions=40, characters=characters, prefix=prefix, gap=gap
  )
  setup = simulator.Setup(1, 'random', law, SIZES, SHAPES)
  outcome, found = simulator.simulate_trace(setup, trace, loop=events)
  first, done, longest = virtual_clock.run_engine(
    trace, asked, LAW, SIZES, SHAPES, monkeypatch
  )
  return outcome, found, first, done, longest


@pytest.mark.parametrize('gap, waits', [(0.3, 0.01), (0.025, 0.05)])
def test_every_first_token_comes_within_a_round_of_the_engines(
  gap, waits, monkeypatch
):
  outcome, found, first, done, longest = compare(1, 120, gap, monkeypatch)
  assert outcome.token_hits > 0.5 and outcome.mean_ttft > waits
  assert np.abs(found['first_token'] - first).max() <= longest
  assert np.abs(found['last_token'] - done).max() <= longest
  # Most come in the very round.
  assert (np.abs(found['first_token'] - first) < 1e-9).mean() > 0.9


def test_a_law_without_the_chunks_tokens_is_more_than_a_round_off(monkeypatch):
  law = LAW._replace(token=0.0)
  _, found, first, _, longest = compare(1, 60, 0.07, monkeypatch, law)
  assert np.abs(found['first_token'] - first).max() > longest


def test_requests_wait_for_a_prefix_that_another_runs(monkeypatch):
  _, found, first, done, longest = compare(
    2, 24, 0.012, monkeypatch, characters=1, prefix=(390, 400)
  )
  # All but the first resume it.
  assert (found['resumed'] > 0).sum() == 23
  assert np.abs(found['first_token'] - first).max() <= longest
  assert np.abs(found['last_token'] - done).max() <= longest

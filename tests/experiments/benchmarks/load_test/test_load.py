"""Arrivals are a frozen Poisson process; figures are those counted by hand."""

import dataclasses
import math

import numpy as np
import pytest

from kaiju_jax.experiments.benchmarks.load_test import load

LOAD = load.Load(
  seed=3, rate=2.0, count=400, prompt=(5, 40), answer=(1, 9), shared=4
)


def changed(**changes) -> list[load.Arrival]:
  return load.arrivals(dataclasses.replace(LOAD, **changes))


def assert_same(some, others, scale=1.0):
  assert len(some) == len(others)
  for one, other in zip(some, others):
    assert one.seconds == pytest.approx(scale * other.seconds)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert one.max_tokens == other.max_tokens


def test_a_seed_gives_one_load_at_any_rate_and_a_longer_one_continues_it():
  assert_same(changed(), changed())
  assert_same(changed(count=20), changed()[:20])
  assert not np.array_equal(changed()[0].tokens, changed(seed=4)[0].tokens)
  assert_same(changed(rate=6.0), changed(), scale=1 / 3)
  assert_same(changed(rate=math.inf), changed(), scale=0)


def test_gaps_are_independent_and_exponential():
  """Mean and deviation 1 / rate, three sigma of 4,000 draws; no memory."""
  seconds = np.array([x.seconds for x in changed(count=4000)])
  gaps = np.diff(seconds, prepend=0)
  assert (gaps > 0).all()
  assert gaps.mean() == pytest.approx(0.5, abs=3 * 0.5 / 4000**0.5)
  assert np.median(gaps) == pytest.approx(0.5 * math.log(2), rel=0.06)
  assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 3 / 4000**0.5


def test_lengths_are_even_on_a_logarithm_and_reach_both_ends():
  drawn = changed(count=4000)
  prompts = np.array([len(x.tokens) for x in drawn])
  answers = np.array([x.max_tokens for x in drawn])
  assert (prompts.min(), prompts.max()) == (5, 40)
  assert (answers.min(), answers.max()) == (1, 9)
  # Lengths 5 … 13 are log(14 / 5) of log(41 / 5).
  part = math.log(14 / 5) / math.log(41 / 5)
  assert (prompts < 14).mean() == pytest.approx(part, abs=0.025)
  assert abs(np.corrcoef(prompts, answers)[0, 1]) < 0.05
  assert {len(x.tokens) for x in changed(prompt=(7, 7))} == {7}


def test_prompts_share_their_beginning_and_nothing_else():
  drawn = changed()
  for one in drawn:
    assert one.tokens.dtype == np.int32
    np.testing.assert_array_equal(one.tokens[:4], drawn[0].tokens[:4])
  assert len({int(x.tokens[4]) for x in drawn}) > 390
  assert len({int(x.tokens[0]) for x in changed(shared=0)}) > 390


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'rate': 0}, r'rate=0: must be above 0'),
    ({'rate': math.nan}, r'rate=nan: must be above 0'),
    ({'count': 0}, r'count=0: must be at least 1'),
    ({'prompt': (9, 8)}, r'prompt=\(9, 8\): must rise'),
    ({'answer': (0, 8)}, r'answer=\(0, 8\): must rise'),
    ({'shared': 5}, r'shared=5: must leave a token .* of 5'),
  ],
)
def test_impossible_loads_are_refused(changes, said):
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(LOAD, **changes)


def timeline(arrival, *seconds) -> load.Timeline:
  return load.Timeline(
    load.Arrival(arrival, np.zeros(3, np.int32), len(seconds)),
    np.zeros(len(seconds), np.int32),
    np.array(seconds, float),
  )


# Two answers, 3 and 2 tokens, and one request that was refused.
SERVED = [
  timeline(1.0, 1.5, 1.75, 3.0),
  timeline(2.0, 5.0, 6.0),
  timeline(2.5),
]


def test_figures_are_those_counted_by_hand():
  """First tokens after 0.5 and 3; gaps 0.25, 1.25 and 1; 5 tokens in 5 s."""
  served, refused, *times = load.figures(SERVED)
  assert (served, refused) == (2, 1)
  assert times == [0.5, 3.0, 1.0, 1.25, 1.0]


def test_percentiles_are_times_that_were_measured():
  """The 198th of 200 is the least that 99 % do not exceed."""
  seconds = np.random.default_rng(0).permutation(200) + 1.0
  assert load.percentile(seconds, 99) == 198
  assert load.percentile(seconds, 50) == 100
  assert load.percentile(seconds[:1], 99) == seconds[0]


def test_nothing_served_has_no_times():
  found = load.figures([timeline(0.0)])
  assert (found.served, found.refused, found.tokens_per_second) == (0, 1, 0)
  assert math.isnan(found.first_p50) and math.isnan(found.between_p99)
  # A single token has no gap.
  assert math.isnan(load.figures([timeline(0.0, 2.0)]).between_p50)

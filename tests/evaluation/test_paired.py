"""Results of a run, and paired differences, against arithmetic by hand."""

import math

import pytest

from kaiju_jax.evaluation import paired


def test_measures_take_the_last_steps_and_the_last_evaluation():
  records = [
    {'step': 1, 'tokens': 8, 'loss': 100.0},
    {'step': 100, 'tokens': 800, 'loss': 7.0},
    {'step': 100, 'tokens': 800, 'eval_loss': 9.0, 'eval_bits': 3.0},
    {'step': 101, 'tokens': 808, 'loss': 4.0},
    {'step': 200, 'tokens': 1600, 'loss': 2.0},
    {'step': 200, 'tokens': 1600, 'eval_loss': 5.0},
  ]
  # Steps 101 … 200 are the last hundred; step 100 is not among them.
  assert paired.measures(records) == {
    'loss': 3.0,
    'eval_loss': 5.0,
    'eval_bits': 3.0,
  }
  assert paired.measures(records, last=1)['loss'] == 2.0
  assert paired.measures(records[:3])['loss'] == 53.5
  assert paired.measures([]) == {}


def test_difference_by_hand():
  arm = {0: 2.0, 1: 2.5, 2: 3.3, 7: 99.0}
  baseline = {0: 1.9, 1: 2.2, 2: 3.1, 5: -1.0}
  # Differences .1, .3, .2: mean .2, sd .1; t(.975, 2) = 4.302653, and
  # 4.302653 · .1 / √3 = .248414. The baseline's mean is 7.2 / 3.
  d = paired.difference(arm, baseline)
  assert d.seeds == 3
  assert d.mean == pytest.approx(0.2)
  assert d.half_width == pytest.approx(0.248414, abs=1e-6)
  assert d.baseline == pytest.approx(2.4)


def test_an_interval_by_the_table_of_five_seeds():
  # 1 … 5: sd √2.5, t(.975, 4) = 2.776445.
  assert paired.half_width([1, 2, 3, 4, 5]) == pytest.approx(
    2.776445 * math.sqrt(2.5) / math.sqrt(5), abs=1e-6
  )


def test_pairing_removes_what_seeds_share():
  baseline = {0: 1.0, 1: 50.0, 2: -7.0}
  arm = {seed: value + 0.25 for seed, value in baseline.items()}
  d = paired.difference(arm, baseline)
  assert (d.mean, d.half_width) == (0.25, 0.0)


def test_one_seed_has_a_difference_and_no_interval():
  d = paired.difference({0: 3.0}, {0: 1.0, 1: 2.0})
  assert (d.mean, d.baseline, d.seeds) == (2.0, 1.0, 1)
  assert math.isnan(d.half_width)
  assert math.isnan(paired.spread([3.0]))


def test_no_seed_in_common_and_a_diverged_one():
  assert math.isnan(paired.difference({0: 3.0}, {1: 1.0}).mean)
  d = paired.difference({0: math.nan, 1: 1.0}, {0: 1.0, 1: 1.0})
  assert math.isnan(d.mean) and math.isnan(d.half_width)

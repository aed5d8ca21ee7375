"""The largest batch within ε, and the schedule that follows."""

import numpy as np
import pytest

from kaiju_jax.experiments.studies.sweeps.fits import critical_batch


def losses(excess, seeds=4, noise=1e-4):
  rng = np.random.default_rng(0)
  level = 2.0 + rng.normal(0, 0.05, seeds)  # Each seed's own rows.
  return {
    m: level * (1 + x + rng.normal(0, noise, seeds)) for m, x in excess.items()
  }


def test_the_largest_within_epsilon_and_all_before_it():
  found = critical_batch.critical(
    losses({1: 0.0, 2: 0.0005, 4: 0.001, 8: 0.004, 16: 0.02}), 0.002
  )
  assert found.largest == 4
  assert abs(found.excess[8] - 0.004) < 3e-4
  assert found.doubts == ()
  gap = critical_batch.critical(
    losses({1: 0.0, 2: 0.01, 4: 0.0, 8: 0.05}), 0.002
  )
  assert gap.largest == 1, '4 is luck where 2 costs'


def test_unpaired_means_could_not_tell():
  """The contrast: seeds differ by more than batches do."""
  found = losses({1: 0.0, 2: 0.004})
  assert critical_batch.critical(found, 0.002).largest == 1
  half = np.ptp(found[1]) / 2
  assert half > 0.004 * 2


@pytest.mark.parametrize(
  'excess, doubt',
  [
    ({1: 0.0, 2: 0.0, 4: 0.0005}, '4 is the largest batch tried'),
    ({1: 0.0, 2: 0.0021, 4: 0.01}, '2: more or less than ε'),
  ],
)
def test_what_is_not_sure_is_said(excess, doubt):
  found = critical_batch.critical(losses(excess, noise=4e-4), 0.002)
  assert any(doubt in one for one in found.doubts), found


def test_a_loss_that_is_not_finite_is_not_within():
  assert critical_batch.critical({1: [2.0], 2: [np.nan]}, 0.1).largest == 1


def test_the_schedule_starts_small_and_does_not_fall():
  assert (
    critical_batch.schedule({0.3: 8, 0.1: 4, 0.5: 2}, 2) == '0:2 0.1:8 0.3:16'
  )
  assert critical_batch.schedule({0.1: 1, 0.3: 1}, 1) == '0:1'

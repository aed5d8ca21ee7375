"""The table of a comparison, from records that are made up."""

import pytest

from kaiju_jax.experiments.studies import uptrain_study as study


def test_tokens_to_a_loss_are_those_of_the_first_evaluation_that_has_it():
  records = [
    # A training loss is no evaluation.
    {'step': 1, 'tokens': 10, 'loss': 0.1},
    {'step': 2, 'tokens': 20, 'eval_loss': 2.0},
    {'step': 4, 'tokens': 40, 'eval_loss': 1.5},
    {'step': 6, 'tokens': 60, 'eval_loss': 1.6},
  ]
  assert study.count_tokens_until(records, 2.5) == 20
  assert study.count_tokens_until(records, 1.5) == 40
  assert study.count_tokens_until(records, 1.4) is None
  # Steps that aligned its attention before are as long as its own.
  assert study.count_tokens_until(records, 1.5, before=3) == 70


def row(arm, losses, tokens, start=None):
  readings = {
    seed: study.Reading(loss, 0.5, 0.25) for seed, loss in enumerate(losses)
  }
  return study.Row(arm, 40.0, start, readings, dict(enumerate(tokens)))


def test_the_table_compares_each_arm_with_the_baseline_seed_by_seed():
  before = study.Reading(3.0, 0.125, 0.0625)
  lines = study.table(
    [
      row('teacher', [0.9], []),
      row('scratch', [2.0, 4.0], [1.0, 1.0]),
      row('pooled', [1.0, 3.0], [0.25, 0.5], before),
      row('int8', [1.0, 5.0], [0.25, None], before),
    ],
    'scratch',
  ).splitlines()
  assert len(lines) == 6
  _, _, teacher, scratch, pooled, int8 = lines
  assert '| 0.9000 | -55.00 % ' in teacher
  assert '| – | 3.0000 |  | 1.00× (worst 1.00) | – |' in scratch
  # Both seeds are 1 below, so that the interval has no width.
  assert '| 3.0000 | 2.0000 | -33.33 % (-33.33 … -33.33) |' in pooled
  assert '| 0.38× (worst 0.50) | 12.5 % | 50.0 % | 25.0 % |' in pooled
  assert '| not reached in 1 of 2 |' in int8


def test_starts_are_compared_with_the_teacher():
  lines = study.starts_table(
    {
      'teacher': study.Reading(2.0, 0.5, 0.25),
      'heads': study.Reading(2.25, 0.125, 0.0),
    }
  ).splitlines()
  assert lines[2] == '| teacher | 2.0000 | +0.0000 | 50.0 % | 25.0 % |'
  assert lines[3] == '| heads | 2.2500 | +0.2500 | 12.5 % | 0.0 % |'


@pytest.mark.parametrize('values', [[], [None], [0.5]])
def test_one_seed_or_none_has_a_cell_too(values):
  assert 'nan' not in study._share(values)

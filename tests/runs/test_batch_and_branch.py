"""A growing batch, and a run that branches off another, with the real model."""

import dataclasses
import shutil

import numpy as np
import pytest

from kaiju_jax.data import loader
from kaiju_jax.runs import train
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import step as step_lib
from kaiju_jax.training import token_count
from tests import records
from tests import toys

ROW = 32  # Tokens.


def experiment(texts, **optimizer):
  """15 microbatches of two rows: steps of 1, 1, 2, 2, 4, 4 and a last of 1."""
  made = toys.tiny_experiment(texts)
  made.data.microbatches = 4
  made.optimizer = dataclasses.replace(
    made.optimizer,
    batch='0:1 0.1:2 0.3:4',
    batch_rate='sqrt',
    warmup=0.0,
    **optimizer,
  )
  made.loop.tokens = 15 * 2 * ROW
  made.loop.checkpoint_every, made.loop.checkpoints_kept = 4, 9
  return made


@pytest.fixture(scope='module')
def made():
  """The jitted step and the loader of the run that nothing interrupts."""
  return []


@pytest.fixture(scope='module')
def whole(texts, made, programs):
  workdir = texts.parent / 'whole'
  with pytest.MonkeyPatch.context() as patch:
    for module, name in ((step_lib, 'make'), (loader, 'batches')):
      patch.setattr(module, name, _kept(getattr(module, name), made))
    state = train.train(experiment(texts), workdir, programs=programs)
    return workdir, state


def _kept(function, made):
  def kept(*args, **kwargs):
    made.append(function(*args, **kwargs))
    return made[-1]

  return kept


def test_a_ramp_is_one_program_and_ends_at_its_token(texts, whole, made):
  workdir, state = whole
  batches, step = made
  assert step.compilations == 1
  assert batches.get_state()['row'] == 15 * 2
  found = [one for one in records.of(workdir) if 'loss' in one]
  assert [one['microbatches'] for one in found] == [1, 1, 2, 2, 4, 4, 1]
  rows = np.cumsum([0, 1, 1, 2, 2, 4, 4, 1]) * 2
  assert [one['tokens'] for one in found] == (rows[1:] * ROW).tolist()
  assert token_count.to_int(state.tokens) == 15 * 2 * ROW
  assert (
    int(state.step) == 7 == batch_schedule.schedule_of(experiment(texts)).steps
  )
  cosine = (1 + np.cos(np.pi * rows[:-1] / 30)) / 2
  size = np.sqrt(np.array([1, 1, 2, 2, 4, 4, 1]) / 4)
  np.testing.assert_allclose(
    [one['learning_rate'] for one in found],
    1e-2 * (0.05 + 0.95 * cosine) * size,
    rtol=1e-5,
  )
  assert all(np.isfinite(one['loss']) for one in found)


def test_a_run_stopped_inside_the_ramp_resumes_to_the_same_bits(
  texts, whole, tmp_path, programs
):
  workdir, state = whole
  train.train(experiment(texts), tmp_path, until=3, programs=programs)
  assert int(records.of(tmp_path)[-1]['step']) == 3
  resumed = train.train(experiment(texts), tmp_path, programs=programs)
  toys.assert_equal(resumed, state)
  assert records.of(tmp_path) == records.of(workdir)


def test_a_branch_without_a_change_is_the_run_itself(
  texts, whole, tmp_path, programs
):
  """State, tokens and rows: what follows is the same, bit for bit."""
  workdir, state = whole
  made = experiment(texts)
  made.loop.branch = f'{workdir}@4'
  folder = tmp_path / 'branch'
  train.train(made, folder, until=5, programs=programs)
  toys.assert_equal(train.train(made, folder, programs=programs), state)
  assert sum('step' in one for one in programs.values()) == 1
  after = [one for one in records.of(workdir) if one['step'] > 4]
  assert records.of(folder) == after


@pytest.mark.slow
def test_a_branch_may_take_another_batch_and_end(texts, whole, tmp_path):
  """From row 12 on, three microbatches a step; one row pair is left."""
  made = experiment(texts)
  made.loop.branch = f'{whole[0]}@4'
  made.optimizer.batch = '0:3'
  made.loop.tokens = 10 * 2 * ROW
  train.train(made, tmp_path)
  found = [one for one in records.of(tmp_path) if 'loss' in one]
  assert [(one['step'], one['microbatches']) for one in found] == [
    (5, 3),
    (6, 1),
  ]
  assert found[-1]['tokens'] == 10 * 2 * ROW


def test_a_branch_that_would_end_before_it_begins_is_refused(
  texts, whole, tmp_path
):
  made = experiment(texts)
  made.loop.branch, made.loop.tokens = f'{whole[0]}@4', 64
  with pytest.raises(ValueError, match='the run ends at row token 64, but'):
    train.train(made, tmp_path / 'work')
  assert not (tmp_path / 'work').exists()


def test_a_branch_whose_checkpoint_was_damaged_is_refused(
  texts, whole, tmp_path
):
  other = shutil.copytree(whole[0], tmp_path / 'other')
  shutil.rmtree(other / 'checkpoints' / '4' / 'state')
  made = experiment(texts)
  made.loop.branch = f'{other}@4'
  with pytest.raises(OSError, match=r'Checkpoint .*/4 cannot be read'):
    train.train(made, tmp_path / 'work')

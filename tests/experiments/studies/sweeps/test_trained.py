"""Real runs of a grid, in a process of their own and in this one."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from kaiju_jax.experiments.studies.sweeps import grid
from kaiju_jax.experiments.studies.sweeps import trained
from kaiju_jax.runs import train
from kaiju_jax.training import metrics
from kaiju_jax.training import workdir
from tests import records
from tests.runs import toys


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  return toys.write_texts(tmp_path_factory.mktemp('grid'))


def experiment(texts, rate, seed):
  made = toys.experiment(texts)
  made.loop.tokens = 4 * 2 * 32
  made.optimizer.learning_rate = rate
  made.seed = seed
  return made


@pytest.mark.slow
def test_a_grid_trains_in_other_processes_and_resumes(texts, tmp_path):
  """One run was stopped halfway before; the other has not begun."""
  runs = [
    grid.Run(f'{seed}', experiment(texts, 1e-2, seed), tmp_path / f'{seed}')
    for seed in range(2)
  ]
  train.train(runs[0].experiment, runs[0].folder, until=2)
  assert grid.result(runs[0]) is None
  grid.complete(runs, at_once=1)
  for run in runs:
    found = grid.result(run)
    assert found['tokens'] == 256 and found['steps'] == 4
    assert found['loss'] == records.of(run.folder)[-1]['eval_loss']
  assert 'going on from step 2' in (tmp_path / '0' / 'log.txt').read_text()


@pytest.mark.slow
def test_runs_that_share_programs_are_the_runs_apart(texts, tmp_path):
  programs = {}
  apart = train.train(experiment(texts, 2e-2, 1), tmp_path / 'apart')
  for rate, seed in ((1e-2, 0), (2e-2, 1)):
    made = experiment(texts, rate, seed)
    state = train.train(made, tmp_path / f'{seed}', programs=programs)
  jax.tree.map(np.testing.assert_array_equal, state, apart)
  (step,) = _steps(programs)
  assert step.compilations == 1
  wider = experiment(texts, 1e-2, 0)
  wider.model.d_ff *= 2
  train.train(wider, tmp_path / 'wider', programs=programs, until=1)
  assert len(_steps(programs)) == 2


def _steps(programs):
  return [one['step'] for one in programs.values() if 'step' in one]


def _write(folder, record):
  (folder / metrics.FILE).write_text(json.dumps(record) + '\n')


def test_a_result_is_read_off_the_records(texts, tmp_path):
  made = experiment(texts, 1e-2, 0)
  with workdir.open_workdir(tmp_path, made):
    pass
  _write(tmp_path, {'step': 4, 'tokens': 224, 'eval_loss': 3.0})
  assert trained.result(tmp_path, made) is None
  _write(tmp_path, {'step': 4, 'tokens': 256, 'eval_loss': 2.0})
  assert trained.result(tmp_path, made) == {'loss': 2.0, 'tokens': 256}
  _write(tmp_path, {'step': 4, 'tokens': 256, 'eval_loss': 'NaN'})
  assert trained.result(tmp_path, made) == {'loss': 'nan', 'tokens': 256}
  assert dataclasses.asdict(made) == dataclasses.asdict(
    workdir.load_experiment(tmp_path)
  )

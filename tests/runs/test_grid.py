"""A grid trains what is missing, says what failed, and keeps results."""

import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest

from experiments.configs import sweep
from kaiju_jax.costs import footprint
from kaiju_jax.runs import devices
from kaiju_jax.runs import grid
from kaiju_jax.runs import pool
from kaiju_jax.runs import slurm
from kaiju_jax.runs import train
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics
from tests import records
from tests import toys
from tests.experiments.studies.sweeps import planted

SIDE = slurm.Launch(jobs=2)


def jobs(root, count=3):
  made = grid.cross(lambda arm: sweep.get_config(), ['a'], range(count), root)
  return {job.experiment.seed: job for job in made}


def test_what_is_complete_is_not_run_again(monkeypatch, tmp_path):
  done = planted.Jobs(monkeypatch, lambda experiment: 2.0 + experiment.seed)
  grid.losses(jobs(tmp_path, 2), SIDE)
  assert grid.losses(jobs(tmp_path), SIDE) == {0: 2.0, 1: 3.0, 2: 4.0}
  assert [folder.name for folder in done.folders] == [
    *('seed0', 'seed1', 'seed2')
  ]
  assert workdir.load_experiment(tmp_path / 'a/seed1').seed == 1
  other = jobs(tmp_path)
  other[0].experiment.optimizer.learning_rate = 1.0
  with pytest.raises(ValueError, match=r'optimizer\.learning_rate'):
    grid.losses(other)


def test_a_run_without_a_result_is_named_with_its_log(monkeypatch, tmp_path):
  planted.Jobs(monkeypatch, lambda one: None if one.seed == 1 else 2.0)
  message = r'1 of 3 runs ended without .* a seed 1 .*seed1/log\.txt'
  with pytest.raises(ValueError, match=message):
    grid.losses(jobs(tmp_path), SIDE)


def test_an_interruption_ends_with_130(monkeypatch, tmp_path, capsys):
  def interrupted(commands, places):
    yield pool.Ended(commands[0].name, 0, 1.0)
    raise KeyboardInterrupt

  monkeypatch.setattr(pool, 'run', interrupted)
  with pytest.raises(SystemExit) as caught:
    grid.losses(jobs(tmp_path), SIDE)
  assert caught.value.code == 130
  assert capsys.readouterr().err.count('The same command goes on') == 1


def test_a_diverged_run_has_a_loss_that_is_not_finite(monkeypatch, tmp_path):
  planted.Jobs(monkeypatch, lambda _: 'nan')
  assert np.isnan(grid.losses(jobs(tmp_path, 2), SIDE)[0])


def test_a_broken_result_is_named(tmp_path):
  one = jobs(tmp_path, 1)
  one[0].folder.mkdir(parents=True)
  (one[0].folder / 'result.json').write_text('{')
  with pytest.raises(ValueError, match=r'result\.json: not valid JSON'):
    grid.losses(one)


def test_what_is_done_is_weighed_by_tokens_and_parameters(tmp_path, capsys):
  """A branch counts from where it began."""
  small, large = jobs(tmp_path, 2).values()
  large.experiment.model.d_ff *= 4
  large = large._replace(skipped=large.tokens // 2)
  parameters = footprint.count(footprint.parameters(large.experiment.model))
  assert grid.cost(large) == parameters * large.tokens / 2

  def events(commands):
    for job in (small, large):
      job.folder.mkdir(parents=True)
    record = f'{{"step": 1, "tokens": {large.tokens * 3 // 4}}}\n'
    (large.folder / 'metrics.jsonl').write_text(record)
    (small.folder / 'result.json').write_text('{}')
    yield None
    yield pool.Ended('one', 0, 3.0)
    yield pool.Ended('other', -9, 4.0)

  planned = {
    pool.Command(name, (), tmp_path / 'log'): [job]
    for name, job in (('one', small), ('other', large))
  }
  found = grid.run_commands(
    planned, slurm.Launcher(events, str, 2), grid.RESULT
  )
  costs = grid.cost(small), grid.cost(large)
  share = (costs[0] + costs[1] / 2) / sum(costs)
  said = capsys.readouterr().err
  assert f'trained, % {100 * share:.0f}/100  1 of 2 runs' in said
  assert '[1/2] one: finished, 3 s\n' in said
  assert f'[2/2] other: failed (SIGKILL), 4 s, see {tmp_path}/log\n' in said
  assert found == ({'one': 'finished', 'other': 'failed (SIGKILL)'}, True)


def test_a_job_is_trained_once_its_last_checkpoint_is_whole(tmp_path):
  """Its last records alone come too early: evaluation and save follow."""
  (job,) = jobs(tmp_path, 1).values()
  job.folder.mkdir(parents=True)
  record = {'step': job.steps, 'tokens': job.tokens, 'loss': 1}
  (job.folder / metrics.FILE).write_text(json.dumps(record) + '\n')
  whole = job.folder / 'checkpoints' / str(job.steps)
  half = whole.with_name(f'{job.steps}.orbax-checkpoint-tmp')
  half.mkdir(parents=True)
  assert not grid.is_done(job)
  half.rename(whole)
  assert grid.is_done(job) and not grid.is_done(job, grid.RESULT)


def experiment(texts, rate, seed):
  made = toys.tiny_experiment(texts)
  made.loop.tokens = 4 * 2 * 32
  made.optimizer.learning_rate = rate
  made.seed = seed
  return made


@pytest.mark.slow
@pytest.mark.parametrize('at_once', [1, 2])
def test_a_grid_trains_and_resumes(texts, tmp_path, at_once):
  """One run was stopped halfway before; the other has not begun."""
  runs = [
    grid.Job('a', experiment(texts, 1e-2, seed), tmp_path / f'{seed}')
    for seed in range(2)
  ]
  train.train(runs[0].experiment, runs[0].folder, until=2)
  assert not grid.is_done(runs[0], grid.RESULT)
  grid.run(runs, slurm.Launch(jobs=at_once), grid.RESULT)
  for run in runs:
    found = json.loads((run.folder / 'result.json').read_text())
    assert found['tokens'] == 256 and found['steps'] == 4
    assert found['loss'] == records.of(run.folder)[-1]['eval_loss']
  if at_once > 1:
    assert 'going on from step 2' in runs[0].log.read_text()


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


@pytest.mark.parametrize(
  'tokens, loss, found',
  [
    (224, 3.0, None),
    (256, 2.0, {'loss': 2.0, 'tokens': 256}),
    (256, 'NaN', {'loss': 'nan', 'tokens': 256}),
  ],
)
def test_a_result_is_read_off_the_records(texts, tmp_path, tokens, loss, found):
  made = experiment(texts, 1e-2, 0)
  with workdir.open_workdir(tmp_path, made):
    pass
  record = {'step': 4, 'tokens': tokens, 'eval_loss': loss}
  (tmp_path / metrics.FILE).write_text(json.dumps(record) + '\n')
  assert grid.result(tmp_path, made) == found
  assert dataclasses.asdict(made) == dataclasses.asdict(
    workdir.load_experiment(tmp_path)
  )


@pytest.mark.parametrize(
  'count, runs, per_job, groups',
  [(1, 2, None, 0), (2, 2, None, 2), (2, 1, None, 2), (1, 2, 1, 1)],
)
def test_runs_with_devices_of_their_own_are_processes(
  monkeypatch, tmp_path, count, runs, per_job, groups
):
  """A lone one, too: this process opens no device that later runs need."""
  found = devices.Accelerators('GPU', ('g0', 'g1')[:count])
  monkeypatch.setattr(devices, 'probe', lambda: found)
  monkeypatch.setattr(jax, 'default_backend', lambda: 1 / 0)
  places = []

  def run(commands, given):
    yield places.extend(given)

  monkeypatch.setattr(pool, 'run', run)
  monkeypatch.setattr(grid, '_train_here', lambda *_: None)
  with contextlib.nullcontext() if not groups else pytest.raises(ValueError):
    how = slurm.Launch(devices_per_job=per_job)
    grid.run([*jobs(tmp_path, runs).values()], how)
  used = [place.environment['CUDA_VISIBLE_DEVICES'] for place in places]
  assert used == ['g0', 'g1'][:groups]

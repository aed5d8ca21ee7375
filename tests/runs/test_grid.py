"""A grid trains what is missing, and says what failed."""

import dataclasses

import pytest

from experiments.configs import sweep
from kaiju_jax.costs import footprint
from kaiju_jax.experiments.studies.sweeps import grid
from kaiju_jax.experiments.studies.sweeps import widths
from kaiju_jax.runs import jobs
from kaiju_jax.runs import watch
from kaiju_jax.storage import files
from kaiju_jax.training import workdir
from tests.experiments.studies.sweeps import planted


def runs(root, count=3):
  made = []
  for seed in range(count):
    experiment = sweep.get_config()
    experiment.seed = seed
    made.append(grid.Run(f'seed {seed}', experiment, root / f'{seed}'))
  return made


def test_what_is_complete_is_not_run_again(monkeypatch, tmp_path):
  done = planted.Jobs(monkeypatch, lambda experiment: 2.0 + experiment.seed)
  grid.complete(runs(tmp_path, 2), at_once=2)
  grid.complete(runs(tmp_path, 3), at_once=2)
  assert [folder.name for folder in done.folders] == ['0', '1', '2']
  assert grid.losses(runs(tmp_path)) == {
    'seed 0': 2.0,
    'seed 1': 3.0,
    'seed 2': 4.0,
  }
  assert workdir.load_experiment(tmp_path / '1').seed == 1


def test_a_run_without_a_result_is_named_with_its_log(monkeypatch, tmp_path):
  planted.Jobs(monkeypatch, lambda one: None if one.seed == 1 else 2.0)
  message = r'1 of 3 runs ended without .* seed 1: see .*1/log\.txt'
  with pytest.raises(ValueError, match=message):
    grid.complete(runs(tmp_path), at_once=1)


def test_an_interruption_ends_with_130(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(jobs, 'run', lambda *_, **__: False)
  with pytest.raises(SystemExit) as caught:
    grid.complete(runs(tmp_path))
  assert caught.value.code == 130
  assert 'The same command goes on' in capsys.readouterr().err


def test_a_diverged_run_has_a_loss_that_is_not_finite(monkeypatch, tmp_path):
  planted.Jobs(monkeypatch, lambda _: 'nan')
  one = runs(tmp_path, 1)
  grid.complete(one)
  assert grid.losses(one)['seed 0'] != grid.losses(one)['seed 0']


def test_what_is_done_is_weighed_by_tokens_and_parameters(tmp_path, capsys):
  """A branch counts from where it began."""
  small, large = runs(tmp_path, 2)
  large.experiment.model.d_ff *= 4
  large = large._replace(skipped=large.tokens // 2)
  parameters = footprint.count(footprint.parameters(large.experiment.model))
  assert watch.cost(large) == parameters * large.tokens / 2
  complete = set()
  seen = watch.Watch(
    {'one': [small], 'other': [large]}, lambda run: run.name in complete
  )
  with seen:
    seen.tick()
    for run in (small, large):
      run.folder.mkdir()
    record = f'{{"step": 1, "tokens": {large.tokens * 3 // 4}}}\n'
    (large.folder / 'metrics.jsonl').write_text(record)
    complete.add('seed 0')
    job = jobs.Job('one', (), tmp_path / 'log')
    seen.on_end(job, 0, 3.0)
    seen._progress._said = 0.0
    seen.tick()
    seen.on_end(dataclasses.replace(job, name='other'), -9, 4.0)
  costs = watch.cost(small), watch.cost(large)
  share = (costs[0] + costs[1] / 2) / sum(costs)
  said = capsys.readouterr().err
  assert f'trained, % {100 * share:.0f}/100  1 of 2 runs' in said
  assert '[1/2] one: finished, 3 s\n' in said
  assert f'[2/2] other: failed (SIGKILL), 4 s, see {tmp_path}/log\n' in said
  assert seen.statuses == {'one': 'finished', 'other': 'failed (SIGKILL)'}


def test_a_width_keeps_the_ratios():
  made = widths.with_width(sweep.get_config(), 96)
  assert (made.model.d_model, made.model.num_heads, made.model.d_ff) == (
    96,
    6,
    384,
  )
  assert made.model.head_dim == 16
  with pytest.raises(
    ValueError, match=r'width 40: model\.num_heads=4 at .*2.5'
  ):
    widths.with_width(sweep.get_config(), 40)


def test_a_broken_result_is_named(tmp_path):
  one = runs(tmp_path, 1)
  (tmp_path / '0').mkdir()
  (tmp_path / '0' / grid.RESULT).write_text('{')
  with pytest.raises(ValueError, match=r'result\.json: not valid JSON'):
    grid.complete(one)
  files.write_json(tmp_path / '0' / grid.RESULT, {'loss': 1.0})
  grid.complete(one)

"""The critical batch's study on planted losses; no run is trained."""

import math

import pytest

from experiments.configs import sweep
from kaiju_jax.experiments.studies.sweeps import critical_batch
from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.runs import start
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import optimizer
from kaiju_jax.training import workdir
from tests.experiments.studies.sweeps import planted

SETTINGS = study.CriticalBatch(share=0.1)


@pytest.fixture
def base(tmp_path):
  """A run of 2,000 steps, as far as its folder shows."""
  experiment = sweep.get_config('batch')
  experiment.data.batch, experiment.loop.tokens = 4, 2_000 * 256
  path = tmp_path / 'base'
  with workdir.open_workdir(path, experiment):
    for step in (200, 400, 600):
      (path / 'checkpoints' / str(step)).mkdir(parents=True)
  assert batch_schedule.schedule_of(experiment).steps == 2000
  return path


def loss(experiment):
  """A branch pays for a batch above 2 at 200 and 8 at 600; a run for m > 4."""
  level = 2.0 + 0.01 * experiment.seed
  count = experiment.data.microbatches
  if experiment.loop.branch:
    step = start.origin(experiment).step
    allowed = {200: 2, 600: 8}[step]
    return level * (1 + 0.01 * max(0.0, math.log2(count / allowed)))
  if experiment.optimizer.batch:
    return level * 1.001
  return level * (1 + 0.004 * math.log2(count))


def test_branches_then_runs_from_the_beginning(monkeypatch, tmp_path, base):
  jobs = planted.Jobs(monkeypatch, loss)
  found = critical_batch.measure(base, SETTINGS, tmp_path / 'out')
  assert [(p.step, one.largest) for p, one in found.found.items()] == [
    (200, 2),
    (600, 8),
  ]
  assert found.batch == '0:1 0.1:2 0.3:8'
  assert len(jobs.folders) == 2 * 4 * 2 + 3 * 2
  small, schedule, large = (found.arms[name] for name in critical_batch.ARMS)
  assert small.steps == 2000 and large.steps == 250
  assert schedule.steps == 200 + 200 + 175
  text, written = planted.publish(tmp_path / 'out', critical_batch, found)
  assert 'With the schedule +0.10% (target 0.3%, met)' in text
  assert '71% fewer steps (target 30%, met)' in text
  assert 'from the beginning +1.20% (further off)' in text
  assert 'At 0.300, not sure: 8 is the largest batch tried' in text
  assert written['schedule'] == found.batch


def test_what_a_branch_trains(base, tmp_path):
  experiment = critical_batch.load(base)
  (place,) = critical_batch.places(base, experiment, [0.31])
  cell = critical_batch.BatchCell(place, 4, 1)
  runs = critical_batch.branches(base, experiment, [cell], 0.1, tmp_path)
  made = runs[cell].experiment
  assert made.loop.branch == f'{base}@600'
  assert made.data.microbatches == 4 and made.seed == 1
  assert made.optimizer.learning_rate == pytest.approx(2 * 8e-3)
  shape = optimizer.shape_of_rate(made.optimizer, made.loop.tokens)
  rates = [float(shape(256.0 * step)) for step in (600, 700, 800)]
  assert rates == pytest.approx([1, 0.525, 0.05], abs=1e-5)
  assert runs[cell].skipped == 600 * 256
  assert runs[cell].tokens - runs[cell].skipped == 200 * 256


def test_one_batch_throughout_needs_no_runs(monkeypatch, tmp_path, base):
  planted.Jobs(monkeypatch, lambda one: 2.0 * one.data.microbatches)
  found = critical_batch.measure(base, SETTINGS, tmp_path / 'out')
  assert found.batch == '0:1' and found.arms is None
  text, _ = planted.publish(tmp_path / 'out', critical_batch, found)
  assert 'No runs' in text


def test_a_place_without_a_checkpoint_is_refused(base):
  experiment = critical_batch.load(base)
  message = r'--at=0.5: .* there are 0.100, 0.200, 0.300'
  with pytest.raises(ValueError, match=message):
    critical_batch.places(base, experiment, [0.5])


def test_a_run_whose_batch_grows_is_refused(tmp_path):
  experiment = sweep.get_config('batch')
  experiment.data.microbatches = 2
  experiment.optimizer.batch = '0:1 0.5:2'
  with workdir.open_workdir(tmp_path / 'w', experiment):
    pass
  with pytest.raises(ValueError, match=r"optimizer\.batch='0:1 0.5:2': branch"):
    critical_batch.load(tmp_path / 'w')

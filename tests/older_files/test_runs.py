"""Workdirs of older code resume, as the experiments that they were."""

import json
import pathlib

import pytest

from kaiju_jax.alignment import config as align_config
from kaiju_jax.alignment import rounds
from kaiju_jax.runs import train
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics

# Values that are rounded to int8 codes amplify another processor's rounding.
TOLERANCE = {'float': 1e-5}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
  'name',
  [
    'float',
    pytest.param('int8', marks=SLOW),
    pytest.param('ternary', marks=SLOW),
    pytest.param('lora', marks=SLOW),
    pytest.param('aligned', marks=SLOW),
    pytest.param('student', marks=SLOW),
    pytest.param('preference', marks=SLOW),
    pytest.param('spans', marks=SLOW),
  ],
)
def test_a_run_resumes_to_the_same_losses(name, here, expected):
  path = here / 'runs' / name
  until = expected['runs'][name][0]['step'] - 1
  before = metrics.read(path)
  train.train(workdir.load_experiment(path), path)
  after = metrics.read(path)
  assert after[: len(before)] == before
  found = [one for one in after if one['step'] > until]
  for one, wanted in zip(found, expected['runs'][name], strict=True):
    assert one.pop('padding', 0) < 1  # Older records had none.
    for name in metrics.TIMING:
      one.pop(name, None)
    for reading in 'eval_rms_lse', 'eval_rms_mean_logit':
      # They were those of the first batch alone.
      assert (reading in one) == (reading in wanted)
      one.pop(reading, None)
      wanted = {x: y for x, y in wanted.items() if x != reading}
    assert one == pytest.approx(wanted, rel=TOLERANCE.get(name, 1e-3))


def test_a_workdir_is_read_as_what_it_was(here):
  paths = [
    *here.glob('runs/*/config.json'),
    *here.glob('*/rounds/*/run/*.json'),
  ]
  paths = [one for one in paths if one.name == 'config.json']
  assert len(paths) == 12
  for path in paths:
    experiment = workdir.load_experiment(path.parent)
    workdir.check(path.parent, experiment)
    fields = json.loads(path.read_text())
    assert experiment.model.d_model == fields['model']['d_model']


@pytest.mark.slow
def test_rounds_go_on(here, expected):
  """The round that was played stays, and another one follows."""
  described = json.loads(pathlib.Path('aligned_rounds/align.json').read_text())
  settings = align_config.Settings(
    'runs/chat', 'prompts.jsonl', 'planted:question',
    rounds=2, groups=6, swipes=3, tokens=6, held_out=8, watched=4,
    limits=align_config.guards.Limits(1e9, 1e9, 0.99),
  )  # fmt: skip
  made = workdir.load_experiment('runs/chat')
  made.begin_with = 'runs/chat'
  made.data.task, made.objective.name = 'choices', 'preference'
  made.optimizer.schedule, made.optimizer.learning_rate = 'constant', 2e-3
  made.loop.steps = made.loop.checkpoint_every = 3
  made.loop.log_every, made.data.path = 1, ''
  found = rounds.run(settings, made, 'aligned_rounds')
  assert found['rounds'][0] == expected['align']['rounds'][0]
  assert len(found['rounds']) == 2
  written = json.loads(pathlib.Path('aligned_rounds/align.json').read_text())
  assert written['model_digest'] == described['model_digest']

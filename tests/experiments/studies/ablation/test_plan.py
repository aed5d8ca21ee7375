"""What an ablation runs: arms × seeds, checked before anything starts."""

import pytest

from kaiju_jax.experiments.studies.ablation import plan
from kaiju_jax.training import workdir

CONFIG = """
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('plain', 'better')

def get_config(arm='plain'):
  experiment = experiment_lib.Experiment()
  experiment.loop.steps = 4
  experiment.loop.log_every = 1
  experiment.optimizer.learning_rate = {'plain': 1.0, 'better': 0.5}[arm]
  return experiment
"""


@pytest.fixture
def config(tmp_path):
  (tmp_path / 'arms.py').write_text(CONFIG)
  return str(tmp_path / 'arms.py')


def planned(config, root, seeds=(0, 1), overrides=(), **settings):
  return plan.runs(
    config, ('plain', 'better'), seeds, root, overrides, **settings
  )


def test_every_arm_s_first_seed_comes_before_any_second_one(config, tmp_path):
  found = planned(
    config, tmp_path / 'root', overrides=['--config.model.d_ff=8']
  )
  assert [run.name for run in found] == [
    'plain seed 0',
    'better seed 0',
    'plain seed 1',
    'better seed 1',
  ]
  last = found[-1]
  assert last.workdir == tmp_path / 'root' / 'better' / 'seed1'
  assert last.experiment.seed == 1
  assert last.experiment.model.d_ff == 8
  assert last.experiment.optimizer.learning_rate == 0.5
  assert last.command[1:] == (
    '-m',
    'experiments.train',
    f'--config={config}:better',
    '--config.seed=1',
    '--config.model.d_ff=8',
    f'--workdir={last.workdir}',
  )


def test_a_run_is_finished_once_its_last_checkpoint_is_whole(config, tmp_path):
  """Its last records alone come too early: evaluation and save follow."""
  run = planned(config, tmp_path / 'root', (0,))[0]
  run.workdir.mkdir(parents=True)
  (run.workdir / 'metrics.jsonl').write_text(
    ''.join(f'{{"step": {step}, "tokens": 8, "loss": 1}}\n' for step in (3, 4))
  )
  half = run.workdir / 'checkpoints' / '4.orbax-checkpoint-tmp'
  half.mkdir(parents=True)
  assert not run.is_finished()
  half.rename(half.with_name('4'))
  assert run.is_finished()


def test_a_root_of_other_experiments_is_refused(config, tmp_path):
  first = planned(config, tmp_path, (0,))[0]
  with workdir.open_workdir(first.workdir, first.experiment):
    pass
  planned(config, tmp_path, (0,))
  with pytest.raises(ValueError, match=r'1\.0 in the workdir, 2\.0'):
    planned(config, tmp_path, (0,), ['--config.optimizer.learning_rate=2'])


def test_no_rotary_on_global_layers_can_be_typed(config):
  experiment = plan.resolve(
    f'{config}:plain',
    ['--config.model.rope_global=0', '--config.model.rope_local=500'],
  )
  assert experiment.model.rope_global == 0
  assert experiment.model.rope_local == 500


@pytest.mark.parametrize(
  'source, message',
  [
    (None, 'no such file'),
    ('def get_config(arm=""): pass', 'has no ARMS'),
    ('ARMS = ()', 'has no ARMS'),
  ],
)
def test_a_config_without_arms_is_refused(tmp_path, source, message):
  path = tmp_path / 'config.py'
  if source is not None:
    path.write_text(source)
  with pytest.raises(ValueError, match=message):
    plan.load(str(path))


def test_baselines():
  assert plan.baselines(('a', 'b', 'c')) == {
    'a': 'a',
    'b': 'a',
    'c': 'a',
  }
  each = {'a': 'a', 'b': 'a', 'fast a': 'fast a', 'fast b': 'fast a'}
  assert plan.baselines(each) == each
  assert plan.baselines(each, ['fast b']) == {'fast b': 'fast a'}
  assert plan.baselines(each, baseline='b') == dict.fromkeys(each, 'b')
  with pytest.raises(ValueError, match='--baseline=z'):
    plan.baselines({'a': 'z'})

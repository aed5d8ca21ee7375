"""What an ablation runs: arms × seeds, checked before anything starts."""

import pathlib

import pytest

from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.training import workdir
from tests.experiments import toys


@pytest.fixture
def config(tmp_path):
  (tmp_path / 'arms.py').write_text(toys.ARMS)
  return str(tmp_path / 'arms.py')


def planned(config, root, seeds=(0, 1), overrides=(), **settings):
  return ablate.commands(
    config, ('plain', 'better'), seeds, root, overrides, **settings
  )


def test_every_arm_s_first_seed_comes_before_any_second_one(config, tmp_path):
  found = planned(
    config, tmp_path / 'root', overrides=['--config.model.d_ff=8']
  )
  assert [command.name for command in found] == [
    'plain seed 0',
    'better seed 0',
    'plain seed 1',
    'better seed 1',
  ]
  command, last = list(found.items())[-1]
  assert last.folder == tmp_path / 'root' / 'better' / 'seed1'
  assert last.experiment.seed == 1
  assert last.experiment.model.d_ff == 8
  assert last.experiment.optimizer.learning_rate == 0.5
  assert command.words[1:] == (
    '-m',
    'experiments.train',
    f'--config={config}:better',
    '--config.seed=1',
    '--config.model.d_ff=8',
    f'--workdir={last.folder}',
  )


def test_a_root_of_other_experiments_is_refused(config, tmp_path):
  first, *_ = planned(config, tmp_path, (0,)).values()
  with workdir.open_workdir(first.folder, first.experiment):
    pass
  planned(config, tmp_path, (0,))
  with pytest.raises(ValueError, match=r'1\.0 in the workdir, 2\.0'):
    planned(config, tmp_path, (0,), ['--config.optimizer.learning_rate=2'])


def test_no_rotary_on_global_layers_can_be_typed(config):
  experiment = ablate.resolve(
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
    ablate.load(str(path))


def test_a_config_may_have_any_suffix(config, tmp_path):
  path = pathlib.Path(config).rename(tmp_path / 'arms.cfg')
  assert ablate.load(str(path)).ARMS == ('plain', 'better', 'broken')


def test_baselines():
  assert ablate.baselines(('a', 'b', 'c')) == {
    'a': 'a',
    'b': 'a',
    'c': 'a',
  }
  each = {'a': 'a', 'b': 'a', 'fast a': 'fast a', 'fast b': 'fast a'}
  assert ablate.baselines(each) == each
  assert ablate.baselines(each, ['fast b']) == {'fast b': 'fast a'}
  assert ablate.baselines(each, baseline='b') == dict.fromkeys(each, 'b')
  with pytest.raises(ValueError, match='--baseline=z'):
    ablate.baselines({'a': 'z'})

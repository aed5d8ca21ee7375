"""Runs that cannot work are refused before anything compiles or is written."""

import pytest

from experiments.configs import tiny
from kaiju_jax.runs import train
from kaiju_jax.training import config as training_config
from kaiju_jax.training import workdir as workdir_lib
from tests import toys


@pytest.fixture(scope='module')
def before(texts):
  """A workdir with the checkpoints 4 and 7, as far as its folder shows."""
  path = texts.parent / 'before'
  with workdir_lib.open_workdir(path, toys.tiny_experiment(texts, steps=7)):
    for step in (4, 7):
      (path / 'checkpoints' / str(step)).mkdir(parents=True)
      position = path / 'checkpoints' / str(step) / 'data'
      position.mkdir()
      (position / 'metadata').write_text(f'{{"row": {2 * step}}}')
  return path


def lora(*settings):
  return {'lora': training_config.LoraConfig(*settings)}


ADAPTERS = {'begin_with': '{}', **lora(4, 8.0, '*')}
BRANCH = {'loop.branch': '{}@4', 'loop.steps': 7}
CASES = [
  ({'data.path': '/nowhere/at/all'}, 'nowhere'),
  ({'data.length': 1024}, 'data.length=1024: '),
  ({'data.task': 'hay'}, "data.task='hay': .*'needle'"),
  ({'model.window': 0}, 'window=0'),
  ({'model.head_dim': 33}, 'model.head_dim=33: '),
  ({'model.layout': 'L0 G1 L2 L1'}, 'of another kind'),
  ({'optimizer.schedule': 'linear'}, "optimizer.schedule='linear'"),
  ({'loop.steps': 0}, 'loop.steps=0'),
  ({'init': 'zero'}, "init='zero': "),
  ({'init': 'scaled', 'begin_with': '{}'}, "init='scaled': .*begin_with="),
  ({'seed': -1}, 'seed=-1: '),
  ({'seed': 2**32}, 'seed=4294967296: '),
  ({**ADAPTERS, 'begin_with': ''}, "begin_with='': "),
  ({**ADAPTERS, 'loop.branch': 'x@1'}, "loop.branch='x@1': .*lo"),
  ({**ADAPTERS, **lora(-1)}, 'lora.rank=-1: '),
  ({**ADAPTERS, **lora(0, 8.0)}, 'adapters of rank 0'),
  ({**ADAPTERS, **lora(4, 8.0, 'w_q embedding')}, "'embedding' .* w_k_DK, "),
  ({**ADAPTERS, **lora(4, 0.0)}, 'lora.alpha=0.0: '),
  ({**ADAPTERS, **lora(4, 8.0, ' ')}, "lora.matrices=' ': "),
  ({'loop.branch': 'nowhere'}, "loop.branch='nowhere': "),
  ({'loop.branch': 'nowhere@4'}, 'nowhere/config.json: not found'),
  ({'loop.branch': '{}@5'}, 'no checkpoint 5 in .*; there are 4, 7'),
  ({**BRANCH, 'model.d_ff': 64}, 'model.d_ff: 32 there, 64 here'),
  ({**BRANCH, 'data.length': 16}, 'data.length: 32 there, 16 here'),
  ({'until': 0}, 'until=0: '),
]


@pytest.mark.parametrize('changes, message', CASES)
def test_settings_are_refused_and_leave_nothing(
  texts, before, tmp_path, changes, message
):
  changes = {
    name: value.format(before) if isinstance(value, str) else value
    for name, value in changes.items()
  }
  until = changes.pop('until', None)
  experiment = toys.change(toys.tiny_experiment(texts), changes)
  with pytest.raises((OSError, ValueError), match=message):
    train.train(experiment, tmp_path / 'work', until=until)
  assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize(
  'workdir, message',
  [
    ('/proc/nope', '^/proc/nope: the folder cannot be made: No such file'),
    ('/proc', '^workdir /proc: cannot be written to: No such file'),
    ('', '^workdir .*: must name a folder'),
    ('{}', 'data.length: 32 in the workdir, 512 in this command'),
  ],
)
def test_a_folder_that_will_not_do_is_refused_before_the_work(
  monkeypatch, before, workdir, message
):
  monkeypatch.setattr(train, '_train', None)
  with pytest.raises((ValueError, OSError), match=message):
    train.train(tiny.get_config(), workdir.format(before))

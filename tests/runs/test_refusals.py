"""Runs that cannot work are refused before anything compiles or is written."""

import pytest

from experiments.configs import tiny
from kaiju_jax.runs import train
from kaiju_jax.training import config as training_config
from kaiju_jax.training import workdir as workdir_lib
from tests import toys


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  return toys.write_texts(tmp_path_factory.mktemp('refusals'))


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
  ({'data.length': 1024}, 'data.length=1024: rows are longer'),
  ({'data.task': 'hay'}, "data.task='hay': must be one of 'text', .*'needle'"),
  ({'model.window': 0}, 'window=0'),
  ({'model.head_dim': 33}, 'model.head_dim=33: must be even'),
  ({'model.layout': 'L0 G1 L2 L1'}, 'of another kind'),
  ({'optimizer.schedule': 'linear'}, "optimizer.schedule='linear'"),
  ({'loop.steps': 0}, 'loop.steps=0'),
  ({'init': 'zero'}, "init='zero': must be one of 'standard'"),
  (
    {'init': 'scaled', 'begin_with': '{}'},
    "init='scaled': parameters come from begin_with=",
  ),
  ({'seed': -1}, 'seed=-1: must lie in 0…4294967295'),
  ({'seed': 2**32}, 'seed=4294967296: must lie in 0…4294967295'),
  ({**ADAPTERS, 'begin_with': ''}, "begin_with='': must name the base of the"),
  ({**ADAPTERS, 'loop.branch': 'x@1'}, "loop.branch='x@1': must be '' with lo"),
  ({**ADAPTERS, **lora(-1)}, 'lora.rank=-1: must be at'),
  ({**ADAPTERS, **lora(0, 8.0)}, 'adapters of rank 0 train nothing'),
  (
    {**ADAPTERS, **lora(4, 8.0, 'w_q embedding')},
    "'embedding' names no weight of the layers, which are w_k_DK, .*take no",
  ),
  ({**ADAPTERS, **lora(4, 0.0)}, 'lora.alpha=0.0: must be'),
  ({**ADAPTERS, **lora(4, 8.0, ' ')}, "lora.matrices=' ': must name weights"),
  ({'loop.branch': 'nowhere'}, "loop.branch='nowhere': must be WORKDIR@STEP"),
  ({'loop.branch': 'nowhere@4'}, 'nowhere/config.json: not found'),
  ({'loop.branch': '{}@5'}, 'no checkpoint 5 in .*; there are 4, 7'),
  ({**BRANCH, 'model.d_ff': 64}, 'model.d_ff: 32 there, 64 here'),
  ({**BRANCH, 'data.length': 16}, 'data.length: 32 there, 16 here'),
]


@pytest.mark.parametrize('changes, message', CASES)
def test_settings_are_refused_and_leave_nothing(
  texts, before, tmp_path, changes, message
):
  experiment = toys.tiny_experiment(texts)
  for name, value in changes.items():
    *rooms, field = name.split('.')
    holder = getattr(experiment, rooms[0]) if rooms else experiment
    if isinstance(value, str):
      value = value.format(before)
    setattr(holder, field, value)
  with pytest.raises((OSError, ValueError), match=message):
    train.train(experiment, tmp_path / 'work')
  assert not (tmp_path / 'work').exists()


def test_a_step_to_stop_after_is_counted_from_1(texts, tmp_path):
  with pytest.raises(ValueError, match='until=0: must be a step, counted from'):
    train.train(toys.tiny_experiment(texts), tmp_path / 'w', until=0)
  assert not (tmp_path / 'w').exists()


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

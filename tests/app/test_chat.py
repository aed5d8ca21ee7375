"""A chat model is trained once, whatever comes between."""

import json
import types

import jax
import pytest

from kaiju_jax.app import chat
from kaiju_jax.data import chat as chat_format
from kaiju_jax.data import config as data_config
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import pool
from kaiju_jax.runs import train
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.dialogues import rows
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib
from tests import records
from tests import toys


def go(experiment, workdir, monkeypatch, trained):
  """Trains, is stopped, goes on, and is asked once more.

  Args:
    experiment: of four steps.
    workdir: does not exist.
    monkeypatch: pytest's.
    trained: called as `train.train`.
  """
  said = []
  # As after Ctrl-C: two of four steps are done and saved.
  monkeypatch.setattr(train, 'train', lambda *args: trained(*args, until=2))
  assert chat.ready(experiment, workdir, said.append) is None
  assert workdir_lib.checkpoints(workdir) == [2]
  # Each part that takes long is announced before it begins.
  assert 'compiling' in said.pop()
  assert 'no chat model yet' in said.pop() and not said

  monkeypatch.setattr(train, 'train', trained)
  # A newer version's experiment does not spoil what is there.
  newer = toys.tiny_experiment(workdir.parent / 'texts', steps=400)
  assert chat.ready(newer, workdir, said.append) == workdir
  assert 'compiling' in said.pop()
  assert 'going on with the chat model, step 2 of 4' in said.pop()
  assert workdir_lib.checkpoints(workdir)[-1] == 4

  monkeypatch.delattr(train, 'train')
  before = {one: one.stat().st_mtime_ns for one in workdir.rglob('*')}
  assert chat.ready(newer, workdir, said.append) == workdir
  assert not said
  assert {one: one.stat().st_mtime_ns for one in workdir.rglob('*')} == before


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
  """Keeps the devices of the tests' process."""
  monkeypatch.setattr(pool, 'count_cores', lambda: 1)


@pytest.fixture
def experiment(tmp_path):
  return toys.tiny_experiment(toys.write_texts(tmp_path))


def test_it_trains_once_and_goes_on_where_it_stopped(
  experiment, tmp_path, monkeypatch
):
  def trained(experiment, workdir, mesh=None, until=None):
    with workdir_lib.open_workdir(workdir, experiment):
      step = until or experiment.loop.steps
      (workdir / workdir_lib.CHECKPOINTS / str(step)).mkdir(parents=True)
    return types.SimpleNamespace(step=step)

  go(experiment, tmp_path / 'chat', monkeypatch, trained)


def test_its_tokenizer_is_trained_once(experiment, tmp_path, monkeypatch):
  workdir = tmp_path / 'chat'
  path = workdir / 'tokenizer.json'
  experiment.data.tokenizer = str(path)
  experiment.model.vocab_size = 300
  seen = []

  def trained(experiment, workdir, mesh):
    # It is there, and whole, before the run begins.
    seen.append(tokenizer_lib.load(str(path), 300))
    return types.SimpleNamespace(step=0)

  monkeypatch.setattr(train, 'train', trained)
  monkeypatch.setattr(chat, '_TEXTS', 20)
  chat.ready(experiment, workdir, lambda _: None)
  before = path.read_bytes()
  chat.ready(experiment, workdir, lambda _: None)
  assert path.read_bytes() == before and len(seen) == 2
  assert seen[0].vocab_size == 300
  said = next(rows.texts(1))
  assert len(seen[0].encode(said)) < 0.9 * len(said)
  # Messages of a text are the messages that a server sends.
  assert chat_format.format_of(seen[0]).name == 'control'


def test_a_tokenizer_in_a_workdir_moves_with_it(tmp_path):
  named = str(tmp_path / 'before' / 'tokenizer.json')
  assert load.tokenizer_of(tmp_path, named) == named
  (tmp_path / 'tokenizer.json').touch()
  assert load.tokenizer_of(tmp_path, named) == str(tmp_path / 'tokenizer.json')
  assert load.tokenizer_of(tmp_path, '') == ''  # Bytes need no file.


@pytest.mark.slow
def test_the_same_with_a_real_run(experiment, tmp_path, monkeypatch):
  workdir = tmp_path / 'chat'
  go(experiment, workdir, monkeypatch, train.train)
  assert [one['step'] for one in records.of(workdir)] == [1, 2, 3, 4, 4]


def test_two_cores_of_a_cpu_split_a_batch(experiment, monkeypatch):
  asked = []

  def machine(cores, devices, platform='cpu'):
    monkeypatch.setattr(pool, 'count_cores', lambda: cores)
    monkeypatch.setattr(jax.config, 'update', lambda *args: asked.append(args))
    monkeypatch.setattr(jax, 'default_backend', lambda: platform)
    monkeypatch.setattr(jax, 'device_count', lambda: devices)

  machine(2, 2)
  assert chat.find_mesh(experiment).fsdp == 2
  assert asked == [('jax_num_cpu_devices', 2)]
  machine(2, 2, 'gpu')
  assert chat.find_mesh(experiment) is None
  machine(2, 8)  # Somebody has chosen devices already.
  assert chat.find_mesh(experiment) is None
  asked.clear()
  machine(1, 2)
  assert chat.find_mesh(experiment) is None
  machine(2, 2)
  experiment.data.batch = 3
  assert chat.find_mesh(experiment) is None
  assert not asked  # One device trains: JAX's stay as they are.


def test_a_workdir_in_which_nothing_can_be_trained_is_left_alone(
  experiment, tmp_path
):
  experiment.data.length = 10**6
  with pytest.raises(ValueError, match=r'data.length'):
    chat.ready(experiment, tmp_path / 'chat', lambda _: None)
  with pytest.raises(ValueError, match=r'num_heads=2: .* over mesh.tensor=3'):
    chat.ready(experiment, tmp_path / 'chat', tensor=3)
  assert not (tmp_path / 'chat').exists()
  (tmp_path / 'config.json').write_text(json.dumps({'zorbifex': 1}))
  with pytest.raises(ValueError, match='zorbifex'):
    chat.ready(experiment, tmp_path, lambda _: None)


def test_dialogues_are_a_task(tmp_path):
  experiment = experiment_lib.Experiment(
    data=data_config.DataConfig(task='dialogues', length=1024)
  )
  drawn = tasks.rows(experiment)
  assert len(drawn) == experiment.loop.steps * experiment.data.batch
  assert drawn[0].tokens.shape == (1024,)
  texts_BL = tasks.texts(experiment, 2)
  assert texts_BL.shape == (2, 1024)
  assert not (texts_BL[0] == drawn[0].tokens).all()
  experiment.data.length = 512
  with pytest.raises(ValueError, match=r'data.length=512'):
    tasks.check(experiment)
  experiment.data.length, experiment.data.path = 1024, str(tmp_path)
  with pytest.raises(ValueError, match=r'data.path=.*invented'):
    tasks.check(experiment)

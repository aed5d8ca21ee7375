"""From an experiment to a run, with the real model: stop, resume, refuse."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from experiments.configs import tiny
from kaiju_jax import tpu_gpu_configs
from kaiju_jax.costs import accelerator
from kaiju_jax.runs import train
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training.records import metrics
from tests import records
from tests import toys


@pytest.fixture(scope='module')
def whole(texts):
  """The workdir and the state of a run that nothing interrupts."""
  workdir = texts.parent / 'whole'
  return workdir, train.train(toys.tiny_experiment(texts), workdir)


@pytest.fixture(scope='module')
def stopped(texts):
  """The workdir of a run that was stopped halfway, not to be written to."""
  workdir = texts.parent / 'stopped'
  assert (
    int(train.train(toys.tiny_experiment(texts), workdir, until=2).step) == 2
  )
  assert [one['step'] for one in records.of(workdir)] == [1, 2]
  return workdir


@pytest.mark.versions
def test_a_stopped_run_resumes_to_the_same_bits(
  texts, whole, stopped, tmp_path, capsys
):
  """With the compilation cache on, from which the resumed run reads."""
  assert jax.config.jax_compilation_cache_dir
  workdir, state = whole
  resumed = shutil.copytree(stopped, tmp_path / 'resumed')
  toys.assert_equal(train.train(toys.tiny_experiment(texts), resumed), state)
  assert 'going on from step 2' in capsys.readouterr().err
  assert records.of(resumed) == records.of(workdir)
  assert [one['step'] for one in records.of(workdir)] == [1, 2, 3, 4, 4]
  assert 0 < records.of(workdir)[-1]['eval_bits_per_byte'] < 10
  assert all(('padding' in x) == ('loss' in x) for x in records.of(workdir))
  amounts = json.loads((resumed / 'amounts.json').read_text())
  source = amounts['sources']['']
  assert source['rows'] == 8 and source['row_tokens'] == 8 * 32
  assert source['documents'] > source['held_out']['documents'] > 0
  assert amounts['devices']['count'] == 1 and amounts['peak'] is None


def test_a_run_whose_text_grew_is_not_resumed(texts, stopped, tmp_path):
  resumed = shutil.copytree(stopped, tmp_path / 'resumed')
  file = texts / '3.txt'
  before = file.read_text()
  file.write_text(f'{before}One line more.\n')
  try:
    with pytest.raises(ValueError, match=r'data.path: .* Changed: 3\.txt\.'):
      train.train(toys.tiny_experiment(texts), resumed)
  finally:
    file.write_text(before)


@pytest.mark.slow
def test_a_resumed_run_may_change_its_mesh(
  texts, whole, stopped, tmp_path, monkeypatch
):
  make = mesh_lib.make

  def of_two(mesh, devices=None):
    return make(mesh, devices or jax.devices()[:2])

  monkeypatch.setattr(mesh_lib, 'make', of_two)
  chip = accelerator.Chip('toy', 'cpu', 1.0, peak_bf16=1e9, peak_int8=2e9)
  monkeypatch.setattr(tpu_gpu_configs, 'find_chip', lambda _: chip)
  mesh = sharding_config.MeshConfig(fsdp=2)
  resumed = shutil.copytree(stopped, tmp_path / 'resumed')
  state = train.train(toys.tiny_experiment(texts), resumed, mesh)
  sharded = state.params['embedding']['embedding_DV'].sharding
  assert sharded.mesh.shape == {'fsdp': 2, 'tensor': 1}
  losses = [
    [one['loss'] for one in records.of(folder) if 'loss' in one]
    for folder in (resumed, whole[0])
  ]
  assert len(losses[0]) == 4
  np.testing.assert_allclose(*losses, rtol=1e-2)
  peak = json.loads((resumed / 'amounts.json').read_text())['peak']
  last = [one for one in metrics.read(resumed) if 'mfu' in one][-1]
  rate = last['tokens_per_second'] / 2
  assert last['tokens_per_second_per_device'] == rate
  assert last['mfu'] == pytest.approx(rate * peak['token_seconds'])
  assert last['padding'] == records.of(whole[0])[3]['padding']


def test_the_rows_follow_the_seed(texts):
  from kaiju_jax.data import text
  from kaiju_jax.data.store import corpora

  experiment = toys.tiny_experiment(texts)
  experiment.seed = 5
  rows = tasks.rows(experiment)
  training, _ = corpora.load(experiment.data)
  expected, other = (text.Rows(training, 32, seed)[0] for seed in (5, 0))
  np.testing.assert_array_equal(rows[0].tokens, expected.tokens)
  assert (rows[0].tokens != other.tokens).any()


def test_a_run_leaves_no_thread_of_its_data_behind(
  texts, tmp_path, monkeypatch
):
  from kaiju_jax.data import loader
  from kaiju_jax.training import loop

  closed = []
  monkeypatch.setattr(loader.Batches, 'close', lambda self: closed.append(self))
  monkeypatch.setattr(loop, 'train', lambda *_, batches, **__: next(batches))
  train.train(toys.tiny_experiment(texts), tmp_path / 'w')
  assert len(closed) == 1


def test_data_that_is_not_text_leaves_no_folder(tmp_path):
  texts = toys.write_texts(tmp_path)
  (texts / 'a.txt').write_bytes(b'\xff\xfe')
  with pytest.raises(ValueError, match=r'a\.txt: not text'):
    train.train(toys.tiny_experiment(texts), tmp_path / 'work' / 'a')
  assert not (tmp_path / 'work').exists()


def test_every_config_of_the_arms_passes_the_checks():
  from experiments.configs import ablation
  from experiments.configs import needle

  for module in (tiny, ablation, needle):
    for arm in module.ARMS:
      train.check(module.get_config(arm))
      assert dataclasses.is_dataclass(module.get_config(arm))
    with pytest.raises(ValueError, match="arm='nothing'"):
      module.get_config('nothing')

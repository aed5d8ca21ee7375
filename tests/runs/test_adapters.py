"""Runs with adapters: their base, their checkpoints, and their exports."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.app import serve
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.decoding.device import weights
from kaiju_jax.evaluation import kl_divergence
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import stream
from kaiju_jax.model import deployed
from kaiju_jax.model import lora
from kaiju_jax.model import transformer
from kaiju_jax.quantization import int8
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import train
from kaiju_jax.sharding import rules
from kaiju_jax.training import checkpoint
from kaiju_jax.training import config as training_config
from tests import meshes
from tests import records
from tests import toys
from tests.interchange import family_folders


def experiment(texts, base, **settings):
  one = toys.tiny_experiment(texts)
  return dataclasses.replace(
    one,
    begin_with=str(base),
    lora=training_config.LoraConfig(4, 8.0, '*'),
    **settings,
  )


@pytest.fixture(scope='module')
def base(texts):
  """A workdir and its export, of a model that has learned nothing."""
  workdir = texts.parent / 'base'
  toys.write_run(workdir, toys.tiny_experiment(texts).model)
  exchange.export(workdir, texts.parent / 'export')
  return workdir


@pytest.fixture(scope='module')
def run(texts, base, programs):
  """The workdir and the last state of a run beside an export's codes."""
  workdir = texts.parent / 'run'
  one = experiment(texts, texts.parent / 'export')
  return workdir, train.train(one, workdir, programs=programs)


def logits_of(params, config, unstacked=False):
  tokens_BL = np.arange(24, dtype=np.int32)[None] + 60
  model = transformer.Transformer(config, unstacked=unstacked)
  of = jax.jit(
    lambda params: model.apply(
      {'params': params}, tokens_BL, visibility.causal(24)
    )
  )
  return np.asarray(of(params))


def test_a_run_holds_adapters_alone_and_resumes_to_the_same_bits(
  texts, run, programs, tmp_path
):
  workdir, state = run
  paths = jax.tree_util.tree_leaves_with_path(state.params)
  assert paths and all(lora.is_trained(path[-1].key) for path, _ in paths)
  one = experiment(texts, texts.parent / 'export')
  stopped = train.train(one, tmp_path / 'run', until=2, programs=programs)
  assert int(stopped.step) == 2
  toys.assert_equal(
    train.train(one, tmp_path / 'run', programs=programs), state
  )
  assert records.of(tmp_path / 'run') == records.of(workdir)
  losses = [one['loss'] for one in records.of(workdir) if 'loss' in one]
  assert losses[-1] < losses[0]
  # Of the base there is nothing in the checkpoint.
  names = {path.name for path in workdir.glob('checkpoints/4/state/*')}
  assert not [name for name in names if '.w_' in name and 'params' in name]


def test_a_run_begins_with_the_adapters_of_another(
  texts, run, programs, tmp_path
):
  workdir, state = run
  one = experiment(texts, workdir)
  one.optimizer.learning_rate = 1e-30
  still = train.train(one, tmp_path / 'run', programs=programs)
  nearly = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-12)
  jax.tree.map(nearly, still.params, state.params)
  there = load.attach_adapters(tmp_path / 'run')
  jax.tree.map(
    nearly,
    *(lora.split(x.params)[0] for x in (there, load.from_workdir(workdir))),
  )
  assert '/export' in there.origin
  # Beside the same base, and of the same kind alone.
  moved = shutil.copytree(workdir, tmp_path / 'other')
  found = json.loads((moved / 'base.json').read_text())
  (moved / 'base.json').write_text(json.dumps({**found, 'digest': '0' * 32}))
  with pytest.raises(ValueError, match=r'is another base .* not 0000'):
    train.train(experiment(texts, moved), tmp_path / 'new', programs=programs)
  (moved / 'base.json').unlink()
  with pytest.raises(FileNotFoundError, match=r'base\.json'):
    train.train(experiment(texts, moved), tmp_path / 'new', programs=programs)
  assert not (moved / 'base.json').exists()
  one.lora.rank = 2
  with pytest.raises(checkpoint.RestoreError):
    train.train(one, tmp_path / 'newer')


def test_a_workdir_and_its_export_are_one_base(texts, base, run):
  codes = load.base(texts.parent / 'export', 'bfloat16')
  masters = load.base(base, 'bfloat16')
  assert deployed.is_deployed(masters.params)
  assert load.digest(masters) == load.digest(codes)
  there = load.attach_adapters(run[0], base)
  toys.assert_equal(there.params, load.from_workdir(run[0]).params)


@pytest.mark.slow
def test_an_open_folder_is_a_base(texts, tmp_path):
  fields = family_folders.fields_of('qwen3') | {'vocab_size': 256}
  folder = family_folders.write(tmp_path / 'open', fields)
  one = experiment(texts, folder)
  one.model.dtype = 'float32'
  state = train.train(one, tmp_path / 'run', until=2)
  found = load.from_workdir(tmp_path / 'run')
  assert not found.is_ours and found.config.qk_norm == 'head'
  attention = found.params['blocks']['layer_0']['attention']
  assert attention['w_k_DUK'].codes.dtype == np.int8
  ours = state.params['blocks']['layer_0']['attention']['lora_up_k_RUK']
  np.testing.assert_array_equal(attention['lora_up_k_RUK'], ours)
  assert np.any(ours)


@pytest.mark.parametrize('name', ['base', 'export', 'run', '--lora'])
def test_devices_get_their_parts_of_what_the_host_reads(
  name, texts, run, monkeypatch
):
  """The last device stands for the host."""
  *devices, host = jax.devices()
  monkeypatch.setattr(weights, 'on_host', lambda: jax.default_device(host))
  base, lora_path = texts.parent / name, ''
  if name == '--lora':
    base, lora_path = texts.parent / 'export', str(run[0])
  settings = settings_lib.Settings(
    model=str(base), lora=lora_path, tensor=2, length=20, cache=2**20
  )
  before = meshes.held(devices)
  loaded = serve.load_model(settings)
  assert meshes.held(devices) == before
  made = settings.decoder(loaded, None, 1)
  leaves = jax.tree.leaves((made.params, made.cache))
  part, whole = (
    sum(x.nbytes for x in arrays)
    for arrays in ([x.addressable_shards[0].data for x in leaves], leaves)
  )
  after = meshes.held(devices)
  extra = [after[one] - before[one] for one in devices]
  assert extra == [part, part, 0, 0, 0, 0, 0] and part < 0.7 * whole


def test_another_base_is_refused(texts, base, run, tmp_path):
  model = dataclasses.replace(toys.tiny_experiment(texts).model, window=4)
  toys.write_run(tmp_path / 'other', model)
  message = r'other, step 7: is another base than that of .*run'
  with pytest.raises(ValueError, match=message):
    load.attach_adapters(run[0], tmp_path / 'other')
  moved = shutil.copytree(run[0], tmp_path / 'run')
  found = json.loads((moved / 'base.json').read_text())
  (moved / 'base.json').write_text(json.dumps({**found, 'digest': '0' * 32}))
  with pytest.raises(ValueError, match=r'is another base .* not 0000'):
    train.train(experiment(texts, texts.parent / 'export'), moved)


def test_adapters_decode_as_they_were_trained(run):
  """What decoding reads gives the logits of the model that was trained."""
  found = load.from_workdir(run[0])
  ready = weights.ready(found.params, found.config)
  layer = ready['blocks']['layer_0']['attention']
  assert layer['lora_down_q_DR'].shape == (16, 4)
  trained, decoded, base = (
    logits_of(params, found.config, unstacked)
    for params, unstacked in (
      (found.params, False),
      (ready, True),
      (lora.split(found.params)[1], False),
    )
  )
  moved = np.abs(trained - base).max()
  assert np.abs(trained - decoded).max() < 0.1 * moved


def test_adapters_of_biased_keys_are_balanced_with_them(tmp_path):
  """Balanced keys and their queries give the logits of the model as it was."""
  folder = tmp_path / 'qwen2'
  family_folders.write(folder, family_folders.fields_of('qwen2'))
  params, config = hugging_face.read(folder, (), stream.MASTERS)
  params = lora.attach(params, 3, 6.0, 'w_q w_k w_v')
  rng = np.random.default_rng(0)

  def start(path, leaf):
    if path[-1].key.startswith('lora_up'):
      return np.asarray(rng.standard_normal(leaf.shape), np.float32)
    return leaf

  params = jax.tree_util.tree_map_with_path(start, params)
  ready = weights.ready(params, config)
  before, after = (
    one['blocks']['layer_0']['attention'] for one in (params, ready)
  )
  assert (before['lora_up_k_RUK'][0] != after['lora_up_k_RUK']).any()
  np.testing.assert_allclose(
    logits_of(params, config), logits_of(ready, config, True), atol=1e-4
  )


def test_an_export_merges_and_says_at_what_divergence(
  run, tmp_path, monkeypatch
):
  said = exchange.export(run[0], tmp_path / 'out')
  assert said.startswith('Merged into codes: KL(beside ‖ merged) ')
  found, merged = load.from_workdir(run[0]), load.from_export(tmp_path / 'out')
  assert not lora.is_adapted(merged.params)
  toys.assert_equal(merged.params, exchange.merge_adapters(found).params)
  assert_merged(found, merged.params)
  tokens_BL = np.arange(32, dtype=np.int32)[None] + 60
  padded_BL = np.pad(tokens_BL, [(0, 0), (0, 8)])
  monkeypatch.setattr(
    exchange.tasks, 'texts', lambda *_: np.concatenate([padded_BL] * 2)
  )
  base = load.base(found.experiment.begin_with, 'bfloat16')
  nats, apart = (
    kl_divergence.compare(
      *((one.config, load.variables(one)) for one in (found, other))
    )(tokens_BL, visibility.causal(32))
    for other in (merged, base)
  )
  assert 0 <= nats.mean() < 1e-2 and nats.mean() < 0.1 * apart.mean()
  said = exchange.describe_merged(found)
  assert f' {nats.mean():.2e} nats' in said and ' over 32 tokens' in said


def assert_merged(found, merged):
  """Codes are those that an export of the summed floats would have."""

  def summed(tree):
    out = {}
    for name, node in tree.items():
      if isinstance(node, dict):
        out[name] = summed(node)
      elif not name.startswith(('lora_', 'hidden_limit')):
        out[name] = node
      if isinstance(node, int8.Quantized):
        down, up, scale = (np.asarray(tree[key]) for key in lora.names_of(name))
        ins, outs = (key.rpartition('_')[2] for key in lora.names_of(name)[:2])
        letters = rules.letters_of(name)
        out[name] = np.asarray(int8.dequantize(node)) + np.einsum(
          f'N,N{ins},N{outs}->N{letters}', scale, down, up
        )
    return out

  wanted = deployed.quantize(summed(found.params), found.config)
  for (path, ours), theirs in zip(
    jax.tree_util.tree_leaves_with_path(merged),
    jax.tree.leaves(wanted),
    strict=True,
  ):
    is_codes = ours.dtype == np.int8
    np.testing.assert_allclose(
      np.asarray(ours, np.float64),
      np.asarray(theirs, np.float64),
      rtol=0 if is_codes else 1e-5,
      atol=1 if is_codes else 0,
      err_msg=str(path),
    )


def test_a_run_of_adapters_is_no_base(texts, base, run, tmp_path):
  one = experiment(texts, run[0])
  one.lora = training_config.LoraConfig()
  with pytest.raises(ValueError, match='is itself a run with adapters'):
    train.train(one, tmp_path / 'run')

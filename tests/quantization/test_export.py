"""An exported checkpoint is the trained model, to the bit."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import export
from tests.model import params as params_lib
from tests.model import rows

CONFIG = model_config.ModelConfig(
  vocab_size=48,
  d_model=32,
  num_layers=6,
  period=3,
  global_share=1,
  num_heads=3,
  head_dim=8,
  d_ff=48,
  max_length=64,
  window=5,
  quantization=quantization_config.QuantizationConfig(bungee=True),
)


def changed(dtype='bfloat16', **quantization) -> model_config.ModelConfig:
  return dataclasses.replace(
    CONFIG,
    dtype=dtype,
    quantization=dataclasses.replace(CONFIG.quantization, **quantization),
  )


def params_of(config):
  """Parameters off their start: gains, Bungee scalars and all."""
  start = params_lib.drawn(transformer.Transformer(config))
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: x + 0.1 * rng.standard_normal(x.shape).astype(np.float32), start
  )


@pytest.mark.parametrize(
  'config',
  [
    changed(),
    changed(clamp_hidden='input_std', bungee=False, embedding='int8'),
    changed('float32', clamp_hidden='none', clamp_input='none', qk='none'),
    changed(kv_scale='channel'),
    changed(matmul='none', embedding='int8', kv='none', qk='none'),
  ],
  ids=[
    'bf16',
    'no limit, all int8',
    'f32, unclamped',
    'channel scales',
    'float but for the embedding',
  ],
)
def test_the_export_gives_the_training_forward_pass_bit_for_bit(
  config, tmp_path
):
  params = params_of(config)
  batch = rows.packed_batch([[13, 9], [24]], 24, 48)
  model = transformer.Transformer(config)
  forward = jax.jit(
    lambda p: model.apply({'params': p}, batch.tokens_BL, batch.visibility())
  )
  export.save(tmp_path / 'model.safetensors', params, config)
  loaded, loaded_config = export.load(tmp_path / 'model.safetensors')
  assert loaded_config == config
  np.testing.assert_array_equal(forward(loaded), forward(params))
  # What was read matters: one row of it changed changes the logits.
  group = loaded['blocks']['layer_0']['feedforward']
  (w, *scales), tree = jax.tree.flatten(group['w_out_DF'])
  w = w.at[0, 0].set(-w[0, 0])
  group['w_out_DF'] = jax.tree.unflatten(tree, [w, *scales])
  assert np.any(forward(loaded) != forward(params))


def test_every_projection_is_int8_and_the_rest_is_said(tmp_path):
  export.save(tmp_path / 'm.safetensors', params_of(CONFIG), CONFIG)
  params, _ = export.load(tmp_path / 'm.safetensors')
  floats = {
    path[-1].key
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if leaf.dtype == jnp.float32 and hasattr(path[-1], 'key')
  }
  assert floats == {'gain_D', 'embedding_DV', 'hidden_limit'}
  codes = [leaf for leaf in jax.tree.leaves(params) if leaf.dtype == jnp.int8]
  # Two repeats of three layers; the second shares the first's keys and values.
  assert len(codes) == 3 * 4 + 2 * 2


def test_errors(tmp_path):
  ternary = changed(wire_weights='ternary')
  with pytest.raises(ValueError, match=r'replica .* is missing'):
    export.save(tmp_path / 'm', {}, ternary)
  assert not list(tmp_path.iterdir())
  (tmp_path / 'bad').write_bytes(b'not safetensors at all')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    export.load(tmp_path / 'bad')
  with pytest.raises(OSError):
    export.load(tmp_path / 'missing')


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """The tensors and the metadata of an export."""
  path = tmp_path_factory.mktemp('export') / 'model.safetensors'
  export.save(path, params_of(CONFIG), CONFIG)
  with safetensors.safe_open(path, framework='numpy') as file:
    names = list(file.keys())
    return {name: file.get_tensor(name) for name in names}, file.metadata()


def _with(config, name, value):
  return json.dumps(json.loads(config) | {name: value})


@pytest.mark.parametrize(
  'config, message',
  [
    (lambda c: None, 'vocab_size, .*: missing'),
    (lambda c: '{}', 'vocab_size, .*: missing'),
    (lambda c: '{"vocab_size": 4', 'delimiter'),
    (lambda c: '[]', r'ModelConfig=\[\]: must be an object'),
    (lambda c: _with(c, 'heads', 3), 'heads: no such field'),
    (lambda c: _with(c, 'd_ff', '48'), "d_ff='48': must be int"),
    (lambda c: _with(c, 'window', 0), r'model\.window=0: must be'),
    (
      lambda c: _with(c, 'd_ff', 64),
      r'w_in_DF\.codes: holds int8 \[2, 32, 48\], the config asks for int8 \[2,'
      r' 32, 64\]',
    ),
    (lambda c: _with(c, 'tied_embedding', False), 'holds nothing, the config'),
  ],
)
def test_a_config_that_is_none_or_another_is_named(
  tmp_path, exported, config, message
):
  tensors, metadata = exported
  metadata = metadata | {'config': config(metadata['config'])}
  metadata = {k: v for k, v in metadata.items() if v is not None}
  path = tmp_path / 'm.safetensors'
  safetensors.numpy.save_file(tensors, path, metadata)
  with pytest.raises(ValueError, match=rf'm\.safetensors: (?s:.*){message}'):
    export.load(path)


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda x: None, 'holds nothing, the config asks for int8'),
    (lambda x: x[:, :-1], r'holds int8 \[2, 31, 48\]'),
    (lambda x: x.astype(np.int16), r'holds int16 \[2, 32, 48\]'),
  ],
)
def test_a_tensor_that_is_missing_or_another_is_named(
  tmp_path, exported, change, message
):
  tensors, metadata = exported
  name = 'blocks.layer_0.feedforward.w_in_DF.codes'
  tensors = tensors | {name: change(tensors[name])}
  tensors = {
    k: np.ascontiguousarray(v) for k, v in tensors.items() if v is not None
  }
  path = tmp_path / 'm.safetensors'
  safetensors.numpy.save_file(tensors, path, metadata)
  with pytest.raises(ValueError, match=f'{name}: {message}'):
    export.load(path)
  safetensors.numpy.save_file(
    exported[0] | {'spare': np.ones(3)}, path, metadata
  )
  with pytest.raises(ValueError, match='spare: holds float64'):
    export.load(path)

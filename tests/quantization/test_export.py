"""An exported checkpoint is the trained model, to the bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import export
from kaiju_jax.training import state
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
  start = state.init_params(transformer.Transformer(config), 0)
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: x + 0.1 * rng.standard_normal(x.shape).astype(np.float32), start
  )


@pytest.mark.parametrize(
  'config',
  [
    changed(),
    changed('float32'),
    changed(clamp_hidden='input_std', bungee=False),
    changed(clamp_hidden='none', clamp_input='none', qk='none'),
    changed(kv_scale='channel'),
    changed(embedding='int8'),
  ],
  ids=['bf16', 'f32', 'no limit', 'unclamped', 'channel scales', 'all int8'],
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
  # The codes matter: one of them changed changes the logits.
  w = loaded['blocks']['layer_0']['feedforward']['w_out_DF']
  loaded['blocks']['layer_0']['feedforward']['w_out_DF'] = w._replace(
    codes=w.codes.at[0, 0].set(-w.codes[0, 0])
  )
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
  plain = changed(matmul='none')
  with pytest.raises(ValueError, match="matmul='none': only a model trained"):
    export.save(tmp_path / 'm', params_of(plain), plain)
  assert not list(tmp_path.iterdir())
  (tmp_path / 'bad').write_bytes(b'not safetensors at all')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    export.load(tmp_path / 'bad')
  with pytest.raises(OSError):
    export.load(tmp_path / 'missing')

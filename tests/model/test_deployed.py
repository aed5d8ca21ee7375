"""A deployed model is the trained model, to the bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.model import params as params_lib
from tests.model import rows

CONFIG = model_config.ModelConfig(
  vocab_size=48,
  d_model=32,
  layout='L0 L0 L2 L2',
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
    changed(
      'float32',
      clamp_hidden='input_std',
      bungee=False,
      embedding='int8',
      kv_scale='channel',
    ),
    pytest.param(
      changed('float32', clamp_hidden='none', clamp_input='none', qk='none'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      changed(matmul='none', embedding='int8', kv='none', qk='none'),
      marks=pytest.mark.slow,
    ),
  ],
  ids=[
    'bf16',
    'f32, no limit, all int8, channel scales',
    'f32, unclamped',
    'float but for the embedding',
  ],
)
def test_the_deployed_forward_pass_is_the_training_one_bit_for_bit(config):
  params = params_of(config)
  batch = rows.packed_batch([[13, 9], [24]], 24, 48)
  model = transformer.Transformer(config)
  forward = jax.jit(
    lambda p: model.apply({'params': p}, batch.tokens_BL, batch.visibility())
  )
  trained = forward(params)
  served = deployed.quantize(params, config)
  np.testing.assert_array_equal(forward(served), trained)
  # What was read matters: one row of it changed changes the logits.
  group = served['blocks']['layer_0']['feedforward']
  (w, *scales), tree = jax.tree.flatten(group['w_out_DF'])
  w = w.at[0, 0].set(-w[0, 0])
  group['w_out_DF'] = jax.tree.unflatten(tree, [w, *scales])
  assert np.any(forward(served) != trained)


def test_every_projection_is_int8_and_the_rest_is_said():
  params = params_of(CONFIG)
  assert not deployed.is_deployed(params)
  served = deployed.quantize(params, CONFIG)
  assert deployed.is_deployed(served)
  floats = {
    path[-1].key
    for path, leaf in jax.tree_util.tree_leaves_with_path(served)
    if leaf.dtype == jnp.float32 and hasattr(path[-1], 'key')
  }
  assert floats == {'gain_D', 'embedding_DV', 'hidden_limit'}
  codes = [leaf for leaf in jax.tree.leaves(served) if leaf.dtype == jnp.int8]
  # Two repeats of two layers; the second shares the first's keys and values.
  assert len(codes) == 2 * 4 + 2


def test_a_ternary_model_needs_its_replica():
  with pytest.raises(ValueError, match=r'replica .* is missing'):
    deployed.quantize({}, changed(wire_weights='ternary'))

"""The int8 arms of an open model, and keys whose biases are balanced."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import balance
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from tests.decoding import toys

LENGTH, ROWS = 48, 4
CONFIG = model_config.ModelConfig(
  vocab_size=300,
  d_model=64,
  layout='G0 G1',
  num_heads=4,
  num_kv_heads=2,
  head_dim=16,
  d_ff=160,
  max_length=LENGTH,
  feedforward='swiglu',
  qkv_bias=True,
  scaled_embedding=False,
  tied_embedding=False,
  dtype='float32',
  quantization=quantization_config.none(),
)
TOKENS = np.random.default_rng(1).integers(1, 300, (ROWS, LENGTH), np.int32)
TOKENS[:, 0] = 0


def drawn(config=CONFIG):
  """Returns weights whose attention is far from uniform, with biases."""
  params = jax.tree.map(np.array, toys.drawn(config, 1.0))

  def leaf(path, x):
    name = path[-1].key
    if name.startswith('bias_'):
      return 0.5 * x
    if name.startswith('w_'):
      scale = 160**-0.5 if name == 'w_out_DF' else 0.125
      return scale * (2.5 if name[2] in 'qk' else 1) * x
    return 0.125 * x if name == 'head_DV' else x

  return jax.tree_util.tree_map_with_path(leaf, params)


@functools.cache
def _forward(config_repr, arm, kv):
  config = dataclasses.replace(
    CONFIG,
    quantization=quantization_config.for_serving(arm, kv),
    **dict(config_repr),
  )
  model = transformer.Transformer(config, unstacked=True)
  seen = visibility_lib.concatenate([visibility_lib.causal(LENGTH)] * ROWS)
  return config, jax.jit(lambda p: model.apply({'params': p}, TOKENS, seen))


def logits(params, arm='none', kv='none', **changes):
  config, forward = _forward(tuple(changes.items()), arm, kv)
  return np.asarray(forward(weights.ready(params, config)), np.float64)


def divergence(params, arm, kv):
  """Returns the mean KL of the arm from floats, in nats."""
  of_floats, of_arm = (
    np.asarray(jax.nn.log_softmax(logits(params, *which)), np.float64)
    for which in (('none', 'none'), (arm, kv))
  )
  return (np.exp(of_floats) * (of_floats - of_arm)).sum(-1).mean()


def test_arms_stay_close_to_floats_on_a_plain_toy():
  params = drawn()
  assert 1e-4 < divergence(params, 'weights', 'none') < 0.002
  assert 1e-4 < divergence(params, 'all', 'int8') < 0.02
  assert 1e-5 < divergence(params, 'none', 'int8') < 0.001


def test_a_massive_activation_is_confined_to_its_token():
  params = drawn()
  plain = {arm: divergence(params, arm, 'int8') for arm in ('weights', 'all')}
  params['embedding']['embedding_DV'][5, 0] *= 1000
  for arm, before in plain.items():
    assert divergence(params, arm, 'int8') < 3 * before


def test_a_key_s_bias_ruins_int8_keys_until_it_is_balanced(monkeypatch):
  params = drawn()
  plain = divergence(params, 'none', 'int8')
  for layer in params['blocks'].values():
    layer['attention']['bias_k_UK'][..., 7] = 100
  balanced = divergence(params, 'none', 'int8')
  with monkeypatch.context() as patch:
    patch.setattr(balance, 'balance', lambda params, config: params)
    ruined = divergence(params, 'none', 'int8')
  assert ruined > 50 * plain
  assert balanced < ruined / 5


@pytest.mark.parametrize(
  'changes', [{}, {'num_kv_heads': 1}, {'layout': 'G0 G0'}]
)
def test_balancing_moves_no_bit_of_floats(monkeypatch, changes):
  params = drawn(dataclasses.replace(CONFIG, **changes))
  found = logits(params, **changes)
  with monkeypatch.context() as patch:
    patch.setattr(balance, 'balance', lambda params, config: params)
    before = logits(params, **changes)
  np.testing.assert_array_equal(found, before)


def test_only_biased_keys_are_balanced():
  params = {'blocks': {}}
  for changes in {'qkv_bias': False}, {'qk_norm': 'head'}:
    config = dataclasses.replace(CONFIG, **changes)
    assert balance.balance(params, config) is params


def test_float_activations_of_coded_weights():
  random = np.random.default_rng(0)
  x_BLD = random.normal(0, 1, (3, 2, 64)).astype(np.float32)
  x_BLD[0, 0, 3] *= 1000
  codes_DF, scales = int8.quantize(random.normal(0, 1, (64, 40)), (0,))
  w_DF = int8.Quantized(codes_DF, scales)
  product = jax.jit(
    functools.partial(qat.einsum, 'BLD,DF->BLF', weight_only=True)
  )
  wanted = x_BLD.astype(np.float64) @ np.asarray(int8.dequantize(w_DF))
  found = np.asarray(product(x_BLD, w_DF))
  largest_BL = np.abs(x_BLD).max(-1)
  error_BL = np.abs(found - wanted).max(-1)
  # Half a step of the second digit in each of 64 terms, at the worst.
  worst = 64 * np.abs(np.asarray(int8.dequantize(w_DF))).max() / 2 / 127 / 254
  assert (error_BL < 0.5 * worst * largest_BL).all()
  coded = np.asarray(qat.einsum('BLD,DF->BLF', x_BLD, w_DF))
  assert np.abs(coded - wanted).max() > 50 * error_BL.max()
  # One token alone has the same bits, and a NaN spoils its token.
  np.testing.assert_array_equal(product(x_BLD[:1, :1], w_DF)[0, 0], found[0, 0])
  x_BLD[1, 0, 0] = np.nan
  is_nan_BL = np.isnan(product(x_BLD, w_DF)).all(-1)
  assert is_nan_BL[1, 0] and is_nan_BL.sum() == 1


def test_arms_have_names():
  assert (
    quantization_config.for_serving('none', 'none')
    == quantization_config.none()
  )
  with pytest.raises(ValueError, match=r"int8='some': must be one of none, we"):
    quantization_config.for_serving('some')


def test_float_products_of_codes_train_nothing():
  experiment = experiment_lib.Experiment()
  experiment.model.quantization.matmul = 'weights'
  with pytest.raises(ValueError, match=r"matmul='weights': must be 'int8' or"):
    fit.check(experiment, sharding_config.MeshConfig())

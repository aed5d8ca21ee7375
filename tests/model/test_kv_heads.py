"""Several heads of keys and values: folding, and what they are equal to.

`test_transformer.py` holds them to the plain model, gradients and all.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import kv_heads
from kaiju_jax.model import transformer
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from tests.decoding import toys
from tests.model import params as params_lib
from tests.sharding import mesh_steps


def test_a_head_of_keys_meets_its_own_query_heads():
  # One row of two tokens; head h of token l is 10·l + h.
  q_BLHK = np.array([[[[0], [1], [2], [3]], [[10], [11], [12], [13]]]])
  folded = kv_heads.fold_queries(q_BLHK, 2)
  assert folded[..., 0].tolist() == [[[0, 1], [10, 11]], [[2, 3], [12, 13]]]
  np.testing.assert_array_equal(kv_heads.unfold(folded, 2), q_BLHK)
  # Codes [B, M, U, K] and their scales [B, M, U] become rows together.
  k = int8.Quantized(
    np.array([[[[0], [1]], [[2], [3]]], [[[4], [5]], [[6], [7]]]]),
    np.array([[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
  )
  k = kv_heads.fold_keys(k)
  assert k.codes[..., 0].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
  assert k.scales.tolist() == k.codes[..., 0].tolist()
  assert kv_heads.repeat(np.array([3, 4]), 2).tolist() == [3, 3, 4, 4]


def equal_heads(params, heads: int):
  """Returns the parameters of several heads that are all the one head's."""
  blocks = {}
  for name, layer in params['blocks'].items():
    attention = {}
    for key, w in layer['attention'].items():
      if key in ('w_k_DK', 'w_v_DK'):
        key, w = f'{key[:3]}_DUK', np.repeat(w[:, :, None], heads, axis=2)
      attention[key] = w
    blocks[name] = {**layer, 'attention': attention}
  return {**params, 'blocks': blocks}


@pytest.mark.slow
def test_equal_heads_are_one_head_bit_for_bit():
  """In the reference mode, where the shape of a batch moves no bit."""
  one = toys.config(
    layout='G0 G0', num_heads=4, quantization=toys.int8(bungee=True)
  )
  params = toys.drawn(one)
  tokens_BL = toys.tokens(one, 2, 20)
  several = dataclasses.replace(one, num_kv_heads=2)
  want = toys.forward(params, one, tokens_BL, 'reference')
  repeated = equal_heads(params, 2)
  got = toys.forward(repeated, several, tokens_BL, 'reference')
  np.testing.assert_array_equal(got, want)
  # And heads that differ are something else.
  first = repeated['blocks']['layer_0']['attention']['w_k_DUK']
  first[:, :, 1] *= -1
  other = toys.forward(repeated, several, tokens_BL, 'reference')
  assert np.mean(other != want) > 0.9


def experiment(heads: int) -> experiment_lib.Experiment:
  one = mesh_steps.experiment(**mesh_steps.PLAIN)
  one.model = dataclasses.replace(
    one.model, num_kv_heads=heads, layout='L0', num_heads=8
  )
  return one


@functools.cache
def on_one_device(heads):
  return mesh_steps.gradient_on(experiment(heads), (1, 1))


# Two heads: two devices share one. Four over two devices: two whole heads each.
@pytest.mark.slow
@pytest.mark.parametrize('heads, widths', [(2, (2, 4)), (4, (1, 2))])
def test_the_mesh_does_not_change_loss_and_gradients(heads, widths):
  want_loss, want, _ = on_one_device(heads)
  loss, gradient, _ = mesh_steps.gradient_on(experiment(heads), widths)
  np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
  names = set()
  for (path, g), expected in zip(
    jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(want)
  ):
    names.add(path[-1].key)
    error = np.abs(g - expected).max() / np.abs(expected).max()
    assert error < 1e-5, (jax.tree_util.keystr(path), error)
  assert {'w_k_DUK', 'w_v_DUK'} <= names


def test_heads_that_a_mesh_would_tear_apart_are_refused():
  one = experiment(2)
  one.model.num_heads = one.model.num_kv_heads = 6
  one.data.length, one.model.d_ff, one.model.vocab_size = 48, 96, 48
  fit.check(one, sharding_config.MeshConfig(1, 6))
  one.model.num_heads, one.model.num_kv_heads = 12, 6
  message = 'num_kv_heads=6: must divide mesh.tensor=4 or be a multiple'
  with pytest.raises(ValueError, match=message):
    fit.check(one, sharding_config.MeshConfig(1, 4))


def test_channels_have_one_limit_for_all_heads():
  config = model_config.ModelConfig(num_kv_heads=2)
  config.quantization.kv_scale = 'channel'
  with pytest.raises(ValueError, match="kv_scale='channel': must be 'token'"):
    model_config.check(config)
  model_config.check(dataclasses.replace(config, num_kv_heads=1))


def test_one_head_has_the_parameters_that_it_always_had():
  config = toys.config(layout='L0 G1')
  model = transformer.Transformer(config)
  names = {
    path[-1].key
    for path, _ in jax.tree_util.tree_leaves_with_path(params_lib.drawn(model))
  }
  assert {'w_k_DK', 'w_v_DK'} <= names
  assert not any(name.endswith('_DUK') for name in names)

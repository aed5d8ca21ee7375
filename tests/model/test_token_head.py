"""The head's arithmetic, its score for searches, and its file."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import token_head
from kaiju_jax.storage import tensor_file

NAMES = ('rude', 'of age')
CONFIG = token_head.TokenHeadConfig(NAMES)


def params(seed=0, d_model=3):
  rng = np.random.default_rng(seed)
  return {
    'w_DC': rng.normal(size=(d_model, 2)).astype(np.float32),
    'bias_C': np.array([0.5, -2.0], np.float32),
  }


def test_a_fresh_head_says_one_half():
  module = token_head.TokenHead(CONFIG)
  hidden_BLD = jnp.ones((2, 4, 3), jnp.bfloat16)
  logits_BLC, variables = module.init_with_output(jax.random.key(0), hidden_BLD)
  assert jax.tree.map(jnp.shape, variables['params']) == {
    'w_DC': (3, 2),
    'bias_C': (2,),
  }
  assert logits_BLC.dtype == jnp.float32
  np.testing.assert_array_equal(logits_BLC, np.zeros((2, 4, 2)))


def test_logits_are_a_linear_layer_of_each_token():
  hidden_BLD = np.random.default_rng(1).normal(size=(2, 4, 3))
  weights = params()
  found = token_head.TokenHead(CONFIG).apply({'params': weights}, hidden_BLD)
  expected = np.empty((2, 4, 2))
  for b, t, c in np.ndindex(2, 4, 2):
    expected[b, t, c] = weights['bias_C'][c] + sum(
      hidden_BLD[b, t, d] * float(weights['w_DC'][d, c]) for d in range(3)
    )
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_reweigh_is_the_log_of_a_product_of_probabilities():
  yes = np.array([0.9, 0.2, 0.6])
  logits_BLC = np.log(yes / (1 - yes)).astype(np.float32)[None, None]
  # Wanted once, to be avoided twice over, of no concern.
  found = token_head.reweigh(logits_BLC, np.array([1.0, -2.0, 0.0]))
  np.testing.assert_allclose(found, [[np.log(0.9 * 0.8**2)]], rtol=1e-5)


def test_reweigh_is_silent_where_nothing_is_asked():
  logits_BLC = np.array([[[np.inf, -np.inf], [1e30, -1e30]]], np.float32)
  found = token_head.reweigh(logits_BLC, np.zeros(2))
  np.testing.assert_array_equal(found, [[0, 0]])
  # What is sure to be there, and is to be avoided, is ruled out.
  found = token_head.reweigh(logits_BLC, np.array([-1.0, 0.0]))
  np.testing.assert_array_equal(found, np.float32([[-np.inf, -1e30]]))


@pytest.mark.parametrize(
  'names, message',
  [
    ((), r'names=\(\): must be a tuple of at least one name'),
    ('rude', "names='rude': must be a tuple"),
    (('rude', ''), "'' must be text"),
    (('rude', ' old'), "' old' must be text, with no space around it"),
    (('a', 'b', 'a'), "'a' is given 2 times"),
  ],
)
def test_names_that_do_not_tell_dimensions_apart_are_refused(names, message):
  with pytest.raises(ValueError, match=message):
    token_head.check(token_head.TokenHeadConfig(names))


def test_a_file_holds_weights_and_names(tmp_path):
  path = tmp_path / 'head.safetensors'
  token_head.save(path, params(), CONFIG)
  loaded, config = token_head.load(path, NAMES, d_model=3)
  assert config == CONFIG
  for name, expected in params().items():
    np.testing.assert_array_equal(loaded[name], expected)
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'names': ('of age', 'rude')}, 'the same in another order'),
    ({'names': ('rude', 'kind')}, r"missing \['kind'\], not asked for \['of"),
    ({'d_model': 4}, 'hidden states of 3 values, model.d_model=4'),
  ],
)
def test_another_head_is_refused(tmp_path, arguments, message):
  path = tmp_path / 'head.safetensors'
  token_head.save(path, params(), CONFIG)
  with pytest.raises(ValueError, match=message) as raised:
    token_head.load(path, **arguments)
  assert str(path) in str(raised.value)


def test_what_is_no_head_is_refused(tmp_path):
  path = tmp_path / 'head.safetensors'
  with pytest.raises(FileNotFoundError):
    token_head.load(path)
  path.write_bytes(b'no head')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    token_head.load(path)
  tensor_file.write(path, params(), {'format': 'another'})
  with pytest.raises(ValueError, match="format is 'another'"):
    token_head.load(path)
  metadata = {'format': 'kaiju_jax token_head 1', 'names': json.dumps(['rude'])}
  tensor_file.write(path, params(), metadata)
  with pytest.raises(ValueError, match='head of 1 dimensions has the weights'):
    token_head.load(path)
  with pytest.raises(ValueError, match='head of 2 dimensions has the weights'):
    token_head.save(path, {'w_DC': np.zeros((3, 2))}, CONFIG)

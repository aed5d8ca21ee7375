"""The model against a plain one, and its properties."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import rope_scaling
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import state
from tests.model import oracle
from tests.model import params as params_lib
from tests.model import rows

# First weights of w_o that seed 7 draws for four layers.
DRAWN = 0.131933, 0.18572, -0.33584, 0.120946


def small_config(**changes) -> model_config.ModelConfig:
  config = model_config.ModelConfig(
    vocab_size=48,
    d_model=32,
    layout='L0 L0 L2 G3',
    num_heads=3,
    head_dim=8,
    d_ff=48,
    max_length=64,
    window=5,
    dtype='float32',
    quantization=quantization_config.none(),
  )
  return dataclasses.replace(config, **changes)


def int8_config(**changes) -> quantization_config.QuantizationConfig:
  # A clamp tight enough to cut, so that its gradient is under test.
  defaults = {'clamp_hidden_k': 3.0, 'clamp_input_k': 1.5, 'bungee': True}
  return quantization_config.QuantizationConfig(**(defaults | changes))


# Each setting beside each that it might meet in the code, in few programs.
TWICE = 'L0 L0 L2 L2'
SINKS = 'L0+3s L0+3s L2+3s L2+3s'
CONFIGS = {
  'float, two heads of keys, Bungee, globals shared and not rotated, untied': (
    small_config(
      layout='L0:3+2s G1s L2:5 G1s',
      num_heads=4,
      num_kv_heads=2,
      rope_global=0.0,
      tied_embedding=False,
      remat='layer',
      quantization=dataclasses.replace(quantization_config.none(), bungee=True),
    )
  ),
  'int8, remat, two repeats': small_config(
    quantization=int8_config(), layout=SINKS, remat='layer'
  ),
  'int8, channel scales, float queries, hidden clamped by its own rows': (
    small_config(
      quantization=int8_config(
        kv_scale='channel', qk='none', clamp_hidden='input_std'
      ),
      layout='L0 L0 G2',
    )
  ),
  'float, gated, norms on both sides, biases, heads normed, llama3, N': (
    small_config(
      layout='L0 N1 L0 G3',
      num_heads=4,
      num_kv_heads=2,
      feedforward='swiglu',
      norms='both',
      qk_norm='head',
      qkv_bias=True,
      scaled_embedding=False,
      rope_scaling=rope_scaling.RopeScalingConfig(
        'llama3', factor=4.0, original_length=16
      ),
    )
  ),
  'int8, gated, norms after, all heads normed, biases, yarn on global': (
    small_config(
      layout='L0 G1',
      feedforward='geglu',
      norms='after',
      qk_norm='all',
      qkv_bias=True,
      # A scalar before a norm would have no gradient.
      quantization=int8_config(clamp_hidden='input_std', bungee=False),
      rope_scaling=rope_scaling.RopeScalingConfig(
        'yarn',
        factor=4.0,
        original_length=16,
        fast=4.0,
        attention_factor=1.2,
        layers='global',
        angles='float32',
      ),
    )
  ),
  'Bungee, two repeats': small_config(
    layout='L0 L0 G2 L3 L3 G5',
    quantization=dataclasses.replace(quantization_config.none(), bungee=True),
  ),
  'int8, a head of keys for each of queries, nothing clamped': small_config(
    quantization=int8_config(clamp_hidden='none', clamp_input='none'),
    layout='L0 L0 G2',
    num_kv_heads=3,
  ),
}
# The quick ones meet nearly every line; the others, in other company.
MARKS = [pytest.mark.slow] * len(CONFIGS)
MARKS[0], MARKS[1], MARKS[3] = (), pytest.mark.versions, ()
COMPARED = [
  pytest.param(name, marks=marks) for name, marks in zip(CONFIGS, MARKS)
]
CONFIGS |= {
  'plain': small_config(),
  'int8': small_config(quantization=int8_config()),
}


def trained_like(params, seed=1):
  """Moves every parameter off its start, so that none is special.

  Running limits of keys and values come to lie where they cut some.
  """
  rng = np.random.default_rng(seed)

  def move(path, x):
    x = x + 0.1 * rng.standard_normal(x.shape)
    is_limit = path[-1].key in ('k_limit_K', 'v_limit_K')
    return jnp.asarray(0.4 * x if is_limit else x, jnp.float32)

  return jax.tree_util.tree_map_with_path(move, params)


@pytest.fixture(scope='module')
def batch():
  return rows.packed_batch([[13, 9], [24]], 24, 48)


@pytest.mark.parametrize('name', COMPARED)
def test_loss_and_every_gradient_equal_the_plain_model(name, batch):
  config = CONFIGS[name]
  model = transformer.Transformer(config)
  start = params_lib.drawn(model)
  z = (3e-3, 2e-3)

  @jax.jit
  def ours(params):
    return jax.value_and_grad(
      lambda p: language.weighted_cross_entropy(model, p, batch, *z)
    )(params)

  @jax.jit
  def plain(params):
    # The term is virtual: the loss is the bare one, the gradient has both.
    gradient, bare = jax.grad(oracle.losses, has_aux=True)(
      params, config, batch, *z
    )
    return bare, gradient

  # A value on the edge between two codes may fall on either side, and then
  # both are right; and a Bungee scalar's gradient may be nearly zero, a sum of
  # both signs. There are a few draws to show one without such a value.
  worst = {}
  for seed in range(6):
    params = trained_like(start, seed)
    worst = errors(ours(params), plain(params))
    if max(worst.values()) < 2e-4:
      return
  raise AssertionError(worst)


def errors(got, want):
  """Relative error of each leaf; a gradient that is all zero fails."""
  found = {}
  for (path, a), b in zip(
    jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want)
  ):
    name = jax.tree_util.keystr(path)
    assert float(jnp.abs(a).max()) > 0, f'{name} is zero'
    found[name] = float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
  return found


def apply(config, length, visibility):
  model = transformer.Transformer(config)
  params = jax.eval_shape(lambda: state.draw_params(model, 0))
  params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
  return model.apply(
    {'params': params}, jnp.zeros((1, length), jnp.int32), visibility
  )


def test_rows_as_long_as_the_positions_pass_and_longer_ones_do_not():
  config = small_config(layout='L0')
  logits = jax.eval_shape(lambda: apply(config, 64, visibility_lib.causal(64)))
  assert logits.shape == (1, 64, 48)
  message = r'\(1, 65\): rows are longer .* model\.max_length=64'
  with pytest.raises(ValueError, match=message):
    apply(config, 65, visibility_lib.causal(65))
  with pytest.raises(ValueError, match=message):
    jax.jit(lambda v: apply(config, 65, v))(visibility_lib.causal(65))


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('position_BL', np.zeros((1, 3), np.int32), r'expected \(1, 4\), that of'),
    ('limit_BM', np.full((1, 4), 5, np.int32), r'limit_BM\[0, 0\]=5: expected'),
    ('coordinate_BL', jnp.full((1, 4), -1), r'coordinate_BL\[0, 0\]=-1: exp'),
    ('position_BL', np.full((1, 4), 64, np.int32), 'position_BL reaches 64'),
  ],
)
def test_a_visibility_that_leaves_the_row_is_refused(field, value, message):
  visibility = visibility_lib.causal(4)._replace(**{field: value})
  with pytest.raises(ValueError, match=message):
    apply(small_config(layout='L0'), 4, visibility)


@pytest.mark.parametrize('name', ['plain', 'int8'])
def test_no_token_sees_another_document_or_the_future(name, batch):
  config = CONFIGS[name]
  model = transformer.Transformer(config)
  params = trained_like(params_lib.drawn(model))
  visibility = batch.visibility()
  states = jax.jit(
    lambda tokens: model.apply({'params': params}, tokens, visibility)
  )
  before = states(batch.tokens_BL)
  # Token 15 stands in row 0's second document (13…21) and row 1's only one.
  changed = batch.tokens_BL.copy()
  changed[:, 15] = (changed[:, 15] + 1) % 48
  moved = np.any(np.asarray(states(changed) != before), axis=-1)
  expected = np.zeros_like(moved)
  expected[0, 15:22] = expected[1, 15:24] = True
  np.testing.assert_array_equal(moved & ~expected, False)
  # Padding (row 0 from 22 on) sees nothing but itself through the residual.
  assert moved[0, 15] and moved[1, 15:24].all()


def test_reach_of_local_layers_is_layers_times_window_less_one():
  config = small_config(layout='L0 L1 L2', window=4)
  model = transformer.Transformer(config)
  params = trained_like(params_lib.drawn(model))
  tokens_BL = np.arange(24, dtype=np.int32)[None]
  visibility = visibility_lib.causal(24)
  hidden = jax.jit(
    lambda t: model.apply({'params': params}, t, visibility, method='hidden')
  )
  changed = tokens_BL.copy()
  changed[0, 5] = 40
  moved = np.any(np.asarray(hidden(changed) != hidden(tokens_BL)), axis=-1)[0]
  assert moved.tolist() == [5 <= t <= 5 + 3 * 3 for t in range(24)]


def test_a_configs_shapes_are_those_of_init_and_traced_once(monkeypatch):
  config = small_config(layout='L0 G1', d_ff=28, quantization=int8_config())
  model = transformer.Transformer(config)
  want = jax.eval_shape(lambda: state.draw_params(model, 0))
  found = transformer.parameter_shapes(config)
  assert found == want
  del found['blocks']
  monkeypatch.delattr(transformer.Transformer, 'hidden')
  assert transformer.parameter_shapes(config) == want


def test_a_seed_draws_the_same_weights_in_each_version():
  """A step that computes the same may still begin elsewhere."""
  config = small_config(layout='L0 L1 L2 G3')
  params = state.init_params(transformer.Transformer(config), 7)
  drawn = [
    float(layer['attention']['w_o_DHK'].ravel()[0])
    for _, layer in sorted(params['blocks'].items())
  ]
  assert drawn == pytest.approx(DRAWN, abs=1e-5)


@pytest.mark.versions
def test_depth_does_not_grow_the_program():
  def equations(depth):
    config = small_config(layout='', num_layers=depth, period=7, global_share=1)
    model = transformer.Transformer(config)
    shapes = jax.eval_shape(
      model.init,
      jax.random.key(0),
      jnp.zeros((1, 8), jnp.int32),
      visibility_lib.causal(8),
    )
    program = jax.jit(model.apply).lower(
      shapes, jnp.zeros((1, 8), jnp.int32), visibility_lib.causal(8)
    )
    return program.as_text().count('\n')

  assert equations(42) == equations(14)


def test_readings_are_left_only_where_asked(batch):
  config = small_config(layout='L0 G1', quantization=int8_config())
  model = transformer.Transformer(config)
  params = params_lib.drawn(model)

  @jax.jit
  def read(params):
    return model.apply(
      {'params': params},
      batch.tokens_BL,
      batch.visibility(),
      mutable=['readings'],
    )

  _, left = read(params)
  rms_lse = jax.tree.leaves(left)
  assert len(rms_lse) == 2 * 2
  assert all(np.all(np.isfinite(x)) for x in rms_lse)

"""The step: microbatches, Z-Reg, weights of the loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import loss
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests.model import params as params_lib
from tests.model import rows


def experiment(**model) -> experiment_lib.Experiment:
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      **{
        'vocab_size': 48,
        'd_model': 16,
        'num_layers': 2,
        'period': 2,
        'num_heads': 2,
        'head_dim': 8,
        'd_ff': 24,
        'max_length': 32,
        'window': 5,
        'dtype': 'float32',
        'quantization': quantization_config.none(),
        **model,
      }
    ),
    data=data_config.DataConfig(length=16, batch=2),
  )


def start(one):
  params = params_lib.drawn(step_lib.model_of(one))
  return state_lib.create(params, optimizer.make(one.optimizer))


def stacked(*batches):
  return jax.tree.map(lambda *x: np.stack(x), *batches)


@pytest.fixture
def halves():
  return (
    rows.packed_batch([[16], [5, 6]], 16, 48, seed=1),
    rows.packed_batch([[2, 3], [4, 4, 4]], 16, 48, seed=2),
  )


def test_microbatches_make_the_step_of_their_union(halves):
  """Uneven weights and all: the loss is a mean over the step's tokens."""
  one = experiment()
  whole = jax.tree.map(lambda a, b: np.concatenate([a, b]), *halves)
  step = step_lib.make(one)
  together, a = step(start(one), stacked(whole))
  apart, b = step(start(one), stacked(*halves))
  np.testing.assert_allclose(a['loss'], b['loss'], rtol=1e-6)
  np.testing.assert_allclose(a['grad_norm'], b['grad_norm'], rtol=1e-5)
  assert a['loss_weight'] == b['loss_weight'] == 15 + 4 + 5 + 1 + 2 + 9
  assert together.tokens == apart.tokens == 4 * 16


def test_another_number_of_microbatches_compiles_nothing(halves):
  one = experiment()
  step = step_lib.make(one)
  both = stacked(*halves)
  state, _ = step(start(one), both, jnp.int32(2))
  compiled = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: (
      compiled.append(name) if 'backend_compile' in name else None
    )
  )
  try:
    state, first = step(state, both, jnp.int32(1))
    jax.block_until_ready(first)
  finally:
    jax.monitoring.clear_event_listeners()
  assert not compiled
  assert state.tokens == 3 * 32
  assert first['loss_weight'] == halves[0].weight_BL.sum()


@pytest.mark.parametrize('target', ['lse', 'mean_logit'])
def test_z_reg_changes_gradients_and_not_a_bit_of_the_loss(halves, target):
  one = experiment()
  one.optimizer.z_reg.target = target
  model = step_lib.model_of(one)
  params = start(one).params

  @jax.jit
  def value_and_grad(z):
    return jax.value_and_grad(
      lambda p: loss.weighted_cross_entropy(model, p, halves[0], z, z)
    )(params)

  without, plain = value_and_grad(0.0)
  with_z, regularized = value_and_grad(1e-2)
  assert float(without) == float(with_z)
  assert any(
    np.any(a != b)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(regularized))
  )


def test_mean_logit_z_reg_is_the_gradient_of_the_explicit_term(halves):
  """For one layer, whose logits can be written out here."""
  one = experiment(num_layers=1, period=1, rope_global=0.0)
  one.optimizer.z_reg.target = 'mean_logit'
  model = step_lib.model_of(one)
  params = start(one).params
  batch = halves[0]

  def explicit(w_q, w_k):
    x = params['embedding']['embedding_DV'].T[batch.tokens_BL] * 4.0
    n = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    q = jnp.einsum('BLD,DHK->BLHK', n, w_q)
    k = jnp.einsum('BLD,DK->BLK', n, w_k)
    logits = jnp.einsum('BLHK,BMK->BLHM', q, k) / np.sqrt(8)
    c = batch.coordinate_BL[:, :, None]
    seen = (batch.start_BL[:, None] <= c) & (c < batch.limit_BL[:, None])
    count = np.maximum(seen.sum(-1), 1)[:, :, None]
    mean = jnp.sum(jnp.where(seen[:, :, None], logits, 0), -1) / count
    return 0.5 * jnp.sum(mean**2)

  attention = params['blocks']['layer_0']['attention']
  want = jax.jit(jax.grad(explicit, (0, 1)))(
    attention['w_q_DHK'][0], attention['w_k_DK'][0]
  )

  @jax.jit
  def gradient(z):
    return jax.grad(
      lambda p: loss.weighted_cross_entropy(model, p, batch, z, 0.0)
    )(params)['blocks']['layer_0']['attention']

  with_z, without = gradient(1.0), gradient(0.0)
  for name, expected in zip(('w_q_DHK', 'w_k_DK'), want):
    np.testing.assert_allclose(
      with_z[name][0] - without[name][0], expected, rtol=2e-3, atol=2e-4
    )


def test_a_step_without_loss_tokens_is_no_nan(halves):
  one = experiment()
  empty = halves[0]._replace(weight_BL=np.zeros_like(halves[0].weight_BL))
  state, metrics = step_lib.make(one)(start(one), stacked(empty))
  assert metrics['loss'] == metrics['loss_weight'] == 0
  assert all(np.isfinite(p).all() for p in jax.tree.leaves(state.params))


def test_the_loss_falls(halves):
  one = experiment()
  one.loop = dataclasses.replace(one.loop, steps=60)
  one.optimizer.learning_rate = 1e-2
  step = step_lib.make(one)
  state, losses = start(one), []
  for _ in range(60):
    state, metrics = step(state, stacked(halves[0]))
    losses.append(float(metrics['loss']))
  assert losses[-1] < 0.3 * losses[0]

"""The step: microbatches, the rate, Z-Reg, weights of the loss."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.model import batches
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import language
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from kaiju_jax.training import token_count
from tests.model import params as params_lib
from tests.model import rows

STEPS = 40


def experiment(**model) -> experiment_lib.Experiment:
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      **{
        'vocab_size': 48,
        'd_model': 16,
        'num_layers': 1,
        'period': 1,
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
    data=data_config.DataConfig(length=16, batch=2, microbatches=2),
    optimizer=training_config.OptimizerConfig(
      learning_rate=2e-2, warmup=2 / STEPS, final=0.25
    ),
    loop=training_config.LoopConfig(steps=STEPS),
  )


@functools.cache
def step_of():
  """Compiled once for two microbatches, whose number is an argument."""
  return step_lib.make(experiment())


def start():
  one = experiment()
  params = params_lib.drawn(step_lib.model_of(one))
  return state_lib.initialize(one, params=params)


def stacked(*batches):
  return jax.tree.map(lambda *x: np.stack(x), *batches)


@pytest.fixture
def halves():
  return (
    rows.packed_batch([[16], [5, 6]], 16, 48, seed=1),
    rows.packed_batch([[2, 3], [4, 4, 4]], 16, 48, seed=2),
  )


@pytest.mark.versions
def test_microbatches_make_the_step_of_their_union(halves):
  """Uneven weights and all: the loss is a mean over the step's tokens."""
  whole = jax.tree.map(lambda a, b: np.concatenate([a, b]), *halves)
  together, a = step_lib.make(experiment())(start(), stacked(whole))
  apart, b = step_of()(start(), stacked(*halves), 2)
  np.testing.assert_allclose(a['loss'], b['loss'], rtol=1e-6)
  np.testing.assert_allclose(a['grad_norm'], b['grad_norm'], rtol=1e-5)
  assert a['loss_weight'] == b['loss_weight'] == 15 + 4 + 5 + 1 + 2 + 9
  for state in (together, apart):
    assert token_count.to_int(state.tokens) == 4 * 16


def test_a_microbatch_twice_makes_the_step_of_one(halves):
  """The gradient is a mean as well: its norm does not grow with A."""
  _, once = step_of()(start(), stacked(*halves), 1)
  _, twice = step_of()(start(), stacked(halves[0], halves[0]), 2)
  for name in ('loss', 'grad_norm'):
    np.testing.assert_allclose(once[name], twice[name], rtol=1e-5)


@pytest.mark.versions
def test_another_number_of_microbatches_compiles_nothing(halves):
  step, both = step_of(), stacked(*halves)
  state, _ = step(start(), both, jnp.int32(2))
  state, first = step(state, both, jnp.int32(1))
  assert token_count.to_int(state.tokens) == 3 * 32
  assert first['loss_weight'] == halves[0].weight_BL.sum()
  assert step.compilations == 1


@pytest.mark.parametrize('microbatches', [0, 3, np.int64(5)])
def test_microbatches_that_the_batch_does_not_hold_are_refused(
  halves, microbatches
):
  message = rf'microbatches={microbatches}: must lie in 1…2'
  with pytest.raises(ValueError, match=message):
    step_of()(start(), stacked(*halves), microbatches)


@pytest.mark.versions
@pytest.mark.parametrize('microbatches', [0, 3, -1])
def test_a_traced_number_that_the_batch_does_not_hold_gives_nan(
  halves, microbatches
):
  _, metrics = step_of()(start(), stacked(*halves), jnp.int32(microbatches))
  assert np.isnan(metrics['loss']) and np.isnan(metrics['grad_norm'])


@pytest.mark.versions
def test_it_learns_at_the_rate_of_the_tokens_before_each_step(halves):
  """An oracle of its own for the rates: two steps of warm-up, then a cosine."""
  step, state = step_of(), start()
  rates, losses = [], []
  for _ in range(STEPS):
    state, metrics = step(state, stacked(*halves), 2)
    rates.append(float(metrics['learning_rate']))
    losses.append(float(metrics['loss']))
  cosine = [(1 + math.cos(math.pi * i / 38)) / 2 for i in range(STEPS - 2)]
  want = [0, 0.5, *(0.25 + 0.75 * x for x in cosine)]
  np.testing.assert_allclose(rates, 2e-2 * np.array(want), rtol=1e-5)
  assert losses[0] == losses[1], 'the first step has a rate of 0'
  assert losses[-1] < 0.3 * losses[0]


def test_tokens_are_counted_where_float32_would_not(halves):
  """32,833 steps of 4,088 tokens: float32 steps by 8 there."""
  behind = 4_088 * 32_833 - 1
  state = start().replace(tokens=token_count.start(behind))
  state = jax.device_put(state, jax.tree.map(lambda x: x.sharding, start()))
  state, metrics = step_of()(state, stacked(*halves), 2)
  assert token_count.to_int(state.tokens) == behind + 64
  assert metrics['learning_rate'] == pytest.approx(0.25 * 2e-2)


def test_z_reg_changes_gradients_and_not_a_bit_of_the_loss(halves):
  """The output logits' part is that of Σ weight · (c / 2) · lse²."""
  one = experiment()
  model = step_lib.model_of(one)
  params = start().params
  rng = np.random.default_rng(0)
  weight_BL = halves[0].weight_BL * rng.integers(0, 4, (2, 16))
  batch = halves[0]._replace(weight_BL=weight_BL.astype(np.float32))

  @jax.jit
  def value_and_grad(*z):
    return jax.value_and_grad(
      lambda p: language.weighted_cross_entropy(model, p, batch, *z)
    )(params)

  @jax.jit
  def explicit(params):
    hidden_BLD = batches.hidden(model, {'params': params}, batch, 0.0)
    behind_BLD = jnp.take_along_axis(
      hidden_BLD, batch.predecessor_BL[:, :, None], axis=1
    )
    logits_BLV = model.apply({'params': params}, behind_BLD, method='logits')
    lse_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
    return jnp.sum(batch.weight_BL * 0.5 * lse_BL**2)

  without, plain = value_and_grad(0.0, 0.0)
  of_attention, attention = value_and_grad(1e-2, 0.0)
  of_logits, logits = value_and_grad(0.0, 1.0)
  assert float(without) == float(of_attention) == float(of_logits)
  assert any(
    np.any(a != b)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(attention))
  )
  jax.tree.map(
    lambda w, a, b: np.testing.assert_allclose(a - b, w, rtol=1e-3, atol=1e-3),
    jax.grad(explicit)(params),
    logits,
    plain,
  )


def test_mean_logit_z_reg_is_the_gradient_of_the_explicit_term(halves):
  """For one layer, whose logits can be written out here."""
  one = experiment(rope_global=0.0)
  one.optimizer.z_reg.target = 'mean_logit'
  model = step_lib.model_of(one)
  params = start().params
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
    value, found = jax.value_and_grad(
      lambda p: language.weighted_cross_entropy(model, p, batch, z, 0.0)
    )(params)
    return value, found['blocks']['layer_0']['attention']

  (value, with_z), (plain, without) = gradient(1.0), gradient(0.0)
  assert float(value) == float(plain)
  for name, expected in zip(('w_q_DHK', 'w_k_DK'), want):
    np.testing.assert_allclose(
      with_z[name][0] - without[name][0], expected, rtol=2e-3, atol=2e-4
    )


@pytest.mark.versions
def test_a_step_without_loss_tokens_is_no_nan(halves):
  empty = halves[0]._replace(weight_BL=np.zeros_like(halves[0].weight_BL))
  state, metrics = step_of()(start(), stacked(empty, empty), 2)
  assert metrics['loss'] == metrics['loss_weight'] == 0
  assert all(np.isfinite(p).all() for p in jax.tree.leaves(state.params))


def test_an_objective_whose_sums_are_no_scalars_is_refused(halves):
  def loss(*arguments):
    sums = language.OBJECTIVE.loss(*arguments)
    return sums._replace(weight=jnp.stack([sums.weight]))

  objective = dataclasses.replace(language.OBJECTIVE, loss=loss)
  step = step_lib.make(experiment(), objective=objective)
  with pytest.raises(AssertionError, match='rank'):
    step(start(), stacked(*halves), 2)

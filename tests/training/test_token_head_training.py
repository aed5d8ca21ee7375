"""The head finds what is there; the trunk moves only where it is asked to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import token_head
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state
from kaiju_jax.training import step as step_lib
from kaiju_jax.training import token_head as head_training
from tests.model import rows

HEAD = token_head.TokenHeadConfig(('in set', 'behind set', 'unknown'))
SET = (1, 4, 5, 7, 11, 14)
ROWS, LENGTH, STEPS = 8, 32, 100


@functools.cache
def experiment():
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=16, d_model=64, num_layers=1, num_heads=2, head_dim=32,
      d_ff=32, max_length=LENGTH, window=2, dtype='float32',
      quantization=quantization_config.none(),
    ),
    optimizer=training_config.OptimizerConfig(
      learning_rate=0.3, weight_decay=0.0, warmup=0.0
    ),
  )  # fmt: skip


@functools.cache
def trunk():
  """A fresh model whose queries are alike: it looks at both its tokens."""
  drawn = state.init_params(step_lib.model_of(experiment()), 0)
  attention = drawn['blocks']['layer_0']['attention']
  attention['w_q_DHK'] = jnp.zeros_like(attention['w_q_DHK'])
  return drawn


def batch(seed):
  return rows.packed_batch([[20, 12]] * ROWS, LENGTH, 16, seed)


def labels(batch) -> head_training.Labels:
  """Whether a token, and the one before it, is of a set; nothing else."""
  is_in_BL = np.isin(batch.tokens_BL, SET)
  label_BLC = np.zeros((*is_in_BL.shape, 3), np.float32)
  label_BLC[:, :, 0] = is_in_BL
  label_BLC[:, 1:, 1] = is_in_BL[:, :-1]
  label_BLC[:, :, 2] = np.nan  # Never to be read.
  weight_BLC = np.zeros_like(label_BLC)
  weight_BLC[:, :, 0] = 1
  weight_BLC[:, :, 1] = batch.weight_BL  # Behind a first token is nothing.
  return head_training.Labels(label_BLC, weight_BLC)


def accuracy(params, seed) -> np.ndarray:
  asked = batch(seed)
  hidden_BLD = step_lib.model_of(experiment()).apply(
    {'params': trunk()}, asked.tokens_BL, asked.visibility(), method='hidden'
  )
  found_BLC = token_head.TokenHead(HEAD).apply({'params': params}, hidden_BLD)
  label_BLC, weight_BLC = labels(asked)
  is_right_BLC = (np.asarray(found_BLC) > 0) == (label_BLC > 0.5)
  sums = (weight_BLC * is_right_BLC).sum((0, 1)), weight_BLC.sum((0, 1))
  return (sums[0] / np.maximum(sums[1], 1))[:2]


def test_a_head_behind_a_frozen_trunk_learns_what_its_tokens_are():
  step = head_training.frozen(experiment(), HEAD, STEPS * ROWS * LENGTH)
  made = head_training.start(experiment(), HEAD)
  losses = []
  for seed in range(STEPS):
    drawn = batch(seed)
    made, metrics = step(made, trunk(), drawn, labels(drawn))
    losses.append(float(metrics['head_loss']))
  assert losses[0] == pytest.approx(np.log(2), rel=1e-6)
  found = accuracy(made.params, seed=1000)
  assert found.min() > 0.98  # 6 of 16 tokens are in the set.
  # The dimension of which nothing is known stays where it was.
  np.testing.assert_array_equal(made.params['w_DC'][:, 2], np.zeros(64))
  assert int(made.step) == STEPS
  assert float(made.tokens) == STEPS * ROWS * LENGTH


def test_a_frozen_trunk_has_no_gradient():
  drawn = batch(0)
  model = step_lib.model_of(experiment())
  head = token_head.TokenHead(HEAD)
  params = {'w_DC': jnp.ones((64, 3)), 'bias_C': jnp.ones(3)}
  gradient, of_trunk = jax.jit(
    jax.grad(
      lambda params, trunk: head_training.frozen_loss(
        model, head, params, trunk, drawn, labels(drawn)
      ),
      argnums=(0, 1),
    )
  )(params, trunk())
  assert float(jnp.abs(gradient['w_DC']).max()) > 0
  for leaf in jax.tree.leaves(of_trunk):
    np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_joint_training_adds_the_head_to_the_language_models_step():
  made, drawn = experiment(), batch(0)

  def joint(coefficient):
    step = head_training.joint(made, HEAD, 1, coefficient)
    begun = head_training.start(made, HEAD, copied())
    ones = jax.tree.map(jnp.ones_like, begun.params['token_head'])
    begun = begun.replace(params={**begun.params, 'token_head': ones})
    ended, metrics = step(begun, drawn, labels(drawn))
    return ended.params, metrics

  alone, metrics = step_lib.make(made)(
    state.create(copied(), optimizer.make(made.optimizer)),
    jax.tree.map(lambda x: x[None], drawn),
  )
  without, silent = joint(0.0)
  for name in ('loss', 'grad_norm'):
    np.testing.assert_allclose(silent[name], metrics[name], rtol=1e-5)
  jax.tree.map(
    # Adam's first step is ±rate, whatever rounding makes of a tiny gradient.
    lambda x, y: np.testing.assert_array_less(
      np.mean(np.abs(x - y) > 1e-4), 0.01
    ),
    without['trunk'],
    alone.params,
  )
  np.testing.assert_array_equal(without['token_head']['bias_C'], np.ones(3))
  both, heard = joint(1.0)
  for name in ('loss', 'head_loss'):
    np.testing.assert_allclose(heard[name], silent[name], rtol=1e-5)
  assert np.abs(both['token_head']['bias_C'] - 1)[:2].min() > 0.01
  gain_D, was_D = (p['trunk']['final_norm']['gain_D'] for p in (both, without))
  assert np.abs(gain_D - was_D).max() > 0.01


def copied():
  return jax.tree.map(jnp.copy, trunk())


def test_the_loss_is_the_mean_of_weighted_binary_cross_entropies():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 5, 3)).astype(np.float32) * 20
  label = rng.random((2, 5, 3)).astype(np.float32)
  label[0] = label[0] > 0.5
  weight = rng.integers(0, 3, (2, 5, 3)).astype(np.float32)
  x, y, w = (a.astype(np.float64) for a in (logits, label, weight))
  yes = 1 / (1 + np.exp(-x))
  no = 1 / (1 + np.exp(x))
  expected = (w * -(y * np.log(yes) + (1 - y) * np.log(no))).sum() / w.sum()
  found = head_training.cross_entropy(
    logits, head_training.Labels(label, weight)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_loss_is_exact_for_answers_that_are_sure_and_zero_unlabelled():
  def of(logit, label, weight):
    value = functools.partial(np.full, (1, 1, 1), dtype=np.float32)
    return head_training.cross_entropy(
      value(logit), head_training.Labels(value(label), value(weight))
    )

  np.testing.assert_allclose(of(40, 1, 1), np.exp(-40.0), rtol=1e-5)
  np.testing.assert_allclose(of(-1e30, 1, 1), 1e30, rtol=1e-6)
  assert of(3, 1, 0) == 0


@pytest.mark.parametrize('coefficient', [-1.0, float('nan'), float('inf')])
def test_coefficients_that_mean_nothing_are_refused(coefficient):
  with pytest.raises(ValueError, match=f'coefficient={coefficient}'):
    head_training.joint(experiment(), HEAD, 1, coefficient)

"""The head finds what is there; its trunk moves only where it is asked to."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.evaluation import objective_metrics
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import token_head
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import checkpoint
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests import toys
from tests.model import params as params_lib
from tests.model import rows

NAMES = ('in set', 'behind set', 'unknown')
SET = (1, 4, 5, 7, 11, 14)
ROWS, LENGTH, STEPS = 8, 32, 100
COEFFICIENT = 2.0


def experiment(name='token_head', frozen=True) -> experiment_lib.Experiment:
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=16, d_model=64, num_layers=1, num_heads=2, head_dim=32,
      d_ff=32, max_length=LENGTH, window=2, dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(length=LENGTH, batch=ROWS),
    objective=objective_config.ObjectiveConfig(
      name, objective_config.TokenHeadTraining(NAMES, frozen, COEFFICIENT)
    ),
    optimizer=training_config.OptimizerConfig(
      learning_rate=0.3, weight_decay=0.0, warmup=0.0
    ),
    loop=training_config.LoopConfig(steps=STEPS),
  )  # fmt: skip


def trunk(mesh=None):
  """A fresh model whose queries are alike: it looks at both its tokens."""
  params = params_lib.drawn(state_lib.model_of(experiment()), mesh)
  attention = params['blocks']['layer_0']['attention']
  attention['w_q_DHK'] = jnp.zeros_like(attention['w_q_DHK'])
  return params


def begun(one, mesh=None):
  return state_lib.initialize(one, mesh, params=trunk(mesh))


def batch(seed, microbatches=1):
  """Whether a token, and the one before it, is of a set; nothing else."""
  drawn = rows.packed_batch([[20, 12]] * ROWS, LENGTH, 16, seed)
  is_in_BL = np.isin(drawn.tokens_BL, SET)
  label_BLC = np.zeros((*is_in_BL.shape, 3), np.float32)
  label_BLC[:, :, 0] = is_in_BL
  label_BLC[:, 1:, 1] = is_in_BL[:, :-1]
  label_BLC[:, :, 2] = np.nan  # Never to be read.
  weight_BLC = np.zeros_like(label_BLC)
  weight_BLC[:, :, 0] = 1
  weight_BLC[:, :, 1] = drawn.weight_BL  # Behind a first token is nothing.
  extras = {'label_BLC': label_BLC, 'weight_BLC': weight_BLC}
  shape = microbatches, ROWS // microbatches
  return drawn._replace(extras=extras).map(
    lambda x: x.reshape(*shape, *x.shape[1:])
  )


@functools.cache
def step_of(frozen, widths=(1, 1)):
  return step_lib.make(experiment(frozen=frozen), meshes.mesh_of(*widths))


class Unseen:
  """One epoch of rows as the batches have them."""

  def __len__(self):
    return ROWS

  def __getitem__(self, index):
    made = batch(1000).map(lambda x: x[0, index])
    return packing.Row(*made)


def test_a_head_behind_a_frozen_trunk_learns_what_its_tokens_are():
  state, step, losses = begun(experiment()), step_of(True), []
  before = jax.device_get(state.params)
  for seed in range(STEPS):
    state, metrics = step(state, batch(seed))
    losses.append(float(metrics['loss']))
  assert losses[0] == pytest.approx(np.log(2), rel=1e-5)
  assert metrics['loss_weight'] == batch(0).extras['weight_BLC'].sum()
  one = experiment()
  scores = objective_metrics.evaluator(
    state_lib.model_of(one), state_lib.objective_of(one), Unseen(), ROWS, ROWS
  )(state.params)
  for name in NAMES[:2]:  # 6 of 16 tokens are in the set.
    assert scores[f'accuracy/{name}'] > 0.98
  assert scores['head_loss'] == scores['loss'] < 0.1
  params = jax.device_get(state.params)
  head = params.pop('token_head')
  # The dimension that has no labels stays where it was.
  np.testing.assert_array_equal(head['w_DC'][:, 2], np.zeros(64))
  # The trunk has no moments, and keeps every bit.
  before.pop('token_head')
  chex.assert_trees_all_equal(params, before)
  moments = {x.shape for x in jax.tree.leaves(state.opt_state)}
  assert moments == {(), (64, 3), (3,)}


def test_nothing_of_the_loss_reaches_a_frozen_trunk():
  one = experiment()
  objective = state_lib.objective_of(one)
  everything = dataclasses.replace(objective, trained=None)
  gradient_of = step_lib.gradient_of(one, meshes.mesh_of(1, 1), everything)
  params = trunk() | {
    'token_head': {'w_DC': jnp.ones((64, 3)), 'bias_C': jnp.ones(3)}
  }
  zero = jnp.float32(0)
  _, gradient = jax.jit(gradient_of)(params, batch(0), 1, zero, zero)
  head = gradient.pop('token_head')
  assert float(jnp.abs(head['w_DC']).max()) > 0
  for leaf in jax.tree.leaves(gradient):
    np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


@pytest.mark.parametrize('frozen', [True, False])
def test_the_mesh_does_not_change_the_step(frozen):
  """Each device has a part of D and of L."""
  made = {}
  for widths in ((1, 1), (2, 2)):
    state = begun(experiment(frozen=frozen), meshes.mesh_of(*widths))
    for seed in range(3):
      state, metrics = step_of(frozen, widths)(state, batch(seed))
    made[widths] = jax.device_get((state.params, metrics))
    stored = state.params['token_head']['w_DC'].sharding.spec
    assert stored == jax.sharding.PartitionSpec('fsdp')
  (params, metrics), (want, want_metrics) = made[2, 2], made[1, 1]
  for name in want_metrics:
    np.testing.assert_allclose(
      metrics[name], want_metrics[name], rtol=1e-4, err_msg=name
    )
  near = [
    np.abs(a - b) < 1e-4
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(want))
  ]
  # Adam's first steps follow signs, and some gradients are only rounding.
  assert np.mean(np.concatenate([x.ravel() for x in near])) > 0.99


def test_microbatches_make_the_step_of_their_union():
  one = experiment()
  _, want = step_of(True)(begun(one), batch(0))
  _, found = step_of(True)(begun(one), batch(0, microbatches=2))
  assert found.keys() == want.keys()
  for name in want:
    np.testing.assert_allclose(found[name], want[name], rtol=1e-5, err_msg=name)


def test_joint_training_adds_the_head_to_the_language_models_step():
  language = experiment('language')
  plain = batch(0)._replace(extras=None)
  alone, metrics = step_lib.make(language)(begun(language), plain)
  assert 'head_loss' not in metrics
  state = begun(experiment(frozen=False))
  ones = jax.tree.map(jnp.ones_like, state.params['token_head'])
  state = state.replace(params=state.params | {'token_head': ones})
  state, found = step_of(False)(state, batch(0))
  np.testing.assert_allclose(found['language_loss'], metrics['loss'], rtol=1e-5)
  # Both are divided by the language model's weight.
  assert found['loss_weight'] == metrics['loss_weight']
  labels = batch(0).extras['weight_BLC'].sum()
  head = COEFFICIENT * found['head_loss'] * labels / metrics['loss_weight']
  np.testing.assert_allclose(found['loss'], metrics['loss'] + head, rtol=1e-5)
  params = jax.device_get(state.params)
  assert np.abs(params['token_head']['bias_C'] - 1)[:2].min() > 0.01
  # The head's gradient reaches the trunk.
  gain_D, was_D = (p['final_norm']['gain_D'] for p in (params, alone.params))
  assert np.abs(gain_D - was_D).max() > 0.01


def test_a_run_goes_on_bit_for_bit(tmp_path):
  one, step = experiment(frozen=False), step_of(False)
  state, _ = step(begun(one), batch(0))
  with checkpoint.Checkpoints(tmp_path, 1) as checkpoints:
    checkpoints.save(1, state, toys.NoBatches())
  state, want = step(state, batch(1))
  with checkpoint.Checkpoints(tmp_path, 1) as checkpoints:
    again, _ = checkpoints.restore(
      state_lib.abstract(one, meshes.mesh_of(1)), toys.NoBatches()
    )
  again, metrics = step(again, batch(1))
  chex.assert_trees_all_equal((again, metrics), (state, want))
  assert np.abs(again.params['token_head']['w_DC']).max() > 0


def test_a_language_models_checkpoint_is_a_trunk(tmp_path):
  language = experiment('language')
  with checkpoint.Checkpoints(tmp_path, 1) as checkpoints:
    checkpoints.save(1, begun(language), toys.NoBatches())
  shapes = state_lib.abstract(language).params
  read, _ = checkpoint.load(tmp_path, {'params': shapes})
  state = state_lib.initialize(experiment(), params=read['params'])
  state, metrics = step_of(True)(state, batch(0))
  chex.assert_trees_all_equal(state.params | trunk(), state.params)
  assert metrics['head_loss'] == pytest.approx(np.log(2), rel=1e-5)


def test_the_loss_is_weighted_binary_cross_entropy():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 5, 3)).astype(np.float32) * 20
  label = rng.random((2, 5, 3)).astype(np.float32)
  label[0] = label[0] > 0.5
  weight = rng.integers(0, 3, (2, 5, 3)).astype(np.float32)
  x, y, w = (a.astype(np.float64) for a in (logits, label, weight))
  yes = 1 / (1 + np.exp(-x))
  no = 1 / (1 + np.exp(x))
  expected = w * -(y * np.log(yes) + (1 - y) * np.log(no))
  found = token_head.cross_entropy(logits, label, weight)
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_the_loss_is_exact_for_answers_that_are_sure_and_zero_unlabelled():
  def of(logit, label, weight):
    value = functools.partial(np.full, (1, 1, 1), dtype=np.float32)
    return token_head.cross_entropy(value(logit), value(label), value(weight))

  np.testing.assert_allclose(of(40, 1, 1), np.exp(-40.0), rtol=1e-5)
  np.testing.assert_allclose(of(-1e30, 1, 1), 1e30, rtol=1e-6)
  assert of(3, 1, 0) == of(3, np.nan, 0) == 0


def test_a_batch_without_labels_is_refused():
  with pytest.raises(ValueError, match=r"extras holds \[\]; .* \['label_BLC'"):
    step_of(True)(begun(experiment()), batch(0)._replace(extras=None))


def test_a_frozen_trunk_sends_no_ternary_updates():
  one = experiment()
  one.model.quantization = quantization_config.QuantizationConfig(
    wire_weights='ternary'
  )
  with pytest.raises(ValueError, match="'ternary': a frozen model"):
    step_lib.make(one)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'name': 'speech'}, "objective.name='speech': must be one of 'language'"),
    ({'names': ()}, r'names=\(\): must name at least one'),
    ({'coefficient': -1.0}, 'coefficient=-1.0: must be finite'),
    ({'coefficient': float('nan')}, 'coefficient=nan: must be finite'),
    ({'coefficient': float('inf')}, 'coefficient=inf: must be finite'),
  ],
)
def test_settings_that_mean_nothing_are_refused(changes, message):
  one = experiment()
  for field, value in changes.items():
    holder = one.objective if field == 'name' else one.objective.token_head
    setattr(holder, field, value)
  with pytest.raises(ValueError, match=message):
    step_lib.make(one)

"""Captured gradients: which, in what shape, and of whose tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.configs import tiny
from kaiju_jax.data import packing
from kaiju_jax.experiments.studies import gradients
from kaiju_jax.objectives import language
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step
from tests.model import params as params_lib


def test_matrices_stand_with_d_first_and_layers_side_by_side():
  w_in_NDF = np.arange(2 * 3 * 4).reshape(2, 3, 4)
  w_o_DHK = np.arange(3 * 2 * 2).reshape(3, 2, 2)
  tree = {
    'blocks': {'w_in_DF': w_in_NDF, 'gain_D': np.ones((2, 3))},
    'layer': {'w_in_DF': 100 + w_in_NDF[0], 'w_o_DHK': w_o_DHK},
    'bungee_w_in': np.ones(2),
    'k_limit_K': np.ones(4),
  }
  found = gradients.matrices(tree)
  assert set(found) == {'w_in_DF', 'w_o_DHK'}
  # Row d holds what belongs to d: both repeats, then the other layer.
  assert found['w_in_DF'][1].tolist() == [
    *(4, 5, 6, 7),
    *(16, 17, 18, 19),
    *(104, 105, 106, 107),
  ]
  assert found['w_o_DHK'][2].tolist() == [8, 9, 10, 11]


def test_workers_are_joined_and_turned():
  one, two = ({'w_DF': np.full((3, 2), value)} for value in (1, 2))
  joined = gradients.join([one, two])
  assert joined['w_DF'].tolist() == [[1, 1, 2, 2]] * 3
  across = gradients.join([one, two], across=True)
  assert across['w_DF'].tolist() == [[1] * 3, [1] * 3, [2] * 3, [2] * 3]


def test_pooled_blocks_keep_their_rows():
  x_RC = np.arange(64 * 3).reshape(64, 3)
  pooled = gradients.pool({'a': x_RC, 'b': -x_RC[:32]})
  assert pooled.shape == (32, 9)
  np.testing.assert_array_equal(pooled[:, :3], x_RC[:32])
  np.testing.assert_array_equal(pooled[:, 3:6], x_RC[32:])
  np.testing.assert_array_equal(pooled[:, 6:], -x_RC[:32])
  with pytest.raises(ValueError, match='a: 33 rows are no multiple of 32'):
    gradients.pool({'a': np.ones((33, 1))})


@pytest.mark.slow
def test_a_worker_sends_the_gradient_of_its_mean_loss():
  experiment = tiny.get_config('f32')
  experiment.model.num_layers = 1
  experiment.model.d_model = 32
  experiment.model.d_ff = 32
  experiment.optimizer.z_reg.attention = 0.0
  experiment.optimizer.z_reg.logits = 0.0
  model = step.model_of(experiment)
  params = params_lib.drawn(model)
  state = state_lib.create(params, optimizer.make(experiment.optimizer))
  tokens = np.random.default_rng(0).integers(1, 256, (2, 16))
  rows = [packing.row([packing.Piece(tokens=one)], 16) for one in tokens]
  batch = packing.stack(rows)
  found = gradients.capture(experiment)(
    state, jax.tree.map(lambda field: field[None], batch)
  )

  def mean(params):
    batch_ = jax.tree.map(jnp.asarray, batch)
    total = language.weighted_cross_entropy(model, params, batch_, 0.0, 0.0)
    return total / 30  # Of 2 · 16 tokens, two are first in their row.

  wanted = gradients.matrices(jax.grad(mean)(params))
  assert set(found) == set(wanted) >= {'w_in_DF', 'w_q_DHK', 'embedding_DV'}
  for name, x_DC in found.items():
    assert x_DC.shape[0] == 32 and np.any(x_DC)
    np.testing.assert_allclose(x_DC, wanted[name], rtol=1e-4, atol=1e-7)

"""A token's loss counts as often as its weight says: 0, ½, 1 or 10 times."""

import jax
import numpy as np
import pytest

from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import distillation
from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import token_head
from tests.model import rows
from tests.objectives import shallow

ROWS, LENGTH, SLOTS, NAMES = 2, 16, 5, ('a', 'b')
VALUES = 0.0, 0.5, 1.0, 10.0
WIDTH = 16
OBJECTIVES = {
  'language': language.make(chunk=8),
  'distillation': distillation.make(
    objective_config.Distillation(entries=SLOTS, mix=0.25, temperature=2.0),
    LENGTH,
  ),
  'token head': token_head.make(
    objective_config.TokenHeadTraining(names=NAMES, frozen=False), WIDTH, LENGTH
  ),
}


def _extras(rng):
  values = rng.random((ROWS, LENGTH, SLOTS)).astype(np.float32)
  values[:, ::4] = 0  # No teacher.
  shape = ROWS, LENGTH, len(NAMES)
  return {
    'ids_BLT': rng.integers(0, shallow.VOCAB, values.shape).astype(np.int32),
    'values_BLT': values,
    'label_BLC': rng.random(shape).astype(np.float32),
  }


@pytest.mark.parametrize('name', OBJECTIVES)
def test_sums_and_gradient_are_linear_in_the_weights(name):
  objective = OBJECTIVES[name]
  model = shallow.model(d_model=WIDTH)
  params = {**shallow.params(model), **objective.parameters()}
  rng = np.random.default_rng(0)
  drawn = rows.packed_batch([[9, 5]] * ROWS, LENGTH, shallow.VOCAB)
  extras = _extras(rng)
  weight_BL = rng.choice(VALUES, (ROWS, LENGTH)).astype(np.float32)
  weight_BLC = rng.choice(VALUES, (ROWS, LENGTH, len(NAMES))).astype(np.float32)
  assert set(weight_BL.ravel()) == set(weight_BLC.ravel()) == set(VALUES)

  @jax.jit
  def measured(weight_BL, weight_BLC):
    batch = drawn._replace(
      weight_BL=weight_BL, extras={**extras, 'weight_BLC': weight_BLC}
    )

    def loss(params):
      z = objective_lib.ZReg(0.0, 1e-2)
      sums = objective.loss(model, {'params': params}, batch, z)
      return sums.loss, sums

    return jax.grad(loss, has_aux=True)(params)

  whole = measured(weight_BL, weight_BLC)
  parts = [
    jax.tree.map(
      lambda x, value=value: value * x,
      measured(
        (weight_BL == value).astype(np.float32),
        (weight_BLC == value).astype(np.float32),
      ),
    )
    for value in VALUES
  ]
  wanted = jax.tree.map(lambda *x: sum(x), *parts)
  for (path, found), expected in zip(
    jax.tree_util.tree_leaves_with_path(whole), jax.tree.leaves(wanted)
  ):
    where = jax.tree_util.keystr(path)
    assert np.any(expected), where
    limit = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=limit)

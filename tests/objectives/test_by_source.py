"""The curves of each source are those of its rows, on any mesh."""

import chex
import jax
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import packing
from kaiju_jax.objectives import by_source
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import rows
from tests.objectives import shallow

NAMES = 'code', 'prose', 'absent'
ROWS, LENGTH = 8, 16
OF_ROWS = 0, 1, 1, 0, 1, 1, 1, 0


def experiment(names=NAMES) -> experiment_lib.Experiment:
  sources = tuple(data_config.SourceConfig(name, '') for name in names)
  return shallow.experiment(length=LENGTH, sources=sources)


def batch(of_rows):
  """A batch of one microbatch, with the source of each row."""
  drawn = rows.packed_batch([[9, 5]] * ROWS, LENGTH, 16, seed=0)
  extras = {packing.COMPONENT: np.asarray(of_rows, np.int32)}
  return drawn._replace(extras=extras).map(lambda x: x[None])


def begun(one, mesh, of_rows=OF_ROWS):
  """Returns a step, its first state, and a batch for it."""
  held = batch(of_rows)
  if not one.data.sources:
    held = held._replace(extras=None)
  return step_lib.make(one, mesh), state_lib.initialize(one, mesh), held


@pytest.fixture(scope='module')
def mixed():
  step, state, held = begun(experiment(), meshes.mesh_of(1))
  stored = jax.tree.map(lambda x: x.sharding, state)
  start = jax.device_get(state)  # The step takes the state away.

  def take(step, held):
    return jax.device_get(step(jax.device_put(start, stored), held))

  return take, step, held, take(step, held)


def test_the_step_is_that_of_a_run_without_sources(mixed):
  """To the bit: the curves only look."""
  take, *_, (state, metrics) = mixed
  step, _, held = begun(experiment(()), meshes.mesh_of(1))
  plain, plain_metrics = take(step, held)
  chex.assert_trees_all_equal(state.params, plain.params)
  curves = {f'{kind}/{name}' for kind in ('loss', 'share') for name in NAMES}
  assert metrics.keys() == plain_metrics.keys() | curves
  for name, value in plain_metrics.items():
    assert metrics[name] == value


def test_the_curves_are_those_of_the_rows(mixed):
  take, step, held, (_, metrics) = mixed
  for index, name in enumerate(NAMES[:2]):
    is_own_BL = np.equal(OF_ROWS, index)[None, :, None]
    own = held._replace(weight_BL=held.weight_BL * is_own_BL)
    _, alone = take(step, own)
    assert metrics[f'loss/{name}'] == pytest.approx(alone['loss'], rel=1e-6)
    assert alone[f'share/{name}'] == 1
  assert metrics['loss/code'] != metrics['loss/prose']
  assert metrics['share/absent'] == 0
  assert np.isnan(metrics['loss/absent'])
  weight_B = held.weight_BL[0].sum(1)
  share = weight_B[np.equal(OF_ROWS, 0)].sum() / weight_B.sum()
  assert metrics['share/code'] == pytest.approx(share)
  assert metrics['share/prose'] == pytest.approx(1 - share)


def test_the_sums_are_over_a_sources_own_tokens():
  rng = np.random.default_rng(0)
  loss_BL, weight_BL = rng.random((2, 6, 4))
  of_rows = np.array([2, 0, 0, 2, 1, 0])
  held = rows.packed_batch([[3]] * 6, 4, 16, seed=0)._replace(
    weight_BL=weight_BL, extras={packing.COMPONENT: of_rows}
  )
  found = by_source.breakdown(NAMES)(loss_BL, held)
  for index, name in enumerate(NAMES):
    own = weight_BL[of_rows == index]
    value, weight = found[f'loss/{name}']
    np.testing.assert_allclose(weight, own.sum(), rtol=1e-6)
    np.testing.assert_allclose(
      value, (own * loss_BL[of_rows == index]).sum(), rtol=1e-6
    )
    share, total = found[f'share/{name}']
    assert share == weight
    np.testing.assert_allclose(total, weight_BL.sum(), rtol=1e-6)


@pytest.mark.slow
def test_the_mesh_does_not_change_the_curves(mixed):
  step, state, held = begun(experiment(), meshes.mesh_of(2, 2))
  _, metrics = jax.device_get(step(state, held))
  for name, value in mixed[-1][1].items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)

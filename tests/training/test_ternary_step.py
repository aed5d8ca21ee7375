"""Ternary updates as a training mode: replicas, checkpoints, the wire."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax import config as config_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import replicas
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from tests.model import rows

MESHES = [(8, 1), (4, 2)]
WEIGHTS = {
  f'blocks.layer_0.{name}'
  for name in (
    'attention.w_q_DHK',
    'attention.w_k_DK',
    'attention.w_v_DK',
    'attention.w_o_DHK',
    'feedforward.w_in_DF',
    'feedforward.w_out_DF',
  )
}


def mesh_of(fsdp, tensor):
  config = sharding_config.MeshConfig(fsdp, tensor)
  return mesh_lib.make(config, jax.devices()[: fsdp * tensor])


def experiment(**quantization) -> config_lib.Experiment:
  """Two repeats of a block, so that replicas are scanned."""
  one = config_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=48,
      d_model=64,
      layout='L0 L1',
      num_heads=4,
      head_dim=8,
      d_ff=128,
      max_length=32,
      window=5,
      dtype='float32',
      quantization=quantization_config.QuantizationConfig(
        **{'wire_weights': 'ternary', 'bungee': True} | quantization
      ),
    ),
    data=data_config.DataConfig(length=32, batch=8),
  )
  one.optimizer.learning_rate = 3e-3
  one.loop.steps = 20
  one.model.quantization.ternary.check_every = 3
  one.model.quantization.ternary.events_every = 2
  return one


@functools.cache
def batch():
  documents = [[32], [5, 27], [2, 3, 27], [16, 16]] * 2
  packed = rows.packed_batch(documents, 32, 48)
  return jax.tree.map(lambda x: x[None], packed)


def start(one, mesh, seed=0):
  params = state_lib.init_params(step_lib.model_of(one), seed, mesh)
  plan = replicas.plan_of(one, params)
  return state_lib.create(params, optimizer.make(one.optimizer), mesh, plan)


@functools.cache
def step_of(widths):
  return step_lib.make(experiment(), mesh_of(*widths))


def assert_devices_hold_the_same(replica):
  """The same part of an array, on whichever devices: the same bits."""
  for path, x in jax.tree_util.tree_leaves_with_path(replica):
    parts = {}
    for shard in x.addressable_shards:
      parts.setdefault(str(shard.index), []).append(np.asarray(shard.data))
    assert len(x.addressable_shards) == 8
    for first, *others in parts.values():
      assert len(others) >= 3, path
      for other in others:
        np.testing.assert_array_equal(first, other, str(path))


@pytest.mark.parametrize('widths', MESHES)
def test_it_learns_and_replicas_stay_equal(widths):
  mesh = mesh_of(*widths)
  state, step = start(experiment(), mesh), step_of(widths)
  stored = jax.tree.map(lambda x: x.sharding, state)
  assert state.replica.codes.keys() == WEIGHTS
  first = jax.device_get(state.replica)
  losses = []
  for number in range(1, 16):
    state, metrics = step(state, batch())
    losses.append(float(metrics['loss']))
    assert_devices_hold_the_same(state.replica)
    assert metrics['replica_resent'] == 0
    assert metrics['replica_damaged'] == metrics['replica_no_number'] == 0
    assert metrics['replica_lagging'] == 0
    if number % 2:
      assert metrics['replica_doubled'] == metrics['replica_halved'] == 0
  assert step._cache_size() == 1
  assert jax.tree.map(lambda x: x.sharding, state) == stored
  assert losses[-1] < losses[0] - 1, losses
  last = jax.device_get(state)
  flat = flatten(last.params)
  for path in WEIGHTS:
    # Without a lag, codes are the masters' on the replica's own grid.
    want = int8.encode(flat[path], last.replica.scales[path])
    np.testing.assert_allclose(last.replica.codes[path], want, atol=1)
    assert np.mean(last.replica.codes[path] != want) < 1e-2
    assert np.mean(last.replica.codes[path] != first.codes[path]) > 0.5


def flatten(params):
  return {
    '.'.join(key.key for key in path): x
    for path, x in jax.tree_util.tree_leaves_with_path(params)
  }

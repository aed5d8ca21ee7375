"""Shardings are read off names, and a slip is an error."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import pytest

from kaiju_jax import visibility
from kaiju_jax.model import presets
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state
from kaiju_jax.training import step
from tests import meshes


@pytest.mark.parametrize(
  'name, rank, axes',
  [
    ('w_in_DF', 2, ('fsdp', 'tensor')),
    ('w_in_DF', 3, (None, 'fsdp', 'tensor')),
    ('w_q_DHK', 3, ('fsdp', 'tensor')),
    ('w_k_DK', 2, ('fsdp',)),
    ('embedding_DV', 2, ('fsdp', 'tensor')),
    ('gain_D', 1, ('fsdp',)),
    ('k_limit_K', 2, ()),
    ('bungee_w_in', 0, ()),
    ('bungee_w_in', 1, ()),
  ],
)
def test_stored_tensors_by_name(name, rank, axes):
  assert rules.spec(name, rank, rules.STORED) == P(*axes)


def test_what_is_in_use_is_whole_along_d():
  assert rules.spec('w_in_DF', 2, rules.IN_USE) == P(None, 'tensor')
  assert rules.spec('w_k_DK', 2, rules.IN_USE) == P()


def test_rows():
  assert rules.spec('tokens_BL', 3, rules.ROWS) == P(None, 'fsdp', 'tensor')


@pytest.mark.parametrize(
  'name, rank, message',
  [
    ('w_in_DQ', 2, "'w_in_DQ': no rule for the letter 'Q'"),
    ('w_FH', 2, "'w_FH': F and H would both be split over 'tensor'"),
    ('w_in_DF', 1, "'w_in_DF' names 2 dimensions, the tensor has 1"),
    ('w_in_DF', 4, 'names 2 dimensions, the tensor has 4'),
    ('kernel', 2, "'kernel' has no shape suffix"),
    ('bungee_w_in', 2, 'has no shape suffix'),
  ],
)
def test_a_slip_is_an_error(name, rank, message):
  with pytest.raises(ValueError, match=message):
    rules.spec(name, rank, rules.STORED)


def abstract_state(name):
  experiment = experiment_lib.Experiment(model=presets.preset(name))
  experiment.model.quantization.bungee = True
  experiment.model.quantization.kv_scale = 'channel'
  chain = optimizer.make(experiment.optimizer)
  return jax.eval_shape(
    lambda key: state.create(
      step.model_of(experiment).init(
        key, jnp.zeros((1, 8), jnp.int32), visibility.causal(8)
      )['params'],
      chain,
    ),
    jax.random.key(0),
  )


@pytest.mark.parametrize('name', ['1m', '13b'])
def test_every_matrix_and_its_moments_have_one_owner(name):
  whole = abstract_state(name)
  placed = rules.shardings(whole, meshes.mesh_of(4, 2))
  seen = 0
  for (path, leaf), sharding in zip(
    jax.tree_util.tree_leaves_with_path(whole), jax.tree.leaves(placed)
  ):
    if leaf.ndim < 2:
      continue
    part = sharding.shard_shape(leaf.shape)
    shards = 1
    for size, of in zip(leaf.shape, part):
      shards *= size // of
    # w_k, w_v and the stacked gains have no letter that tensor splits.
    is_split_twice = not any(
      n in str(path) for n in ('w_k', 'w_v', 'gain', '_limit')
    )
    expected = 1 if '_limit' in str(path) else 8 if is_split_twice else 4
    assert shards == expected, path
    seen += 1
  assert seen >= 30


def test_a_dimension_that_does_not_divide_is_named():
  tree = {'feedforward': {'w_in_DF': jax.ShapeDtypeStruct((6, 8), 'float32')}}
  with pytest.raises(
    ValueError, match=r'w_in_DF.* of shape \(6, 8\): 6 .* over fsdp=4'
  ):
    rules.shardings(tree, meshes.mesh_of(4, 2))


@pytest.mark.parametrize(
  'fsdp, tensor, message',
  [
    (3, 2, r'mesh.fsdp=3 × mesh.tensor=2 is 6 devices, but there are 8 \(cpu'),
    (0, 8, 'mesh.fsdp=0: must be at least 1'),
    (8, -1, 'mesh.tensor=-1: must be at least 1'),
  ],
)
def test_a_mesh_that_does_not_fit_is_refused(fsdp, tensor, message):
  with pytest.raises(ValueError, match=message):
    mesh_lib.make(sharding_config.MeshConfig(fsdp, tensor), jax.devices()[:8])


def test_neighbours_share_a_tensor_group():
  grid = meshes.mesh_of(4, 2).devices
  assert [d.id for d in grid[0]] == [0, 1]
  assert [d.id for d in grid[:, 0]] == [0, 2, 4, 6]

"""A maximum over devices, or over an array, keeps what is no number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.sharding import collectives
from kaiju_jax.wire import contrast
from tests import meshes

P = jax.sharding.PartitionSpec


def over_devices(x_DN):
  return jax.shard_map(
    lambda x: collectives.highest(x, ('fsdp',)),
    mesh=meshes.mesh_of(8),
    in_specs=P('fsdp'),
    out_specs=P('fsdp'),
    check_vma=False,
  )(x_DN)


def test_the_largest_over_devices():
  x_DN = np.random.default_rng(0).standard_normal((8, 300)).astype(np.float32)
  x_DN[:, 0] = -1 - np.arange(8)
  x_DN[3, 1], x_DN[4, 2], x_DN[:, 3] = np.inf, -np.inf, -np.inf
  x_DN[:, 4] = 0.0
  want_DN = np.broadcast_to(x_DN.max(axis=0), x_DN.shape)
  np.testing.assert_array_equal(over_devices(x_DN), want_DN)


@pytest.mark.parametrize('nan', [np.nan, -np.nan])
def test_a_nan_of_any_device_is_the_largest(nan):
  x_DN = np.ones((8, 8), np.float32)
  np.fill_diagonal(x_DN, nan)
  assert np.isnan(over_devices(x_DN)).all()


@pytest.mark.parametrize('flat, block', [(True, 256), (False, 32)])
def test_a_nan_spoils_its_block_and_no_other(flat, block):
  x_RC = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
  x_RC[5, 7] = np.nan
  spoilt_RC = np.isnan(contrast.int4(jnp.asarray(x_RC), flat))
  assert spoilt_RC[5, 7] and spoilt_RC.sum() == block

"""A maximum keeps what is no number, and a trace is of one mesh and context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.sharding import collectives
from kaiju_jax.wire import codecs
from tests import meshes

P = jax.sharding.PartitionSpec


# One function for all, whose traces JAX keeps.
leave = jax.jit(collectives.leave)


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
  spoilt_RC = np.isnan(codecs.int4(jnp.asarray(x_RC), flat))
  assert spoilt_RC[5, 7] and spoilt_RC.sum() == block


def test_no_trace_is_of_another_context_or_mesh():
  def leave_all(count, whole):
    def run(x_BLD):
      with collectives.keep_tokens(whole):
        return leave(x_BLD)

    return jax.shard_map(
      run,
      mesh=meshes.mesh_of(1, count),
      in_specs=P(),
      out_specs=P(None, 'tensor'),
      check_vma=False,
    )(jnp.ones((1, 8, 1)))

  for count in (2, 4, 1, 2):
    for whole, tokens in ((False, 8), (True, 8 * count), (False, 8)):
      want_BLD = np.full((1, tokens, 1), count)
      np.testing.assert_array_equal(leave_all(count, whole), want_BLD)

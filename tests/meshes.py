"""Meshes of the simulated devices, and what these hold."""

import gc

import jax

from kaiju_jax.sharding import config
from kaiju_jax.sharding import mesh


def mesh_of(fsdp: int, tensor: int = 1) -> jax.sharding.Mesh:
  """Returns the mesh of the first fsdp × tensor devices."""
  return mesh.make(
    config.MeshConfig(fsdp, tensor), jax.devices()[: fsdp * tensor]
  )


def held(devices):
  """Returns {device: bytes of its arrays}."""
  gc.collect()  # What an earlier test left.
  # Looking at an array's shards makes each an array, too: all are made first,
  # and those of one device are counted.
  for x in jax.live_arrays():
    _ = x.addressable_shards
  sizes = dict.fromkeys(devices, 0)
  for x in jax.live_arrays():
    if len(x.devices()) == 1 and x.device in sizes:
      sizes[x.device] += x.nbytes
  return sizes

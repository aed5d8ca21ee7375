"""Meshes of the simulated devices."""

import jax

from kaiju_jax.sharding import config
from kaiju_jax.sharding import mesh


def mesh_of(fsdp: int, tensor: int = 1) -> jax.sharding.Mesh:
  """Returns the mesh of the first fsdp × tensor devices."""
  return mesh.make(
    config.MeshConfig(fsdp, tensor), jax.devices()[: fsdp * tensor]
  )

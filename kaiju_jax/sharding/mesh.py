"""From a mesh's widths to its devices; 1 × 1 is the same code."""

from collections.abc import Sequence

import jax
import numpy as np

from kaiju_jax.sharding import config as sharding_config


def make(
  config: sharding_config.MeshConfig,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """Returns the mesh (fsdp, tensor).

  Neighbouring devices share a tensor group: the devices of one host come one
  after another, and tensor parallelism stays within it.

  Args:
    config: widths.
    devices: all that the mesh is made of; every device by default.

  Raises:
    ValueError: widths that the number of devices does not match.
  """
  sharding_config.check(config)
  devices = jax.devices() if devices is None else devices
  if config.devices != len(devices):
    raise ValueError(
      f'mesh.fsdp={config.fsdp} × mesh.tensor={config.tensor} is'
      f' {config.devices} devices, but there are {len(devices)}'
      f' ({devices[0].platform if devices else "none"}).'
    )
  shape = config.fsdp, config.tensor
  return jax.sharding.Mesh(
    np.asarray(devices).reshape(shape),
    sharding_config.AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * len(shape),
  )


def single() -> jax.sharding.Mesh:
  """Returns the mesh of the first device alone."""
  return make(sharding_config.MeshConfig(), jax.devices()[:1])


def config_of(mesh: jax.sharding.Mesh) -> sharding_config.MeshConfig:
  """Returns the widths of a mesh."""
  return sharding_config.MeshConfig(**mesh.shape)

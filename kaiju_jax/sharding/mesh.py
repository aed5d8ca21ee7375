"""Makes a mesh: assigns devices to places on the axes `fsdp` and `tensor`.

A tensor group should use the shortest wires, and a host should read as few rows
as possible.

    a TPU slice   chips in a torus of links. If whole sides of the torus make
                  the width of `tensor`, a group is a ring along them, and
                  `fsdp` gets the other sides; XLA's collectives then use all
                  sides at once (JAX's own assignment, `mesh_utils`). Otherwise
                  a host's devices stay together: its four chips are a ring,
                  2 × 2
    elsewhere     devices in the given order: those of a host are neighbours,
                  and a tensor group of a node's width is a node

In both cases groups are ordered by their hosts, so that the rows of a host are
neighbours in the batch.
"""

from collections.abc import Sequence
import math

import jax
from jax.experimental import mesh_utils
import numpy as np

from kaiju_jax.sharding import config as sharding_config


def make(
  config: sharding_config.MeshConfig,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """Returns the mesh (fsdp, tensor).

  Args:
    config: widths.
    devices: the devices of the mesh; all by default.

  Raises:
    ValueError: a width is below 1, or their product is not the number of
      devices.
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
    arrange(devices, shape),
    sharding_config.AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * len(shape),
  )


def arrange(
  devices: Sequence[jax.Device], shape: tuple[int, int]
) -> np.ndarray:
  """Returns the devices as [fsdp, tensor], a row for each tensor group.

  Args:
    devices: all of them.
    shape: the mesh's widths (fsdp, tensor); their product is the number of
      devices.
  """
  if not _are_a_torus(devices):
    return np.asarray(devices).reshape(shape)
  try:
    groups = mesh_utils.create_device_mesh(shape, devices)
  except NotImplementedError:  # No whole sides have these widths.
    groups = np.asarray(sorted(devices, key=_place)).reshape(shape)
  return np.asarray(sorted(groups.tolist(), key=lambda group: _place(group[0])))


def _place(device) -> tuple[int, int]:
  return device.process_index, device.id


def _are_a_torus(devices) -> bool:
  """Returns whether these are all chips of a TPU slice or of a box in it."""
  if devices[0].platform != 'tpu':
    return False
  coordinates = np.asarray([device.coords for device in devices])
  sides = np.ptp(coordinates, axis=0) + 1
  different = len(np.unique(coordinates, axis=0))
  return different == len(devices) == math.prod(sides.tolist())


def single() -> jax.sharding.Mesh:
  """Returns the mesh of the first device alone."""
  return make(sharding_config.MeshConfig(), jax.devices()[:1])


def config_of(mesh: jax.sharding.Mesh) -> sharding_config.MeshConfig:
  """Returns the widths of a mesh."""
  return sharding_config.MeshConfig(**mesh.shape)

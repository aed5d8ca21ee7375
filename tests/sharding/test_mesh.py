"""Which device stands where in a mesh."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from kaiju_jax.data import placement
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import step
from tests import compiled
import tpu_gpu_configs


@dataclasses.dataclass(frozen=True)
class Chip:
  """What a device of a TPU slice says of itself."""

  id: int
  process_index: int
  coords: tuple[int, int, int]
  platform: str = 'tpu'
  device_kind: str = 'TPU v5'
  core_on_chip: int = 0


def torus(x, y, z, kind='TPU v5'):
  """Returns a slice as JAX lists it: hosts of 2 × 2 × 1, along x first."""
  hosts = {}
  chips = []
  for at_z, at_y, at_x in itertools.product(range(z), range(y), range(x)):
    host = hosts.setdefault((at_z, at_y // 2, at_x // 2), len(hosts))
    coords = (at_x, at_y, at_z)
    chips.append(Chip(len(chips), host, coords, device_kind=kind))
  return sorted(chips, key=lambda chip: (chip.process_index, chip.id))


def places(group):
  return [chip.coords for chip in group]


def test_elsewhere_devices_stand_as_they_are_given():
  devices = jax.devices()[:8][::-1]
  grid = mesh_lib.arrange(devices, (2, 4))
  assert grid.tolist() == [devices[:4], devices[4:]]


def test_whole_sides_of_a_torus_make_a_group():
  grid = mesh_lib.arrange(torus(4, 4, 4), (16, 4))
  assert places(grid[0]) == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]
  # Hosts 0 and 1 have y of 0 and 1, hosts 2 and 3 the next two.
  assert places(grid[:5, 0]) == [
    (0, 0, 0),
    (0, 1, 0),
    (0, 2, 0),
    (0, 3, 0),
    (0, 0, 1),
  ]


def test_a_group_that_no_sides_make_is_a_host():
  grid = mesh_lib.arrange(torus(16, 16, 1, 'TPU v6 lite'), (64, 4))
  assert places(grid[0]) == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
  assert places(grid[1]) == [(2, 0, 0), (3, 0, 0), (2, 1, 0), (3, 1, 0)]
  for group in grid:
    assert len({chip.process_index for chip in group}) == 1


@pytest.mark.parametrize(
  'chips, shape',
  [
    # Not the whole slice, and two devices a chip: they have no box.
    (torus(4, 4, 4)[:24], (6, 4)),
    ([*torus(2, 2, 1), *torus(2, 2, 1)], (2, 4)),
  ],
)
def test_a_part_of_a_slice_stands_as_it_is_given(chips, shape):
  chips = chips[::-1]
  assert mesh_lib.arrange(chips, shape).ravel().tolist() == chips


SLICES = 'v5p_128', 'v5p_256', 'v5p_512', 'v5p_1024', 'v5e_256', 'v6e_256'


def real(name):
  """Returns a slice and its mesh, as its own compiler lists the devices."""
  slice_ = tpu_gpu_configs.load(name)
  return slice_, mesh_lib.make(slice_.mesh, compiled.devices(name))


def extents(chips):
  """Returns the sides of the box that chips lie in, which they must fill."""
  at = np.asarray([chip.coords for chip in chips])
  sides = np.ptp(at, axis=0) + 1
  assert len(np.unique(at, axis=0)) == len(chips) == sides.prod()
  return sorted(sides.tolist())


@pytest.mark.parametrize('name', compiled.on(*SLICES))
def test_groups_of_a_real_slice_are_boxes(name):
  slice_, mesh = real(name)
  assert dict(mesh.shape) == dataclasses.asdict(slice_.mesh)
  assert len(set(mesh.devices.flat)) == slice_.devices
  is_ring = name.startswith('v5p')
  side = [1, 1, slice_.mesh.tensor] if is_ring else [1, 2, 2]
  for group in mesh.devices:
    assert extents(group) == side
  if is_ring:  # The other sides are whole, and are those of `fsdp`.
    rest = list(slice_.torus)
    rest.remove(slice_.mesh.tensor)
    for column in mesh.devices.T:
      assert extents(column) == sorted([1, *rest])


class Held:
  """A sharding as one process of the slice sees it."""

  def __init__(self, sharding, process):
    self._sharding = sharding
    self._process = process

  def addressable_devices_indices_map(self, shape):
    indices = self._sharding.devices_indices_map(shape)
    return {
      device: index
      for device, index in indices.items()
      if device.process_index == self._process
    }


@pytest.mark.parametrize('name', compiled.on(*SLICES))
def test_a_host_of_a_real_slice_draws_neighbouring_rows(name):
  slice_, mesh = real(name)
  sharding = jax.sharding.NamedSharding(mesh, step.BATCH)
  batch = 2 * slice_.mesh.fsdp
  drawn = set()
  for process in range(slice_.hosts):
    rows = placement.find_own_rows(Held(sharding, process), (1, batch, 64))
    assert rows == list(range(rows[0], rows[0] + len(rows)))
    # One group of its own, or two that it shares with its neighbours.
    assert len(rows) == (4 if name.startswith('v5p') else 2)
    drawn.update(rows)
  assert drawn == set(range(batch))

"""Each process draws what its devices read; together they are the batch."""

import jax
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax.data import loader
from kaiju_jax.data import packing
from kaiju_jax.data import placement
from kaiju_jax.sharding import config
from kaiju_jax.sharding import mesh as mesh_lib

BATCH = PartitionSpec(None, 'fsdp')


class Numbered:
  """Row i is a document of the number i."""

  def __len__(self):
    return 100

  def __getitem__(self, index):
    return packing.row([packing.Piece([index] * 4, source=index)], 4)


def sharding(fsdp, tensor):
  mesh = mesh_lib.make(config.MeshConfig(fsdp, tensor), jax.devices()[:8])
  return jax.sharding.NamedSharding(mesh, BATCH)


class Held:
  """A sharding as a process sees it that has some of the devices."""

  def __init__(self, sharding, devices):
    self._sharding = sharding
    self._devices = devices

  def addressable_devices_indices_map(self, shape):
    indices = self._sharding.devices_indices_map(shape)
    return {device: indices[device] for device in self._devices}


# Two processes of four devices each; B is 8.
@pytest.mark.parametrize(
  'widths, first, second',
  [
    ((8, 1), [0, 1, 2, 3], [4, 5, 6, 7]),
    ((2, 4), [0, 1, 2, 3], [4, 5, 6, 7]),
    ((1, 8), list(range(8)), list(range(8))),
  ],
)
def test_a_process_draws_what_its_devices_read(widths, first, second):
  whole = sharding(*widths)
  devices = jax.devices()[:8]
  shape = (3, 8, 4)
  assert placement.find_own_rows(Held(whole, devices[:4]), shape) == first
  assert placement.find_own_rows(Held(whole, devices[4:]), shape) == second
  apart = Held(sharding(8, 1), [devices[1], devices[6]])
  assert placement.find_own_rows(apart, shape) == [1, 6]


def test_own_rows_are_those_of_the_whole_batch_wherever_it_begins():
  whole = loader.batches(Numbered(), 8, 3, start=5)
  own = loader.batches(Numbered(), 8, 3, start=5, own=[1, 2, 6])
  for _ in range(3):
    want = next(whole)
    got = next(own)
    np.testing.assert_array_equal(got.tokens_BL, want.tokens_BL[:, [1, 2, 6]])
  assert own.get_state() == whole.get_state() == {'row': 5 + 3 * 24}
  own.set_state({'row': 7})
  assert next(own).tokens_BL[:, :, 0].tolist() == [
    [8, 9, 13],
    [16, 17, 21],
    [24, 25, 29],
  ]


@pytest.mark.parametrize('widths', [(8, 1), (4, 2), (1, 8)])
def test_placed_batches_are_the_loader_s(widths):
  spread = sharding(*widths)
  want = loader.batches(Numbered(), 8, 2)
  placed = placement.ShardedBatches(loader.batches(Numbered(), 8, 2), spread, 8)
  for _ in range(2):
    batch = next(placed)
    assert batch.tokens_BL.sharding == spread
    jax.tree.map(np.testing.assert_array_equal, batch, next(want))
  placed.set_state({'row': 3})
  assert placed.get_state() == {'row': 3}
  assert next(placed).source_BL[0, 0, 0] == 3

"""A checksum that no single bit slips past."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from kaiju_jax.sharding import config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.wire import checksum

MASK = 2**32 - 1


def by_hand(arrays):
  """Python's own integers."""
  total = 0
  for salt, x in enumerate(arrays):
    bits = x.view({1: np.uint8, 4: np.uint32}[x.itemsize]).reshape(-1)
    for place, value in enumerate(bits.tolist()):
      h = value ^ ((salt * 0x85EBCA6B + place * 0x9E3779B1) & MASK)
      h = ((h ^ (h >> 16)) * 0x85EBCA6B) & MASK
      h = ((h ^ (h >> 13)) * 0xC2B2AE35) & MASK
      total = (total + (h ^ (h >> 16))) & MASK
  return total


def arrays():
  rng = np.random.default_rng(0)
  codes = rng.integers(-127, 128, (3, 4, 5), np.int8)
  return codes, rng.standard_normal((3, 1, 5)).astype(np.float32)


def of(*arrays):
  return int(jax.jit(checksum.checksum)([jnp.asarray(x) for x in arrays]))


def test_it_is_the_sum_by_hand():
  assert of(*arrays()) == by_hand(arrays())


def test_every_single_bit_counts():
  codes, scales = arrays()
  sums = {of(codes, scales)}
  for bit in range(8):
    for place in (0, 7, 59):
      bad = codes.view(np.uint8).copy()
      bad.reshape(-1)[place] ^= np.uint8(1 << bit)
      sums.add(of(bad.view(np.int8), scales))
  for bit in range(32):
    bad = scales.view(np.uint32).copy()
    bad.reshape(-1)[3] ^= np.uint32(1 << bit)
    sums.add(of(codes, bad.view(np.float32)))
  assert len(sums) == 1 + 24 + 32


def test_places_count():
  codes, scales = arrays()
  assert of(codes[::-1].copy(), scales) != of(codes, scales)
  assert of(codes, codes) != of(codes, codes[:, ::-1].copy())
  assert of(codes, scales) != of(scales, codes)


def test_devices_say_whether_they_differ():
  mesh = mesh_lib.make(config.MeshConfig(fsdp=4, tensor=2))
  axes = PartitionSpec(('fsdp', 'tensor'))

  @jax.jit
  def differs(x):
    def local(x):
      return checksum.differs(x[0], 'fsdp')[None]

    return jax.shard_map(local, mesh=mesh, in_specs=axes, out_specs=axes)(x)

  # Along fsdp the second column of devices agrees, the first does not.
  same = jnp.asarray(np.array([5, 0, 5, 0, 5, 0, 5, 0], np.uint32))
  assert not np.any(differs(same))
  for place in range(8):
    for value in (1, 4, 6, MASK):
      wrong = differs(same.at[place].set(value))
      assert np.asarray(wrong).reshape(4, 2).all(0).tolist() == [
        place % 2 == 0,
        place % 2 == 1,
      ]
      assert np.asarray(wrong).sum() == 4

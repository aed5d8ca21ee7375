"""Any flipped bit shows, and how an array is sharded does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.training import fingerprint

_DTYPES = ('float32', 'bfloat16', 'int8', 'int32', 'uint32', 'bool')


def _drawn(dtype, shape, seed=0):
  rng = np.random.default_rng(seed)
  if dtype == 'bool':
    return jnp.asarray(rng.integers(0, 2, shape, dtype=np.uint8) > 0)
  return jnp.asarray(rng.integers(-100, 100, shape)).astype(dtype)


@pytest.mark.parametrize('dtype', _DTYPES)
@pytest.mark.parametrize('shape', [(), (5,), (3, 4), (2, 3, 2)])
def test_it_is_the_sum_that_the_docstring_says(dtype, shape):
  array = _drawn(dtype, shape)
  raw = np.asarray(array)
  bits = raw.reshape(-1).view(f'u{raw.dtype.itemsize}').astype(np.uint64)
  places = 2 * np.arange(bits.size, dtype=np.uint64) + 1
  expected = int(np.sum(bits * places) % 2**32)
  name = f'{dtype}{list(shape)} {expected:08x}'
  assert fingerprint.fingerprint({'a': [array]}) == {'a/0': name}


def test_every_flipped_bit_shows():
  raw = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
  before = fingerprint.fingerprint([jnp.asarray(raw)])
  for byte in range(raw.nbytes):
    for bit in range(8):
      flipped = raw.copy()
      flipped.view(np.uint8).reshape(-1)[byte] ^= 1 << bit
      assert fingerprint.fingerprint([jnp.asarray(flipped)]) != before


def test_moved_values_show():
  array = jnp.arange(6.0)
  swapped = array.at[jnp.array([1, 4])].set(jnp.array([4.0, 1.0]))
  assert fingerprint.fingerprint([array]) != fingerprint.fingerprint([swapped])


def test_it_does_not_depend_on_the_sharding():
  devices = np.array(jax.devices())
  if devices.size < 8:
    pytest.skip('needs 8 devices')
  mesh = jax.sharding.Mesh(devices.reshape(4, 2), ('a', 'b'))
  array = jax.random.normal(jax.random.key(0), (8, 6))
  expected = fingerprint.fingerprint([array])
  for spec in ((None, None), ('a', None), ('b', None), (('a', 'b'), None)):
    sharding = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(*spec)
    )
    assert (
      fingerprint.fingerprint([jax.device_put(array, sharding)]) == expected
    )


def test_random_keys_have_one_too():
  keys = [jax.random.key(0), jax.random.key(1)]
  a, b = (fingerprint.fingerprint([key])['0'] for key in keys)
  assert a != b

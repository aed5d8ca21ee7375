"""Five trits a byte: which five, all of them, and what is no trits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels.ternary import reference


def trits(values):
  return jnp.asarray(np.array(values, np.int8))


def test_the_layout_of_seven_rows():
  # ⌈7/5⌉ = 2 bytes a column, so that planes are rows 01, 23, 45, 6., ..
  column = [1, -1, 0, 1, -1, 0, 1]
  packed = np.asarray(reference.encode(trits(column)))
  assert packed.dtype == np.uint8
  assert packed.tolist() == [
    2 + 3 * 1 + 9 * 0 + 27 * 2 + 81 * 1,  # rows 0, 2, 4, 6 and padding
    0 + 3 * 2 + 9 * 1 + 27 * 1 + 81 * 1,  # rows 1, 3, 5 and padding
  ]
  assert reference.encode(trits([0] * 5)).tolist() == [121]


def test_all_bytes_there_are():
  every = np.array(list(itertools.product((-1, 0, 1), repeat=5)), np.int8).T
  packed = np.asarray(reference.encode(trits(every)))
  assert sorted(packed[0].tolist()) == list(range(243))
  np.testing.assert_array_equal(reference.decode(packed, 5), every)
  assert not np.any(reference.is_damaged(packed))


@pytest.mark.parametrize(
  'shape', [(1,), (4,), (5,), (6,), (31,), (1, 3), (10, 3), (13, 2, 7), (0, 2)]
)
def test_decoding_is_the_inverse(shape):
  rng = np.random.default_rng(0)
  x = rng.integers(-1, 2, shape, np.int8)
  packed = jax.jit(reference.encode)(x)
  assert packed.shape == (-(-shape[0] // 5), *shape[1:])
  decoded = jax.jit(reference.decode, static_argnums=1)(packed, shape[0])
  assert decoded.dtype == jnp.int8
  np.testing.assert_array_equal(decoded, x)


def test_other_bytes_mean_damage_and_decode_to_zeros():
  packed = jnp.arange(240, 256, dtype=jnp.uint8)
  assert reference.is_damaged(packed).tolist() == [False] * 3 + [True] * 13
  digits = np.asarray(reference.decode(packed, 80)).reshape(5, 16)
  assert digits[:, 2].tolist() == [1, 1, 1, 1, 1]
  assert not np.any(digits[:, 3:])


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match=r'int32\[5\]: trits are int8'):
    reference.encode(jnp.zeros(5, jnp.int32))
  with pytest.raises(ValueError, match=r'int8\[\]: trits are int8'):
    reference.encode(jnp.zeros((), jnp.int8))
  with pytest.raises(ValueError, match=r'uint8\[3\]: 9 rows .* uint8\[2, …\]'):
    reference.decode(jnp.zeros(3, jnp.uint8), 9)
  with pytest.raises(ValueError, match=r'int8\[2\]: 9 rows'):
    reference.decode(jnp.zeros(2, jnp.int8), 9)

"""Codecs against lists of their values, and against other roundings."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from kaiju_jax.wire import codecs

# Every non-negative value, from the tables of the MX specification.
E2M3 = [
  *(0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875),
  *(1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875),
  *(2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75),
  *(4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5),
]
E3M2 = [
  *(0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375),
  *(0.5, 0.625, 0.75, 0.875, 1, 1.25, 1.5, 1.75),
  *(2, 2.5, 3, 3.5, 4, 5, 6, 7),
  *(8, 10, 12, 14, 16, 20, 24, 28),
]
MINIFLOATS = {
  'e2m3': (codecs.E2M3, E2M3, ml_dtypes.float6_e2m3fn),
  'e3m2': (codecs.E3M2, E3M2, ml_dtypes.float6_e3m2fn),
}
BY_NAME = {codec.name: codec for codec in codecs.CODECS}


def round_trip(name, x_RC):
  x_RC = jnp.asarray(x_RC, jnp.float32)
  return np.asarray(BY_NAME[name].round_trip(x_RC))


def gradients(rows=64, columns=50, seed=0):
  rng = np.random.default_rng(seed)
  size = np.exp2(rng.uniform(-30, 10, columns))
  return (rng.standard_t(3, (rows, columns)) * size).astype(np.float32)


def test_names_and_bits():
  assert {codec.name: codec.bits for codec in codecs.CODECS} == {
    'f32': 32,
    'bf16': 16,
    'zero': 6,
    'floor': 6,
    'fitted': 6,
    'fitted-q': 6,
    'zero-q': 6,
    'floor-q': 6,
    'int8': 8.5,
    'int6': 6.5,
    'int4': 4.5,
    'mxfp6 e2m3': 6.25,
    'mxfp6 e3m2': 6.25,
  }


@pytest.mark.parametrize('name', BY_NAME)
def test_shape_zeros_signs_and_rows_that_fill_no_block(name):
  x_RC = gradients(rows=37)
  x_RC[:, 3] = 0
  back = round_trip(name, x_RC)
  assert back.shape == x_RC.shape and back.dtype == np.float32
  assert np.all(back[:, 3] == 0)
  assert np.all(back * x_RC >= 0)
  whole = np.concatenate([x_RC, np.zeros((27, 50), np.float32)])
  np.testing.assert_array_equal(round_trip(name, whole)[:37], back)


@pytest.mark.parametrize('name', BY_NAME)
def test_a_column_does_not_see_its_neighbours(name):
  x_RC = gradients()
  alone = round_trip(name, x_RC[:, 7:8])
  np.testing.assert_array_equal(round_trip(name, x_RC)[:, 7:8], alone)


def test_f32_and_bf16():
  x_RC = gradients()
  np.testing.assert_array_equal(round_trip('f32', x_RC), x_RC)
  wanted = x_RC.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_array_equal(round_trip('bf16', x_RC), wanted)


def test_int4_of_a_block_by_hand():
  # The largest is 14: the scale is 2, exactly, and 15 levels are left.
  block = [14, -14, 13, -12.9, 1, 3, 5, -0.99, 0.99, 1.01, -7, 0] + [0.0] * 20
  # 13/2 = 6.5 and 1/2, 3/2, 5/2 are ties, which go to the even code.
  wanted = [14, -14, 12, -12, 0, 4, 4, 0, 0, 2, -8, 0] + [0.0] * 20
  back = round_trip('int4', np.array(block)[:, None])
  assert back[:, 0].tolist() == wanted


@pytest.mark.parametrize('name, codes', [('int4', 7), ('int6', 31)])
def test_integers_are_the_nearest_of_their_levels(name, codes):
  x_RC = gradients(rows=32)
  scale_C = (np.abs(x_RC).max(0) / codes).astype(ml_dtypes.bfloat16)
  levels = np.arange(-codes, codes + 1)[:, None, None] * scale_C.astype(float)
  away = np.abs(levels - x_RC)
  back = round_trip(name, x_RC)
  np.testing.assert_allclose(
    np.abs(back - x_RC), away.min(0), rtol=1e-4, atol=1e-6 * scale_C.max()
  )
  assert np.all(np.isin(np.round(back / scale_C), np.arange(-codes, codes + 1)))


def test_int8_is_within_half_a_step():
  x_RC = gradients(rows=32)
  largest_C = np.abs(x_RC).max(0)
  # Half a step, and at the top what rounding the scale to bf16 takes off.
  bound_C = largest_C * (0.5 / 127 + 2**-8)
  back = round_trip('int8', x_RC)
  assert np.all(np.abs(back - x_RC) <= bound_C)
  scale_C = (largest_C / 127).astype(ml_dtypes.bfloat16).astype(float)
  assert np.abs(np.round(back / scale_C)).max() == 127


@pytest.mark.parametrize('name', MINIFLOATS)
def test_every_value_of_a_minifloat_is_kept(name):
  element, values, dtype = MINIFLOATS[name]
  values = np.array(values)
  codes = np.arange(64, dtype=np.uint8).view(dtype).astype(np.float32)
  assert sorted(set(np.abs(codes).tolist())) == values.tolist()
  both = np.concatenate([values, -values]).astype(np.float32)
  np.testing.assert_array_equal(
    np.asarray(codecs.minifloat(jnp.asarray(both), element)), both
  )


@pytest.mark.parametrize('name', MINIFLOATS)
def test_a_minifloat_rounds_to_nearest_even_and_cuts(name):
  element, values, dtype = MINIFLOATS[name]
  values = np.array(values)
  ties = (values[1:] + values[:-1]) / 2
  x = np.concatenate([ties, -ties, np.linspace(-1, 1, 4001) * values[-1]])
  x = x.astype(np.float32)
  got = np.asarray(codecs.minifloat(jnp.asarray(x), element))
  np.testing.assert_array_equal(got, x.astype(dtype).astype(np.float32))
  beyond = np.array([1.01, 3, 1e9, -1e9], np.float32) * np.float32(values[-1])
  got = np.asarray(codecs.minifloat(jnp.asarray(beyond), element))
  assert np.abs(got).tolist() == [values[-1]] * 4


@pytest.mark.parametrize('name', MINIFLOATS)
def test_a_microscaled_block_is_its_nearest_values(name):
  _, values, _ = MINIFLOATS[name]
  x_RC = gradients(rows=32)
  exponent_C = np.floor(np.log2(np.abs(x_RC).max(0).astype(float)))
  scale_C = 2.0 ** (exponent_C - {'e2m3': 2, 'e3m2': 4}[name])
  levels = np.array(values)[:, None, None] * scale_C
  away = np.abs(levels - np.abs(x_RC))
  back = round_trip(f'mxfp6 {name}', x_RC)
  np.testing.assert_allclose(np.abs(back - x_RC), away.min(0), atol=0)


def test_an_e3m2_block_by_hand():
  # The largest, 1000, lies in [2^9, 2^10): the scale is 2^(9 − 4) = 32, and
  # 31.25 is beyond 28. 1 is less than half of the smallest, 1/16 · 32 = 2.
  block = [1000.0, -100, 3, 1, 0.9, 1.1] + [0.0] * 26
  wanted = [28 * 32, -96, 4, 0, 0, 2] + [0.0] * 26
  back = round_trip('mxfp6 e3m2', np.array(block)[:, None])
  assert back[:, 0].tolist() == wanted


def test_blocks_run_along_d_or_as_memory_has_them():
  x_DF = np.zeros((64, 8), np.float32)
  x_DF[0, 0], x_DF[1, 0], x_DF[1, 1], x_DF[40, 0] = 7, 0.4, 3.6, 0.6
  along = np.asarray(codecs.int4(jnp.asarray(x_DF), flat=False))
  # 7 sets the step of rows 0…31 of its own column alone.
  assert along[0, 0] == 7 and along[1, 0] == 0
  np.testing.assert_allclose(along[[1, 40], [1, 0]], [3.6, 0.6], rtol=4e-3)
  flat = np.asarray(codecs.int4(jnp.asarray(x_DF), flat=True))
  # In memory it sets that of rows 0…31 of all eight columns.
  assert flat[0, 0] == 7 and flat[1, 0] == 0 and flat[1, 1] == 4
  np.testing.assert_allclose(flat[40, 0], 0.6, rtol=4e-3)

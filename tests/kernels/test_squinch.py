"""Squinch: its bits, its error, and what is no number."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels.squinch import reference

CODES = [
  (elements, header)
  for elements in reference.ELEMENTS
  for header in reference.HEADERS
]
SHAPE = 64, 500
SMALLEST = {'ln6': math.exp(-128 / 6), 'quarter': 2.0**-32}
FITTED = [
  *(0, 0.0059, 0.0195, 0.0407, 0.0693, 0.1054, 0.149, 0.2004),
  *(0.2595, 0.3271, 0.4036, 0.4903, 0.5905, 0.7088, 0.8514, 0.9455),
]
LARGEST = {'ln6': math.exp(126 / 6), 'quarter': 2.0**31.5}


def padded(x_RC):
  """Zeros around it: of one shape, each eager operation is compiled once."""
  whole_RC = np.zeros(SHAPE, np.float32)
  whole_RC[: x_RC.shape[0], : x_RC.shape[1]] = x_RC
  return jnp.asarray(whole_RC)


def encoded(x_RC, elements='zero', header='ln6'):
  rows, columns = x_RC.shape
  packed = np.asarray(reference.encode(padded(x_RC), elements, header))
  return packed[:, : rows // 8, :columns]


def round_trip(x_RC, elements='zero', header='ln6'):
  rows, columns = x_RC.shape
  packed = reference.encode(padded(x_RC), elements, header)
  decoded = np.asarray(reference.decode(packed, elements, header))
  return decoded[:rows, :columns]


def column(values):
  return np.array(values, np.float32)[:, None]


def by_hand(block, elements, header):
  """One block by Python's own arithmetic: q, signs, elements, values."""
  largest = max(abs(float(x)) for x in block)
  if header == 'ln6':
    q = min(max(math.floor(6 * math.log(largest) + 129), 0), 254)
    maxabs = math.exp((q - 128) / 6)
  else:
    q = min(max(math.ceil(4 * math.log2(largest)) + 128, 0), 254)
    maxabs = 2.0 ** ((q - 128) / 4)
  ks, values = [], []
  for x in block:
    root = math.sqrt(abs(float(x)) / maxabs)
    if elements == 'zero':
      k = min(15, math.floor(15 * root + 0.5))
      size = (k / 15) ** 2
    elif elements == 'fitted':
      r = root**2
      k = 0
      if r >= 1 / 900:
        k = min(range(1, 16), key=lambda k: abs(math.log(FITTED[k] / r)))
      size = FITTED[k]
    else:
      k = min(15, math.floor(16 * root))
      size = ((k / 16) ** 2 + ((k + 1) / 16) ** 2) / 2
    ks.append(k)
    values.append(math.copysign(size * maxabs, x))
  return q, [x < 0 for x in block], ks, values


def test_the_layout_of_one_block():
  # max 1: q = 129, maxabs = exp(1/6) = 1.1814. With r = |x|/maxabs, 15·√r:
  # 1 → 13.8, ¼ → 6.9, 0 → 0, 1/64 → 1.7, 1/16 → 3.5 (3.4501 + ½ → 3), …
  x_RC = column([1, -0.25, 0, 1 / 64, -1 / 16, 0.5, -1, 0.001])
  packed = encoded(x_RC)
  assert packed.dtype == np.uint8
  assert packed[:, 0, 0].tolist() == [
    129,
    0b01010010,
    14 | 3 << 4,  # rows 0 and 4
    7 | 10 << 4,  # rows 1 and 5
    0 | 14 << 4,  # rows 2 and 6
    2 | 0 << 4,  # rows 3 and 7
  ]


@pytest.mark.parametrize('elements, header', CODES)
def test_blocks_are_those_by_hand(elements, header):
  rng = np.random.default_rng(0)
  x_RC = rng.standard_normal((16, 200)) * np.exp2(rng.uniform(-25, 25, 200))
  x_RC = x_RC.astype(np.float32)
  packed = encoded(x_RC, elements, header)
  decoded = round_trip(x_RC, elements, header)
  slips = 0
  for group in range(2):
    for c in range(200):
      block = x_RC[8 * group : 8 * group + 8, c]
      q, negative, ks, values = by_hand(block, elements, header)
      planes = packed[:, group, c]
      assert planes[0] == q
      assert [(planes[1] >> i) & 1 for i in range(8)] == negative
      found = [planes[2 + i] & 15 for i in range(4)]
      found += [planes[2 + i] >> 4 for i in range(4)]
      # Float32 may fall on the other side of a step.
      slips += sum(a != b for a, b in zip(found, ks))
      if found == ks:
        np.testing.assert_allclose(
          decoded[8 * group : 8 * group + 8, c], values, rtol=1e-6
        )
  assert slips <= 2


@pytest.mark.parametrize('elements, header', CODES)
def test_the_error_is_within_half_a_step_of_the_root(elements, header):
  rng = np.random.default_rng(1)
  x_RC = rng.standard_normal((64, 500)) * np.exp2(rng.uniform(-20, 20, 500))
  x_RC = x_RC.astype(np.float32)
  decoded = round_trip(x_RC, elements, header)
  largest = np.abs(x_RC).reshape(8, 8, -1).max(1, keepdims=True)
  step = {'ln6': math.exp(1 / 6), 'quarter': 2**0.25}[header]
  maxabs = np.broadcast_to(largest * step, (8, 8, 500)).reshape(64, 500)
  root, got = np.sqrt(np.abs(x_RC)), np.sqrt(np.abs(decoded))
  # Of `fitted`, the least number of its lowest level is the farthest off.
  fitted = math.sqrt(FITTED[1]) - 1 / 30
  bound = {'zero': 1 / 30, 'floor': 1 / 16, 'fitted': fitted}[elements]
  bound = bound * np.sqrt(maxabs)
  assert np.all(np.abs(root - got) <= bound * (1 + 1e-5))
  live = decoded != 0
  assert np.all(np.sign(decoded[live]) == np.sign(x_RC[live]))
  assert np.all(live) == (elements == 'floor')


@pytest.mark.parametrize('elements, header', CODES)
def test_both_ends_and_zeros(elements, header):
  assert np.all(round_trip(np.zeros((8, 3)), elements, header) == 0)
  tiny = np.full((8, 1), 0.99 * SMALLEST[header], np.float32)
  assert np.all(round_trip(tiny, elements, header) == 0)
  small = np.full((8, 1), -1.3 * SMALLEST[header], np.float32)
  back = round_trip(small, elements, header)
  assert np.all(back < 0) and np.all(np.abs(back / small - 1) < 0.5)
  huge = np.full((8, 1), 1e30, np.float32)
  back = round_trip(huge, elements, header)
  assert np.all(np.isfinite(back))
  np.testing.assert_allclose(back, LARGEST[header], rtol=0.07)
  denormal = np.full((8, 1), 1e-42, np.float32)
  assert np.all(round_trip(denormal, elements, header) == 0)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('elements, header', CODES)
def test_what_is_no_number_spoils_its_block_alone(elements, header, bad):
  x_RC = np.ones((16, 2), np.float32)
  x_RC[3, 0] = bad
  back = round_trip(x_RC, elements, header)
  assert np.all(np.isnan(back[:8, 0]))
  assert np.all(np.isfinite(back[8:])) and np.all(np.isfinite(back[:, 1]))


@pytest.mark.parametrize('elements, header', CODES)
def test_a_block_without_values_is_its_header_alone(elements, header):
  x_RC = np.full((8, 2), -0.9 * SMALLEST[header], np.float32)
  x_RC[4, 1] = np.nan
  packed = encoded(x_RC, elements, header)
  assert packed[0].tolist() == [[0, 255]] and np.all(packed[1:] == 0)


@pytest.mark.parametrize('header', reference.HEADERS)
def test_what_is_too_large_does_not_spill_into_its_neighbour(header):
  x_RC = column([1e30, 0, 0, 0, 0, 0, 0, 0])
  assert np.flatnonzero(round_trip(x_RC, 'zero', header)).tolist() == [0]


@pytest.mark.parametrize('header', reference.HEADERS)
@pytest.mark.parametrize('elements', reference.ELEMENTS)
@pytest.mark.parametrize('is_compiled', [False, True])
def test_every_code_decodes_to_the_same_bits(elements, header, is_compiled):
  q, byte = np.meshgrid(np.arange(256), np.arange(256), indexing='ij')
  signs = np.full_like(q, 0b10100101)
  packed = np.stack([q, signs, *[byte] * 4]).astype(np.uint8)
  decode = reference.decode
  if is_compiled:
    decode = jax.jit(decode, static_argnums=(1, 2))
  decoded = np.asarray(decode(jnp.asarray(packed), elements, header))
  maxabs = {'ln6': np.exp((q - 128) / 6), 'quarter': 2.0 ** ((q - 128) / 4)}
  steps = {'zero': 225, 'floor': 512, 'fitted': 10_000}[elements]
  unit = maxabs[header] / steps
  unit = np.select([q == 0, q == 255], [0, np.nan], unit).astype(np.float32)
  for i, x in enumerate(decoded.reshape(256, 8, 256).swapaxes(0, 1)):
    k = byte & 15 if i < 4 else byte >> 4
    level = {
      'zero': k * k,
      'floor': 2 * k * (k + 1) + 1,
      'fitted': np.rint(10_000 * np.array(FITTED)[k]).astype(int),
    }[elements]
    sign = -1 if i in (0, 2, 5, 7) else 1
    expected = (sign * level).astype(np.float32) * unit
    np.testing.assert_array_equal(x, expected)


def test_floor_is_nearer_on_a_logarithmic_scale():
  rng = np.random.default_rng(2)
  x_RC = np.exp2(-rng.uniform(0, 5, SHAPE)).astype(np.float32)
  errors = {
    elements: np.mean(np.abs(np.log(round_trip(x_RC, elements) / x_RC)))
    for elements in reference.ELEMENTS
  }
  assert errors['floor'] < errors['zero'] < 0.2


@pytest.mark.parametrize('header', reference.HEADERS)
def test_fitted_is_nearer_than_zero_and_flushes_the_same(header):
  rng = np.random.default_rng(4)
  x_RC = (rng.standard_normal(SHAPE) * 3).astype(np.float32)
  zero, fitted = (round_trip(x_RC, name, header) for name in ('zero', 'fitted'))
  np.testing.assert_array_equal(zero == 0, fitted == 0)
  live = zero != 0
  away = [np.abs(np.log(y[live] / x_RC[live])).mean() for y in (zero, fitted)]
  assert away[1] < 0.97 * away[0]
  square = [np.square(x_RC - y).sum() for y in (zero, fitted)]
  assert square[1] < square[0]


def test_the_quarter_header_is_exact_at_powers_of_two():
  for exponent in (-30, -1, 0, 1, 30):
    x_RC = np.full((8, 1), 2.0**exponent, np.float32)
    assert np.all(round_trip(x_RC, 'zero', 'quarter') == x_RC)


@pytest.mark.parametrize('elements, header', CODES)
def test_compiled_is_the_same(elements, header):
  rng = np.random.default_rng(3)
  x_RC = jnp.asarray(rng.standard_normal(SHAPE), jnp.bfloat16)
  packed = reference.encode(x_RC, elements, header)
  compiled = jax.jit(reference.encode, static_argnums=(1, 2))
  np.testing.assert_array_equal(compiled(x_RC, elements, header), packed)
  assert packed.shape == (6, 8, 500) and packed.nbytes * 8 == 6 * x_RC.size
  decoded = reference.decode(packed, elements, header)
  assert decoded.dtype == jnp.float32 and decoded.shape == x_RC.shape


@pytest.mark.parametrize('parts', [1, 9])
@pytest.mark.parametrize(
  'way', [reference.decode_sum, reference.sum_at_once, reference.sum_in_turn]
)
def test_sums_are_those_of_the_parts_in_turn(way, parts):
  x_NRC = jax.random.normal(jax.random.key(parts), (parts, 16, 5))
  # Of many sizes, so that another order would give other bits.
  x_NRC *= 10.0 ** jnp.arange(parts)[:, None, None]
  packed_NPGC = jax.jit(jax.vmap(reference.encode))(x_NRC)
  decode = jax.jit(reference.decode)
  expected_RC = np.zeros((16, 5), np.float32)
  for packed_PGC in packed_NPGC:
    expected_RC += np.asarray(decode(packed_PGC))
  sum_RC = jax.jit(way, static_argnums=(1, 2))(packed_NPGC, 'zero', 'ln6')
  np.testing.assert_array_equal(sum_RC, expected_RC)


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match=r'9 rows: .* groups of 8'):
    reference.encode(jnp.ones((9, 1)))
  with pytest.raises(ValueError, match="elements='linear': must be one of 'ze"):
    reference.encode(jnp.ones((8, 1)), 'linear')
  with pytest.raises(ValueError, match="header='ln': must be one of 'ln6'"):
    reference.decode(jnp.ones((6, 1, 1), jnp.uint8), 'zero', 'ln')
  with pytest.raises(ValueError, match=r'float32\(6, 1, 1\): Squinch is uint8'):
    reference.decode(jnp.ones((6, 1, 1)))

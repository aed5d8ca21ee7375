"""One test for all implementations, against integers that numpy adds up."""

import functools
import importlib.util

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import api
from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.quantization import int8
from kaiju_jax.quantization.qat import project
from tests.device import products as shared
from tests.kernels import interpreted

# Several blocks each way, the last in part.
ROWS, CONTRACTED, OUTPUTS = shared.ROWS, shared.CONTRACTED, shared.OUTPUTS
IMPLEMENTATIONS = tuple(
  name
  for name in api.RUNS_ON
  if name != 'numba_cpu' or importlib.util.find_spec('numba')
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Toy shapes through several blocks, in interpret mode."""
  small = blocks.Gpu(32, 64, 128, 4, 2, group=2)
  monkeypatch.setattr(blocks, 'gpu', lambda *sizes: small)
  monkeypatch.setattr(blocks, 'gpu_float', lambda *sizes: small)
  monkeypatch.setattr(blocks, 'gpu_rows', lambda *_: blocks.Rows(4, 128, 4))
  monkeypatch.setattr(
    blocks, 'tpu', lambda r, c, o, *_: blocks.Tpu(32, 128, _part(c))
  )
  monkeypatch.setattr(
    blocks, 'tpu_weight', lambda *_: blocks.TpuWeight(128, 128, 32)
  )
  monkeypatch.setattr(blocks, 'tpu_quantize', lambda *_: 32)
  monkeypatch.setattr(blocks, 'tpu_columns', _part)
  with dispatch.interpret():
    yield


def _part(columns):
  return 128 if columns % 128 == 0 else columns


def laid(w, contract):
  return jnp.asarray(w if contract == 'first' else w.T)


def levels_of(codes, nonnegative):
  return np.asarray(codes).astype(np.int64) + (128 if nonnegative else 0)


def coded_as_training_does(x, limit, nonnegative):
  """Returns what `quantization/int8.py` makes of rows, and its scales."""
  largest = int8.largest(x, (1,)) if limit is None else jnp.asarray(limit)
  is_nan = jnp.any(jnp.isnan(x), axis=1, keepdims=True)
  largest = jnp.where(is_nan, jnp.nan, largest.reshape(-1, 1))
  scales = int8.scale_of(largest, 255 if nonnegative else 127)
  encode = int8.encode_nonnegative if nonnegative else int8.encode
  return encode(x, scales), scales[:, 0]


LIMITS = shared.LIMITS
CODINGS = {
  f'{limits} in {dtype}': (limits, dtype, nonnegative)
  for dtype, nonnegative in (('float32', False), ('bfloat16', True))
  for limits in LIMITS
}


# Products have quick tests without a limit, and with one for all rows.
@pytest.mark.parametrize(
  ('implementation', 'limits', 'dtype', 'nonnegative'),
  interpreted.parameters(
    IMPLEMENTATIONS, CODINGS, quick=('row in float32', 'cut in bfloat16')
  ),
)
def test_codes_are_trainings_to_the_bit(
  implementation, limits, dtype, nonnegative
):
  x, _, _ = shared.draw(dtype=dtype, nonnegative=nonnegative)
  x = x.at[3].set(0).at[5, 7].set(jnp.nan)
  options = LIMITS[limits]
  codes, scales = api.quantize(
    x, nonnegative=nonnegative, implementation=implementation, **options
  )
  cut = options.get('cut')
  if cut is not None:
    cut = jnp.asarray(cut, dtype).reshape(-1, 1)
    cut = jnp.broadcast_to(cut, x.shape)
    x = jnp.clip(x, -cut, cut)
  want = coded_as_training_does(x, options.get('limit'), nonnegative)
  np.testing.assert_array_equal(scales, want[1])
  np.testing.assert_array_equal(codes, want[0])
  assert np.flatnonzero(np.isnan(scales)).tolist() == [5]
  assert (np.asarray(codes[3]) == (-128 if nonnegative else 0)).all()


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_ties_go_to_the_even_code(implementation):
  ties = np.arange(-126.5, 127, dtype=np.float32)
  # Half a code less and more by the last bit of a float, and half a code.
  beside = [np.nextafter(ties, np.float32(x)) for x in (-np.inf, np.inf)]
  some = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 1e9]
  x = np.zeros((3, ties.size), np.float32)
  x[:2], x[2, : len(some)] = beside, some
  codes, scales = api.quantize(
    jnp.asarray(x), limit=np.float32(127), implementation=implementation
  )
  assert scales.tolist() == [1] * 3
  np.testing.assert_array_equal(codes[:2], np.round(beside))
  wanted = [-2, -2, 0, 0, 2, 2, 126, 127, 127]
  assert codes[2, : len(some)].tolist() == wanted


PRODUCTS = shared.PRODUCTS


def exact(contracted, nonnegative):
  """Returns x, w, scale; x's codes and their scales; and the product."""
  x, w, scale = shared.draw(contracted, nonnegative=nonnegative)
  codes, scales = coded_as_training_does(x, None, nonnegative)
  sums = levels_of(codes, nonnegative) @ w.astype(np.int64)
  y = sums.astype(np.float32) * np.multiply.outer(
    np.asarray(scales), np.asarray(scale)
  )
  return (x, w, scale), (codes, scales), y


@pytest.mark.versions
@pytest.mark.parametrize(
  ('implementation', 'contracted', 'nonnegative', 'contract'),
  interpreted.parameters(
    IMPLEMENTATIONS, PRODUCTS, quick=('by the first, nonnegative',)
  ),
)
def test_a_product_is_the_exact_sum_times_its_scales(
  implementation, contracted, nonnegative, contract
):
  (x, w, scale), (codes, scales), want = exact(contracted, nonnegative)
  found = api.matmul(
    x,
    laid(w, contract),
    scale,
    contract=contract,
    nonnegative=nonnegative,
    keep_codes=True,
    implementation=implementation,
  )
  np.testing.assert_array_equal(found.codes_RC, codes)
  np.testing.assert_array_equal(found.scale_R, scales)
  np.testing.assert_array_equal(found.y_RO, want)


# Quick tests multiply codes, by the last, in the int8 input gradient.
@pytest.mark.parametrize(
  ('implementation', 'contracted', 'nonnegative', 'contract'),
  interpreted.parameters(IMPLEMENTATIONS, PRODUCTS),
)
def test_codes_have_the_product_of_what_they_code(
  implementation, contracted, nonnegative, contract
):
  (_, w, scale), (codes, scales), want = exact(contracted, nonnegative)
  found = api.matmul(
    codes,
    laid(w, contract),
    scale,
    scale_R=scales,
    contract=contract,
    nonnegative=nonnegative,
    implementation=implementation,
  )
  np.testing.assert_array_equal(found.y_RO, want)


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_sums_of_the_largest_codes_are_exact(implementation):
  """2 · 255 · 127 · 6,144 is beyond what a float32 counts one by one."""
  x = jnp.full((2, 12_288), 3.0).at[1].set(255.0)
  w = np.full((12_288, 128), 127, np.int8)
  w[0] = np.arange(128) - 64
  found = api.matmul(
    x,
    jnp.asarray(w),
    jnp.ones(128),
    contract='first',
    nonnegative=True,
    limit=np.float32(255),
    implementation=implementation,
  )
  sums = np.multiply.outer([3, 255], w.astype(np.int64).sum(0))
  np.testing.assert_array_equal(found.y_RO, sums.astype(np.float32))


@pytest.mark.parametrize(
  ('implementation', 'dtype'),
  interpreted.parameters(
    IMPLEMENTATIONS,
    {dtype: dtype for dtype in ('float32', 'bfloat16')},
    quick=('bfloat16',),
  ),
)
def test_what_follows_a_product_is_as_if_done_after_it(implementation, dtype):
  x, w, scale = shared.draw(dtype=dtype)
  x = x.at[5, 7].set(jnp.nan).at[69, 299].set(-jnp.nan)
  plain, behind = (
    api.matmul(
      x,
      jnp.asarray(w),
      scale,
      contract='first',
      limit=np.float32(2),
      implementation=implementation,
      **options,
    ).y_RO
    for options in ({}, {'relu2': True, 'out_cut': np.float32(1234.5)})
  )
  hidden = jnp.square(jax.nn.relu(plain))
  at = jnp.asarray(1234.5, dtype)
  want = np.asarray(jnp.clip(hidden, -at, at), np.float32)
  assert plain.dtype == behind.dtype == dtype
  np.testing.assert_array_equal(np.asarray(behind, np.float32), want)
  assert np.flatnonzero(np.isnan(want).any(1)).tolist() == [5, 69]
  assert np.isnan(want[[5, 69]]).all()
  assert len(np.unique(want)) > 100 and np.nanmax(want) == np.float32(at)


@pytest.mark.versions
@pytest.mark.parametrize(
  ('implementation', 'dtype', 'contract'),
  interpreted.parameters(
    IMPLEMENTATIONS,
    {
      f'{dtype}, {contract}': (dtype, contract)
      for dtype in ('float32', 'bfloat16')
      for contract in ('first', 'last')
    },
    quick=('float32, first', 'bfloat16, last'),
  ),
)
def test_the_gradients_products(implementation, dtype, contract):
  x, w, scale = shared.draw(dtype=dtype, nonnegative=True)
  codes, scales = coded_as_training_does(x, None, True)
  scales = scales / scales.max()
  dy = jnp.asarray(
    np.random.default_rng(1).standard_normal((ROWS, OUTPUTS)), dtype
  )
  dx = api.input_gradient(
    dy,
    laid(w, contract),
    scale,
    contract=contract,
    implementation=implementation,
  )
  dw = api.weight_gradient(
    codes,
    scales,
    dy,
    contract=contract,
    nonnegative=True,
    out_dtype=jnp.float32,
    implementation=implementation,
  )

  def scaled(by):
    return np.asarray((dy.astype('f4') * by).astype(dtype)).astype(np.float64)

  want_dx = scaled(scale[None]) @ w.T.astype(np.float64)
  want_dw = levels_of(codes, True).T @ scaled(scales[:, None])
  error = {'float32': 2e-6, 'bfloat16': 5e-3}[dtype]
  assert dx.dtype == dtype and dw.dtype == jnp.float32
  dx = np.asarray(dx).astype(np.float64)
  np.testing.assert_allclose(dx, want_dx, atol=error * np.abs(want_dx).max())
  # Its operands are exact in bfloat16, and its sum is in float32.
  want_dw = want_dw if contract == 'first' else want_dw.T
  np.testing.assert_allclose(dw, want_dw, atol=2e-6 * np.abs(want_dw).max())


@pytest.mark.parametrize(
  ('implementation', 'contract', 'has_limit'),
  interpreted.parameters(
    IMPLEMENTATIONS,
    {
      'first': ('first', False),
      'last': ('last', False),
      'first, limit': ('first', True),
      'last, limit': ('last', True),
    },
    quick=('first',),
  ),
)
def test_the_int8_input_gradient_is_trainings_to_the_bit(
  implementation, contract, has_limit
):
  _, w, scale = shared.draw()
  dy = np.random.default_rng(1).standard_normal((ROWS, OUTPUTS)).astype('f4')
  dy[4] = 0
  spec = 'BF,DF->BD' if contract == 'first' else 'BF,FD->BD'
  want = project.int8_input_gradient(
    spec, jnp.asarray(dy) * scale[None], laid(w, contract)
  )
  gradient = jax.jit(
    functools.partial(
      api.input_gradient,
      contract=contract,
      rounding='stochastic',
      implementation=implementation,
    )
  )
  arguments = jnp.asarray(dy), laid(w, contract), scale
  if not has_limit:
    np.testing.assert_array_equal(gradient(*arguments), want)
    return
  limit = int8.largest(jnp.asarray(dy) * scale[None], (1,))[:, 0]
  np.testing.assert_array_equal(gradient(*arguments, limit=limit), want)
  other = gradient(*arguments, limit=2 * limit)
  assert not np.array_equal(other, want)


def _primitives(jaxpr):
  """Yields (name, dtype of the first operand) of all that a jaxpr does."""
  for equation in jaxpr.eqns:
    if equation.invars:
      yield equation.primitive.name, equation.invars[0].aval.dtype
    for inner in core.jaxprs_in_params(equation.params):
      yield from _primitives(inner)


def test_gpu_kernels_do_nothing_that_triton_does_otherwise():
  """Its float maximum drops a NaN and its division is inexact.

  An interpreted kernel shows neither.
  """
  x, w, scale = shared.draw()
  one = jnp.float32(1)

  def everything(x, w, scale):
    options = {'contract': 'first', 'implementation': 'pallas_gpu'}
    found = api.matmul(x, w, scale, cut=one, relu2=True, out_cut=one, **options)
    given = api.quantize(x, limit=one, implementation='pallas_gpu')
    dx = api.input_gradient(
      found.y_RO, w, scale, rounding='stochastic', **options
    )
    return found, given, dx

  with dispatch.compiling_for('gpu'), dispatch._interpreting(False):
    traced = jax.make_jaxpr(everything)(x, jnp.asarray(w), scale)
  done = set(_primitives(traced.jaxpr))
  of_floats = {name for name, dtype in done if dtype.kind not in 'biu'}
  # The division; JAX 0.12 calls it by another name.
  assert any(name.startswith('elementwise_inline_asm') for name in of_floats)
  assert not of_floats & {
    *('max', 'min', 'clamp', 'reduce_max', 'reduce_min'),
    *('div', 'round', 'sign', 'is_finite'),
  }


def _arguments(**changes):
  x, w, scale = shared.draw()
  return {'x_RC': x, 'w': jnp.asarray(w), 'scale_O': scale} | changes


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'contract': 'middle'}, "contract='middle': 'first' for a weight"),
    ({'contract': 'last'}, r'scale_O has shape \(200,\): expected \(300,\)'),
    ({'w': np.ones((300, 200), np.float32)}, 'w is float32: expected int8'),
    ({'w': np.ones((300, 200, 1), np.int8)}, 'w has shape .*two dims'),
    ({'x_RC': np.ones((4, 299), np.float32)}, r'x_RC has .* \(rows, 300\)'),
    ({'x_RC': np.ones((4, 300), np.int32)}, 'x_RC is int32: expected bf'),
    ({'x_RC': np.ones((0, 300), np.float32)}, 'R = 0: no dimension'),
    ({'x_RC': np.ones((4, 300), np.int8)}, 'scale_R is missing: int8 codes'),
    (
      {'x_RC': np.ones((70, 300), np.int8), 'limit': np.float32(1)},
      'limit is given, but x_RC is int8',
    ),
    ({'scale_R': np.ones(70, np.float32)}, 'scale_R is given, but x_RC is fl'),
    ({'limit': np.ones(3, np.float32)}, r'limit has shape \(3,\): .*\(70,\)'),
    ({'cut': 3}, 'cut is int32: expected a float'),
    ({'dtype': np.int8}, 'dtype=int8: expected a float'),
    ({'out_cut': np.ones((70, 1))}, 'out_cut has shape'),
    ({'implementation': 'fast'}, "implementation='fast' is unknown"),
  ],
)
def test_bad_input_is_named(changes, message):
  with pytest.raises((ValueError, TypeError), match=message):
    api.matmul(**{'contract': 'first'} | _arguments(**changes))


def test_a_sum_that_an_int32_may_not_hold_is_refused():
  x = jax.ShapeDtypeStruct((4, 66_312), jnp.float32)
  w = jax.ShapeDtypeStruct((66_312, 8), jnp.int8)
  scale = jax.ShapeDtypeStruct((8,), jnp.float32)

  def shape(nonnegative, contracted):
    return jax.eval_shape(
      lambda x, w, scale: api.matmul(
        x[:, :contracted],
        w[:contracted],
        scale,
        contract='first',
        nonnegative=nonnegative,
      ),
      x,
      w,
      scale,
    )

  shape(False, 66_312)
  shape(True, 66_311)
  with pytest.raises(ValueError, match='more than 66311 products'):
    shape(True, 66_312)


def test_a_row_of_nothing_has_no_scale():
  with pytest.raises(ValueError, match='C = 0: no dimension may be empty'):
    api.quantize(np.ones((4, 0), np.float32))


def test_bad_gradients_are_named():
  x, w, scale = shared.draw()
  dy = jnp.ones((ROWS, OUTPUTS))
  with pytest.raises(ValueError, match="rounding='up': must be one of"):
    api.input_gradient(dy, w, scale, contract='first', rounding='up')
  with pytest.raises(ValueError, match='limit is given, but rounding'):
    api.input_gradient(dy, w, scale, contract='first', limit=np.float32(1))
  with pytest.raises(ValueError, match='w has 200 outputs'):
    api.input_gradient(dy[:, 1:], w, scale, contract='first')
  with pytest.raises(TypeError, match='dtype=int32: expected a float'):
    api.input_gradient(dy, w, scale, contract='first', dtype=jnp.int32)
  with pytest.raises(TypeError, match='codes_RC is float32'):
    api.weight_gradient(x, jnp.ones(ROWS), dy, contract='first')
  with pytest.raises(ValueError, match='dy_RO has 3 rows: expected 70'):
    api.weight_gradient(
      x.astype(jnp.int8), jnp.ones(ROWS), dy[:3], contract='first'
    )

"""What paged decode refuses, before a kernel is traced, and what it picks."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.kernels.paged_decode import plan as plan_lib

_int32 = jnp.int32


def _arguments(**changes):
  """Three rows of four pages of 32 slots, five heads; abstract arrays."""
  arrays = {
    'q_BLHK': ((3, 1, 5, 128), jnp.int8),
    'k_PSK': ((20, 32, 128), jnp.int8),
    'v_PSK': ((20, 32, 128), jnp.int8),
    'table_BN': ((3, 4), _int32),
    'start_BM': ((3, 128), _int32),
    'limit_BM': ((3, 128), _int32),
    'coordinate_BL': ((3, 1), _int32),
    'position_BL': ((3, 1), _int32),
    'position_BM': ((3, 128), _int32),
    'q_scale_BLH': ((3, 1, 5), jnp.float32),
    'k_scale': ((20, 32), jnp.float32),
    'v_scale': ((128,), jnp.float32),
  } | changes
  return {name: x and jax.ShapeDtypeStruct(*x) for name, x in arrays.items()}


def _decode(changes, **options):
  options = {'window': None, 'scale': 0.1} | options
  return jax.eval_shape(
    lambda arrays: api.decode(**arrays, **options), _arguments(**changes)
  )


def test_what_fits_is_taken():
  out_BLHK, lse_BLH = _decode({})
  assert (out_BLHK.shape, out_BLHK.dtype) == ((3, 1, 5, 128), jnp.bfloat16)
  assert (lse_BLH.shape, lse_BLH.dtype) == ((3, 1, 5), jnp.float32)


def test_numpys_arrays_are_taken():
  arrays = {
    name: np.zeros(x.shape, x.dtype) for name, x in _arguments().items()
  }
  run = functools.partial(api.decode, **arrays, window=None, scale=0.1)
  out_BLHK, _ = jax.jit(lambda: run())()
  assert not np.any(out_BLHK)


@pytest.mark.parametrize(
  ('name', 'shape', 'dtype', 'message'),
  [
    ('q_BLHK', (3, 5, 128), jnp.int8, 'q_BLHK has shape (3, 5, 128)'),
    ('q_BLHK', (3, 0, 5, 128), jnp.int8, 'expected 4 dims, none empty'),
    ('q_BLHK', (3, 1, 5, 128), jnp.int32, 'q_BLHK is int32: expected a float'),
    ('k_PSK', (20, 32, 64), jnp.int8, 'expected (20, 32, 128)'),
    ('v_PSK', (21, 32, 128), jnp.int8, 'expected (20, 32, 128)'),
    ('v_PSK', (20, 32, 128), jnp.uint8, 'v_PSK is uint8: expected a float'),
    ('table_BN', (2, 4), _int32, 'table_BN has shape (2, 4): expected (3, 4)'),
    ('table_BN', (3, 4), jnp.uint32, 'table_BN is uint32: expected int32'),
    ('table_BN', (3, 5), _int32, 'expected 5 pages of 32, 160'),
    ('limit_BM', (3, 127), _int32, 'expected (3, 128)'),
    ('position_BM', (1, 128), _int32, 'expected (3, 128)'),
    ('position_BM', (3, 128), jnp.float32, 'position_BM is float32'),
    ('coordinate_BL', (3, 2), _int32, 'expected (3, 1)'),
    ('position_BL', (3,), _int32, 'expected 2 dims'),
    ('q_scale_BLH', (3, 5), jnp.float32, 'expected (3, 1, 5)'),
    ('k_scale', (3, 128), jnp.float32, 'expected (20, 32) or (128,)'),
    ('v_scale', (1, 128), jnp.float32, 'expected (20, 32) or (128,)'),
    ('v_scale', (128,), jnp.int32, 'v_scale is int32: expected a float'),
  ],
)
def test_an_array_that_does_not_fit_is_named(name, shape, dtype, message):
  with pytest.raises((ValueError, TypeError), match=re.escape(message)):
    _decode({name: (shape, dtype)})


@pytest.mark.parametrize('name', ['q_scale_BLH', 'k_scale', 'v_scale'])
def test_codes_need_scales_and_floats_take_none(name):
  with pytest.raises(ValueError, match=f'{name} is missing'):
    _decode({name: None})
  operand = {'q': 'q_BLHK', 'k': 'k_PSK', 'v': 'v_PSK'}[name[0]]
  shape = _arguments()[operand].shape
  with pytest.raises(ValueError, match=f'{name} is given, but {operand} is bf'):
    _decode({operand: (shape, jnp.bfloat16)})


@pytest.mark.parametrize(
  ('options', 'error', 'message'),
  [
    ({'window': 0}, ValueError, 'window=0: counts the query itself'),
    ({'window': 1.5}, TypeError, 'integer'),
    ({'scale': float('inf')}, ValueError, 'scale=inf: expected a finite'),
    ({'scale': '1'}, ValueError, "scale='1'"),
    ({'dtype': jnp.int8}, TypeError, 'dtype=int8: expected a float'),
    ({'implementation': 'cuda'}, ValueError, "'cuda' is unknown: cpu runs"),
    ({'implementation': 'pallas_gpu'}, ValueError, 'runs on gpu: cpu runs'),
    (
      {'sizes': blocks.Sizes(16, 48, 1)},
      ValueError,
      'sizes.J=48: expected whole pages, a multiple of S=32',
    ),
    ({'sizes': blocks.Sizes(16, 32, 0)}, ValueError, 'sizes.X=0'),
  ],
)
def test_an_option_that_does_not_fit_is_named(options, error, message):
  with pytest.raises(error, match=re.escape(message)):
    _decode({}, **options)


@pytest.mark.parametrize(
  ('implementation', 'changes', 'sizes', 'message'),
  [
    ('numba_cpu', {}, None, 'numba_cpu takes keys and values as codes'),
    (
      'numba_cpu',
      {'v_scale': ((20, 32), jnp.float32), 'k_scale': ((128,), jnp.float32)},
      None,
      'numba_cpu takes keys and values as codes',
    ),
    (
      'numba_cpu',
      {'v_PSK': ((20, 32, 128), jnp.float32), 'v_scale': None},
      None,
      'numba_cpu takes keys and values as codes',
    ),
    (
      'pallas_gpu',
      {},
      blocks.Sizes(24, 64, 1),
      'sizes.R=24: pallas_gpu takes powers',
    ),
    (
      'pallas_gpu',
      {},
      blocks.Sizes(16, 8, 1),
      'sizes.J=8: pallas_gpu takes powers',
    ),
    ('pallas_tpu', {}, blocks.Sizes(8, 32, 1), 'sizes.R=8: pallas_tpu takes'),
    (
      'pallas_gpu',
      {'q_BLHK': ((3, 1, 5, 96), jnp.int8), 'v_scale': ((96,), jnp.float32)}
      | {name: ((20, 32, 96), jnp.int8) for name in ('k_PSK', 'v_PSK')},
      None,
      'K=96: pallas_gpu takes powers of two',
    ),
    (
      'pallas_gpu',
      {name: ((2**19, 32, 128), jnp.int8) for name in ('k_PSK', 'v_PSK')}
      | {'k_scale': ((2**19, 32), jnp.float32)},
      None,
      'a pool of 2147483648 elements',
    ),
    (
      'pallas_tpu',
      {name: ((40, 16, 128), jnp.int8) for name in ('k_PSK', 'v_PSK')}
      | {'k_scale': ((40, 16), jnp.float32), 'table_BN': ((3, 8), _int32)},
      None,
      'S=16: pallas_tpu takes multiples of 32',
    ),
  ],
)
def test_a_kernel_says_what_it_cannot_take(
  implementation, changes, sizes, message
):
  with (
    dispatch.interpret(),
    pytest.raises(ValueError, match=re.escape(message)),
  ):
    _decode(changes, sizes=sizes, implementation=implementation)


def _shape(**changes):
  shape = blocks.Shape(
    B=8,
    rows=40,
    K=128,
    P=512,
    N=64,
    S=128,
    itemsize=1,
    window=None,
    is_coded=True,
  )
  return shape._replace(**changes)


@pytest.mark.parametrize(
  ('platform', 'changes', 'expected'),
  [
    ('cpu', {'is_coded': False}, 'xla'),
    ('cpu', {'K': 96}, 'xla'),
    ('cpu', {'S': 8}, 'xla'),
    ('cpu', {'rows': 129}, 'xla'),
    ('gpu', {}, 'pallas_gpu'),
    ('tpu', {}, 'pallas_tpu'),
    ('gpu', {'K': 96}, 'xla'),
    ('tpu', {'K': 64}, 'xla'),
    ('tpu', {'S': 16}, 'xla'),
    ('tpu', {'S': 16, 'itemsize': 2}, 'pallas_tpu'),
    # 2 GiB … 4 GiB of codes: 32 bits that would be taken as signed.
    ('gpu', {'P': 2**17}, 'xla'),
    ('gpu', {'P': 2**18 + 1}, 'pallas_gpu'),
  ],
)
def test_the_platform_and_the_shape_pick(platform, changes, expected):
  assert blocks.implementation(platform, _shape(**changes)) == expected


def test_codes_are_numbas_where_it_is(monkeypatch):
  is_there = dispatch.numba_cpu('kaiju_jax.kernels.int8_matmul') is not None
  expected = 'numba_cpu' if is_there else 'xla'
  assert blocks.implementation('cpu', _shape(rows=128)) == expected
  monkeypatch.setattr(dispatch, 'numba_cpu', lambda _: None)
  assert blocks.implementation('cpu', _shape()) == 'xla'


@pytest.mark.parametrize('implementation', api.RUNS_ON)
@pytest.mark.parametrize('rows', [1, 5, 12, 40, 96, 8 * 96])
@pytest.mark.parametrize('S', [32, 128])
@pytest.mark.parametrize('window', [None, 1024])
def test_every_shape_has_tiles_that_fit(implementation, rows, S, window):
  for N in 1, 9, 4096:
    for B in 1, 64, 1000:
      shape = _shape(B=B, rows=rows, N=N, S=S, window=window)
      blocks.check(implementation, shape, blocks.sizes(implementation, shape))


def test_splits_fill_the_device_where_there_are_keys_for_them():
  def splits(**changes):
    return blocks.sizes('pallas_gpu', _shape(**changes)).X

  assert splits(B=1, N=256) == 128
  assert splits(B=8, N=256) == 33
  assert splits(B=64, N=256) == 4
  assert splits(B=1000, N=256) == 1
  # 1,024 positions lie in nine pages: 18 tiles.
  assert splits(B=1, N=256, window=1024) == 4
  assert splits(B=1, N=1) == 1


def test_a_plan_of_another_table_is_refused():
  fields = {'logical_BN': (3, 5), 'page_BN': (3, 5), 'full_B': 3, 'count_B': 3}
  plan = plan_lib.Plan(
    **{name: jnp.zeros(shape, _int32) for name, shape in fields.items()}
  )
  with pytest.raises(
    ValueError, match=re.escape('plan.logical_BN is int32[3, 5]')
  ):
    _decode({}, plan=plan)


def _make_plan(changes, **options):
  options = {'pages': 20, 'window': None} | options
  arrays = {
    name: x
    for name, x in _arguments(**changes).items()
    if name.startswith(('table', 'start', 'limit', 'coordinate', 'position'))
  }
  return jax.eval_shape(
    lambda arrays: api.make_plan(**arrays, **options), arrays
  )


@pytest.mark.parametrize(
  ('changes', 'options', 'message'),
  [
    ({'table_BN': ((3, 5), _int32)}, {}, 'a multiple of the 5 pages'),
    ({'limit_BM': ((3, 64), _int32)}, {}, 'expected (3, 128)'),
    ({'table_BN': ((3, 4), jnp.int16)}, {}, 'table_BN is int16'),
    ({}, {'pages': 0}, 'pages=0: a pool has at least one page'),
    ({}, {'window': 0}, 'window=0'),
  ],
)
def test_a_plan_refuses_the_same(changes, options, message):
  with pytest.raises((ValueError, TypeError), match=re.escape(message)):
    _make_plan(changes, **options)


def test_a_plan_is_made_of_what_fits():
  assert _make_plan({}).logical_BN.shape == (3, 4)

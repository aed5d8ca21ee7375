"""Squinch's kernels, interpreted: the reference's bits, whatever comes in."""

import functools
import math
import os
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.squinch import api
from kaiju_jax.kernels.squinch import blocks
from kaiju_jax.kernels.squinch import groups
from kaiju_jax.kernels.squinch import pallas_gpu
from kaiju_jax.kernels.squinch import reference
from kaiju_jax.wire import squinch
from tests.device import codec as shared

KERNELS = {'gpu': 'pallas_gpu', 'tpu': 'pallas_tpu'}
on_each = pytest.mark.parametrize('implementation', KERNELS.values())
slow = pytest.mark.slow
# Each code on one of the two kernels, which share their arithmetic; every
# element, header and kernel is among the quick tests.
_QUICK = ('zero', 'ln6'), ('floor', 'quarter'), ('fitted', 'quarter')
in_turn = pytest.mark.parametrize(
  ('implementation', 'elements', 'header'),
  [
    pytest.param(
      list(KERNELS.values())[(i + j) % 2],
      elements,
      header,
      marks=[slow] * ((elements, header) not in _QUICK),
    )
    for i, elements in enumerate(reference.ELEMENTS)
    for j, header in enumerate(reference.HEADERS)
  ],
)

# XLA's older emitters approximate a logarithm in one way here and in another
# there. Where `make test` asks for them, this returns to the usual ones.
_EMITTER = 'xla_cpu_use_fusion_emitters'
_EMITTERS = {_EMITTER: True} if _EMITTER in os.environ['XLA_FLAGS'] else {}


@functools.cache
def jitted(name, implementation, *static):
  f = functools.partial(getattr(api, name), implementation=implementation)
  return jax.jit(lambda x: f(x, *static), compiler_options=_EMITTERS)


def run(name, implementation, x, *static):
  """A function of the api, interpreted and compiled once for each shape."""
  with dispatch.interpret():
    return np.asarray(jitted(name, implementation, *static)(x))


def assert_same(name, implementation, *args):
  """Both have the same bits; returns them."""
  got = run(name, implementation, *args)
  expected = run(name, 'reference', *args)
  assert got.dtype == expected.dtype
  np.testing.assert_array_equal(got.view('u1'), expected.view('u1'))
  return got


SHAPE = shared.SHAPE


def assert_encoded_the_same(implementation, x_RC, elements, header):
  """With zeros around x, so that each code is compiled for one shape."""
  whole_RC = np.zeros(SHAPE, np.float32)
  whole_RC[: x_RC.shape[0], : x_RC.shape[1]] = x_RC
  return assert_same(
    'encode_parts', implementation, whole_RC, 2, elements, header
  )


@pytest.mark.versions
@in_turn
def test_every_pattern_has_the_references_bits(
  implementation, elements, header
):
  packed = assert_encoded_the_same(
    implementation, shared.patterns(*SHAPE), elements, header
  )
  assert packed.shape == (2, 6, 35, 130) and packed.dtype == np.uint8
  assert {0, 1, 128, 254, 255} <= set(packed[:, 0].flat)


@pytest.mark.parametrize(
  'rows, columns', [(8, 7), pytest.param(1064, 3, marks=slow)]
)
@on_each
def test_shapes_that_fill_no_block(implementation, rows, columns):
  x_RC = shared.gradients(rows, columns, seed=2)
  codes = 'zero', 'quarter'
  packed = assert_same('encode_parts', implementation, x_RC, 1, *codes)
  assert_same('decode_sum', implementation, packed, *codes)


@in_turn
def test_edges_of_headers_are_the_references(implementation, elements, header):
  # The logarithm is XLA's here and there; a few units in the last place about
  # each of its steps.
  step = {'ln6': 1 / 6, 'quarter': math.log(2) / 4}[header]
  edges = np.exp((np.arange(256) - 129) * step).astype('f4').view('i4')
  near = (edges[:, None] + np.arange(-8, 8)).astype('i4').view('f4')
  assert_same('encode', implementation, near, elements, header)


@in_turn
def test_edges_of_elements_are_the_references(implementation, elements, header):
  # A group's first is as large as makes maxabs 1; the others are a few units
  # in the last place about where an element begins.
  edges = {
    'zero': (np.arange(1, 16) - 0.5) / 15,
    'floor': np.arange(1, 16) / 16,
    'fitted': reference.FITTED_EDGES,
  }[elements]
  near = np.square(edges).astype('f4').view('i4')[:, None] + np.arange(-10, 11)
  rows = near.astype('i4').view('f4').reshape(7, 45)
  x_RC = np.concatenate([np.full((1, 45), 0.99, 'f4'), rows])
  packed = assert_encoded_the_same(implementation, x_RC, elements, header)
  assert np.all(packed[0, 0, 0, :45] == 128)


@pytest.mark.parametrize(
  'implementation, dtype',
  [
    ('pallas_gpu', jnp.bfloat16),
    pytest.param('pallas_gpu', jnp.float16, marks=slow),
    ('pallas_tpu', jnp.bfloat16),
  ],
)
def test_half_is_read_as_it_is(implementation, dtype):
  x_RC = jnp.asarray(shared.gradients(72, 35) / 2**16, dtype)
  x_RC = x_RC.at[3, 5].set(jnp.nan).at[12, 6].set(-jnp.inf)
  packed = assert_same('encode', implementation, x_RC)
  assert packed[0, 0, 5] == packed[0, 1, 6] == 255


@pytest.mark.versions
@in_turn
def test_every_code_decodes_to_the_references_bits(
  implementation, elements, header
):
  packed = shared.every_code()
  assert_same('decode', implementation, packed, elements, header)


@on_each
def test_a_sum_is_taken_in_the_order_of_its_sources(implementation):
  # 2^24 + 1 − 2^24 is 0 or 1 in float32, by the order.
  units = np.zeros((6, 1, 32, 64), np.uint8)
  units[0] = 128  # maxabs = 1: element 15 is 1.
  units[2:] = 0xFF
  large = units.copy()
  large[0] = 128 + 4 * 24
  negative = large.copy()
  negative[1] = 0xFF
  for order, expected in (
    ([large, units, negative], 0),
    ([large, negative, units], 1),
    # More than are read at once, and no divisor of theirs.
    ([large, units, negative, *[units] * 8], 8),
  ):
    packed = np.stack([x[:, 0] for x in order])
    sum_RC = run('decode_sum', implementation, packed, 'zero', 'quarter')
    assert np.all(sum_RC == expected)


@on_each
def test_the_sum_of_one_negative_zero_is_negative(implementation):
  packed = np.zeros((1, 6, 32, 64), np.uint8)
  packed[:, 0], packed[:, 1] = 128, 0xFF
  sum_RC = run('decode_sum', implementation, packed)
  assert np.all(np.signbit(sum_RC))


def over_eight(f):
  mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ('data',))
  return jax.jit(
    jax.shard_map(
      lambda x: f(x[0])[None],
      mesh=mesh,
      in_specs=P('data'),
      out_specs=P('data'),
      check_vma=False,
    )
  )


@pytest.mark.parametrize(
  ('platform', 'rows'), [('gpu', 128), pytest.param('tpu', 1024, marks=slow)]
)
def test_the_collective_is_the_same_with_kernels(platform, rows):
  x_NRC = np.stack([shared.gradients(rows, 65, seed=i) for i in range(8)])
  x_NRC = jnp.asarray(x_NRC, jnp.bfloat16)

  def reduce(x):
    return squinch.reduce_scatter(x, 'data')

  with dispatch.interpret(), dispatch.compiling_for(platform):
    traced = over_eight(reduce).trace(x_NRC)
    got = np.asarray(traced.lower().compile()(x_NRC))
  program = str(traced.jaxpr)
  assert 'name=squinch_encode' in program and 'name=squinch_decode' in program
  # bf16 goes into the kernel as it is.
  assert f'bf16[{rows},65]' in program and f'f32[{rows},65]' not in program
  np.testing.assert_array_equal(got, over_eight(reduce)(x_NRC))


def test_an_all_reduce_reads_bf16_as_it_is():
  x_NRC = jax.ShapeDtypeStruct((8, 1024, 65), jnp.bfloat16)
  with dispatch.compiling_for('gpu'):
    traced = over_eight(lambda x: squinch.all_reduce(x, 'data')).trace(x_NRC)
  assert 'f32[1024,65] = convert_element_type' not in str(traced.jaxpr)


@slow
def test_all_replicas_are_the_same_with_kernels():
  tree_N = {
    'w': np.stack([shared.gradients(64, 9, seed=i) for i in range(8)]),
    'gain': np.stack([shared.gradients(21, 1, seed=i)[:, 0] for i in range(8)]),
  }

  def reduce(tree):
    tree = squinch.all_reduce(tree, 'data', mean=True, header='quarter')
    return jnp.concatenate([tree['w'].reshape(-1), tree['gain']])

  def step(tree_N):
    own = jnp.concatenate([tree_N['w'].reshape(8, -1), tree_N['gain']], 1)

    def local(x):
      return reduce({'w': x[: 64 * 9].reshape(64, 9), 'gain': x[64 * 9 :]})

    return np.asarray(over_eight(local)(own))

  with dispatch.interpret(), dispatch.compiling_for('gpu'):
    got = step(tree_N)
  np.testing.assert_array_equal(got, step(tree_N))
  assert np.all(got == got[:1])


def test_which_implementation_runs_where():
  assert blocks.implementation('cpu', 8, 80, 3072) == 'reference'
  assert blocks.implementation('gpu', 8, 1, 1) == 'pallas_gpu'
  assert blocks.implementation('gpu', 8, 2**20, 64) == 'reference'
  assert blocks.implementation('tpu', 8, 80, 3072) == 'pallas_tpu'
  assert blocks.implementation('tpu', 8, 1, 3072) == 'reference'
  assert blocks.implementation('tpu', 8, 80, 1) == 'reference'


@pytest.mark.parametrize('columns', [1, 3, 31, 640, 1000, 3072, 5120])
@pytest.mark.parametrize('groups', [1, 5, 640])
def test_a_tile_hangs_over_the_edge_by_little(groups, columns):
  height, width, _, warps = blocks.gpu(
    'encode', parts=1, groups=groups, columns=columns, itemsize=2
  )
  assert height & (height - 1) == width & (width - 1) == 0
  # Eight columns of bf16 a thread.
  assert height * width <= 8 * 32 * warps
  if columns >= 256:
    assert -(-columns // width) * width <= 1.125 * columns
  assert height < 2 * groups and width <= columns


def test_sources_are_read_together_that_divide_them():
  def gpu(parts):
    shape = {'groups': 80, 'columns': 3072, 'itemsize': 4}
    return blocks.gpu('decode', parts=parts, **shape).N

  def tpu(parts, groups):
    return blocks.tpu('decode', parts=parts, groups=groups, itemsize=4)

  assert [gpu(n) for n in (1, 6, 7, 8)] == [1, 3, 1, 4]
  assert [tpu(n, 80).N for n in (1, 6, 7, 64)] == [1, 6, 7, 8]
  assert [tpu(1, n).G for n in (1, 33, 80, 640)] == [32, 64, 96, 128]


def test_measured_sizes_come_first_and_tried_ones_before_them(monkeypatch):
  measured = {blocks.key('decode', 6, 4): {'columns': 8, 'N': 2, 'warps': 2}}
  monkeypatch.setattr(
    tuned, 'winner', lambda folder, kind, key: measured.get(key)
  )
  shape = {'groups': 80, 'columns': 3072, 'itemsize': 4}
  assert blocks.gpu('decode', parts=6, **shape) == (1, 512, 2, 2)
  assert blocks.gpu('decode', parts=8, **shape) == (1, 512, 4, 4)
  with tuned.trying(blocks.Threads(columns=2, N=3, warps=1)):
    assert blocks.gpu('decode', parts=6, **shape) == (1, 64, 3, 1)
  with tuned.trying(blocks.Tpu(G=64, N=3)):
    assert blocks.tpu('decode', parts=6, groups=80, itemsize=4) == (64, 3)
    assert blocks.tpu('decode', parts=6, groups=8, itemsize=4) == (32, 3)


def ptx(text, size, scale, nudge):
  """Runs the few instructions of `text` on float32 arrays.

  Args:
    text: of `pallas_gpu.assembly`.
    size: $1.
    scale: $2.
    nudge: units in the last place by which rsqrt is off.
  """
  named = {'$1': size, '$2': scale}

  def value(name):
    if name.startswith('0f'):
      return np.uint32(int(name[2:], 16)).view('f4')
    return named[name]

  def fma(a, b, c):
    wide = [np.asarray(x, np.longdouble) for x in (a, b, c)]
    return (wide[0] * wide[1] + wide[2]).astype('f4')

  def rsqrt(a):
    exact = (1 / np.sqrt(np.asarray(a, 'f8'))).astype('f4')
    return (exact.view('i4') + nudge).view('f4')

  def add_down(a, b):
    exact = np.asarray(a, 'f8') + np.asarray(b, 'f8')
    near = exact.astype('f4')
    return np.where(near > exact, np.nextafter(near, np.float32(0)), near)

  operations = {
    'mul.rn.f32': lambda a, b: a * b,
    'add.rn.f32': lambda a, b: a + b,
    'add.rm.f32': add_down,
    # Of a number and NaN, the number.
    'max.f32': np.fmax,
    'min.f32': np.fmin,
    'neg.f32': lambda a: -a,
    'fma.rn.f32': fma,
    'rsqrt.approx.ftz.f32': rsqrt,
    'mov.b32': lambda a: a,
  }
  for line in re.findall(r'([^{};]+);', text):
    name, _, operands = line.strip().partition(' ')
    if name == '.reg':
      continue
    target, *sources = operands.split(', ')
    named[target] = operations[name](*map(value, sources))
  return np.asarray(named['$0']).view('i4') & 15


@pytest.mark.parametrize('elements', ['zero', 'floor'])
@pytest.mark.parametrize('nudge', range(-2, 3))
def test_a_gpus_element_is_the_rounded_roots(elements, nudge):
  # PTX promises rsqrt to 2^-22.9: less than two units in the last place.
  rng = np.random.default_rng(3)
  edges = [(k - (elements == 'zero') / 2) ** 2 for k in range(1, 16)]
  near = np.float32(edges).view('i4')[:, None] + np.arange(-2000, 2000)
  squared = np.concatenate(
    [
      near.ravel().astype('i4').view('f4'),
      np.exp2(rng.uniform(-60, 9, 100_000)).astype('f4'),
      np.float32([0, 1e-45, 1e-38, 1e-30, 1e30, np.finfo('f4').max]),
    ]
  )
  one = np.ones_like(squared)
  got = ptx(pallas_gpu.assembly(elements), squared, one, nudge)
  # On a CPU the root is IEEE's.
  expected = groups.element(squared, one, elements) & 15
  np.testing.assert_array_equal(got, expected)
  spoilt = np.float32([np.inf, np.nan])
  with np.errstate(invalid='ignore'):
    ptx(pallas_gpu.assembly(elements), spoilt, np.float32([0, 0]), nudge)


def test_an_element_of_no_number_may_be_anything():
  # What a GPU makes of inf · 0.
  rows = [jnp.full((1, 1), x, jnp.float32) for x in (1, jnp.inf, *[2] * 6)]
  planes = groups.encode(
    [jax.lax.bitcast_convert_type(row, jnp.int32) for row in rows],
    lambda q: jnp.zeros(q.shape, jnp.float32),
    lambda size, scale: jnp.full(size.shape, 0x4B000007),
    'quarter',
  )
  assert [int(plane[0, 0]) & 255 for plane in planes] == [255, 0, 0, 0, 0, 0]


def test_the_fitted_edges_are_those_of_the_root():
  for square, edge in zip(groups._FITTED_EDGES, reference.FITTED_EDGES):
    assert np.sqrt(square) >= edge > np.sqrt(np.nextafter(square, square * 0))
    assert math.isclose(square, float(edge) ** 2, rel_tol=1e-6)


@pytest.mark.parametrize(
  'name, args, error, message',
  [
    ('encode', (np.ones(8),), ValueError, r'x_RC has shape \(8,\): .* columns'),
    ('encode', (np.ones((9, 1)),), ValueError, 'x_RC has 9 rows: .* of 8 × 1'),
    (
      'encode_parts',
      (np.ones((24, 1)), 2),
      ValueError,
      'x_RC has 24 rows: must be a multiple of 8 × 2 parts',
    ),
    ('encode_parts', (np.ones((8, 1)), 0), ValueError, 'parts=0: must be at'),
    ('encode', (np.ones((8, 1), int),), TypeError, 'x_RC is int64: .* floats'),
    (
      'encode',
      (np.ones((8, 1)), 'linear'),
      ValueError,
      "elements='linear': must be one of",
    ),
    ('decode', (np.ones((6, 1, 1)),), TypeError, 'packed_PGC is float64: Sq'),
    (
      'decode',
      (np.ones((5, 1, 1), np.uint8),),
      ValueError,
      r'packed_PGC has shape \(5, 1, 1\): expected \[6, G, C\]',
    ),
    (
      'decode_sum',
      (np.ones((6, 1, 1), np.uint8),),
      ValueError,
      r'packed_NPGC has shape \(6, 1, 1\): expected \[N, 6, G, C\]',
    ),
    (
      'decode_sum',
      (np.ones((0, 6, 1, 1), np.uint8),),
      ValueError,
      'a sum of no sources',
    ),
  ],
)
def test_what_does_not_fit_is_refused(name, args, error, message):
  with pytest.raises(error, match=message):
    getattr(api, name)(*args)


def test_a_kernel_of_another_platform_is_refused():
  with pytest.raises(ValueError, match=r'pallas_gpu.* runs on gpu: cpu runs'):
    api.encode(jnp.ones((8, 1)), implementation='pallas_gpu')


def test_nothing_is_coded_as_nothing():
  for implementation in KERNELS.values():
    assert run('encode', implementation, np.ones((8, 0))).shape == (6, 1, 0)

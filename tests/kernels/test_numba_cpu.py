"""Products of codes by numba: bits as XLA has them, and frames it refuses."""

import ctypes
import importlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax.kernels import choice
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.quantization import int8
from kaiju_jax.quantization.qat import letters as letters_lib
from kaiju_jax.quantization.qat import product
from kaiju_jax.quantization.qat import project
from tests.kernels import frames


@pytest.fixture(scope='module', name='kernel')
def _kernel():
  """The module, which is compiled when it is imported."""
  pytest.importorskip('numba', reason='needs the extra cpu')
  return blocks.numba_cpu() or pytest.skip('needs an x86 CPU with AVX2')


def _draw(*shape, seed=0):
  rng = np.random.default_rng((seed, *shape))
  return rng.integers(-128, 128, shape, np.int8)


def _wanted(x, w):
  return x.astype(np.int64) @ w.astype(np.int64).T


# Rows, contracted, outputs: every remainder of a tile's rows and outputs, whole
# steps of 16, 32 and 64 codes, parts of them and both.
SHAPES = [
  *((rows, 192, 8) for rows in range(1, 10)),
  *((3, size, 5) for size in (1, 15, 16, 63, 64, 65, 129)),
  *((2, 80, outputs) for outputs in range(1, 8)),
  (65, 64, 9),
  (131, 130, 6),
]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_sums_are_exact(kernel, shape):
  rows, size, outputs = shape
  x, w = _draw(rows, size), _draw(outputs, size, seed=1)
  found = kernel.sums(x, w)
  assert found.dtype == jnp.int32
  np.testing.assert_array_equal(found, _wanted(x, w))


@pytest.mark.versions
@pytest.mark.parametrize('first', (-128, 127))
@pytest.mark.parametrize('second', (-128, -127, 127))
def test_sums_of_extreme_codes_are_exact(kernel, first, second):
  x, w = np.full((5, 1600), first, np.int8), np.full((6, 1600), second, np.int8)
  x[1, ::2], w[2, ::3] = -128, 127
  np.testing.assert_array_equal(kernel.sums(x, w), _wanted(x, w))


def test_a_large_weight_is_read_in_parts(kernel, monkeypatch):
  monkeypatch.setattr(kernel, '_SPLIT', 7 * 64)
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: range(3))
  x, w = _draw(2, 64), _draw(7, 64, seed=1)
  jaxpr = str(jax.make_jaxpr(kernel.sums)(x, w))
  assert jaxpr.count('ffi_call') == 3
  np.testing.assert_array_equal(kernel.sums(x, w), _wanted(x, w))
  assert str(jax.make_jaxpr(kernel.sums)(x, w[:6])).count('ffi_call') == 1


def test_a_loop_reads_one_of_several_weights_in_place(kernel):
  x, several = _draw(3, 64), [_draw(5, 64, seed=n) for n in range(4)]

  def run(x, several):
    def body(_, number):
      return 0, kernel.sums(x, choice.Choice(number, several))

    return jax.lax.scan(body, 0, jnp.int32([2, 0, 3, 3]))[1]

  run = jax.jit(run).lower(x, several).compile()
  assert 's8[4,5,64]' not in run.as_text()  # No copy has all of them.
  found = run(x, several)
  for number, y in zip((2, 0, 3, 3), found, strict=True):
    np.testing.assert_array_equal(y, _wanted(x, several[number]))


def test_under_vmap_and_scan(kernel):
  x, w = _draw(3, 2, 64), _draw(3, 5, 64, seed=1)
  wanted = np.stack(list(map(_wanted, x, w)))
  np.testing.assert_array_equal(jax.vmap(kernel.sums)(x, w), wanted)
  scanned = jax.lax.scan(lambda _, xw: (0, kernel.sums(*xw)), 0, (x, w))
  np.testing.assert_array_equal(scanned[1], wanted)


@pytest.mark.parametrize('rows', (1, 2, 3, 33))
@pytest.mark.parametrize(
  'spec', ('BLD,FD->BLF', 'BLD,HKD->BLHK', 'BLHK,DHK->BLD')
)
def test_einsums_of_codes_have_the_bits_of_xla(kernel, monkeypatch, spec, rows):
  sizes = {'B': 1, 'L': rows, 'D': 64, 'F': 96, 'H': 4, 'K': 16}
  letters = letters_lib.parse(spec)
  x, w = (
    _draw(*(sizes[letter] for letter in each))
    for each in (letters.x, letters.w)
  )
  call = lambda: jax.jit(  # noqa: E731
    lambda x, w: product.multiply(letters, x, w, jnp.int32)
  )
  assert 'custom_call' in call().lower(x, w).as_text()
  found = call()(x, w)
  monkeypatch.setattr(blocks, 'numba_cpu', lambda: None)
  assert 'custom_call' not in call().lower(x, w).as_text()
  np.testing.assert_array_equal(found, call()(x, w))


def test_sums_with_a_part_of_a_step_are_left_to_xla(kernel):
  letters = letters_lib.parse('BLD,FD->BLF')
  run = jax.jit(lambda x, w: product.multiply(letters, x, w, jnp.int32))
  for size, is_kernels in ((64, True), (72, False), (128, True)):
    text = run.lower(_draw(1, 2, size), _draw(3, size)).as_text()
    assert ('custom_call' in text) == is_kernels


def test_gradients_have_the_bits_of_xla(kernel, monkeypatch):
  x = jnp.asarray(_draw(1, 5, 64), jnp.float32)
  codes, scales = int8.quantize(jnp.asarray(_draw(6, 64, seed=1)) / 3, (1,))

  def loss(x, carrier):
    w = int8.Quantized(codes, scales, carrier)
    return jnp.square(project.einsum('BLD,FD->BLF', x, w)).sum()

  def run():
    return jax.jit(jax.value_and_grad(loss, (0, 1)))(x, jnp.zeros((6, 64)))

  found = run()
  monkeypatch.setattr(blocks, 'numba_cpu', lambda: None)
  jax.tree.map(np.testing.assert_array_equal, found, run())
  assert np.any(found[1][0]) and np.any(found[1][1])


def _header():
  """Returns the structs by name of a frame that asks for a version."""
  memory = frames.Memory()
  metadata = memory.words(36, 24, 0, 0, 0, 0)
  extension = memory.words(32, 1, 0, metadata)
  frame = memory.frame(extension, (), ())
  structs = dict(metadata=metadata, extension=extension, frame=frame)
  return memory, structs | {'api': memory.api}


@pytest.mark.parametrize(
  ('struct', 'place', 'value', 'named'),
  (
    ('frame', 0, 176, 'XLA_FFI_CallFrame has 176 bytes'),
    ('frame', 1, 0, 'no extension'),
    ('frame', 2, 0, 'no API'),
    ('api', 2, 32, 'XLA_FFI_Api_Version has 32 bytes'),
    ('api', 4, 1 + (3 << 32), 'API 1.3'),
    ('api', 4, 2 << 32, 'API 0.2'),
    ('api', 4, 6 << 32, 'API 0.6'),
    ('extension', 0, 40, 'XLA_FFI_Metadata_Extension has 40 bytes'),
    ('extension', 1, 2, 'another type'),
    ('metadata', 0, 44, 'XLA_FFI_Metadata has 44 bytes'),
    ('metadata', 1, 32, 'XLA_FFI_Api_Version has 32 bytes'),
  ),
)
def test_another_header_is_refused(kernel, struct, place, value, named):
  from kaiju_jax.kernels import call_frame

  _, structs = _header()
  for minor in (3, 4, 5):
    frames.put(structs['api'], 4, minor << 32)
    assert call_frame.find_fault(structs['frame']) == ''
  frames.put(structs[struct], place, value)
  assert named in call_frame.find_fault(structs['frame'])


def _call():
  """Returns structs of a call by name, its operands and result."""
  memory = frames.Memory()
  x, w, y = _draw(2, 64), _draw(5, 64, seed=1), np.zeros((2, 3), np.int32)
  begin, number, other = np.int32([2]), np.int32([1]), _draw(5, 64, seed=2)
  structs = {
    name: memory.buffer(array, shape)
    for name, array, shape in (
      ('x', x, x.shape),
      ('begin', begin, ()),
      ('number', number, ()),
      ('other', other, other.shape),
      ('w', w, w.shape),
      ('y', y, y.shape),
    )
  }
  *arguments, result = structs.values()
  frame = memory.frame(0, arguments, [result])
  return memory, structs | {'frame': frame}, (x, w, begin, number, y)


def test_a_frame_is_read_as_xla_makes_it(kernel):
  memory, structs, (x, w, *_, y) = _call()
  assert frames.handle(kernel, structs['frame']) == 0 and not memory.errors
  np.testing.assert_array_equal(y, _wanted(x, w)[:, 2:])
  memory, structs = _header()
  assert frames.handle(kernel, structs['frame']) == 0
  version = ctypes.c_int64.from_address(structs['metadata'] + 24).value
  assert version == 3 << 32


@pytest.mark.parametrize(
  ('struct', 'place', 'value'),
  (
    ('frame', 0, 160),  # Sizes of structs,
    ('frame', 5, 48),
    ('frame', 10, 32),
    ('x', 0, 56),
    ('y', 0, 40),
    ('frame', 7, 4),  # counts,
    ('frame', 12, 0),
    ('x', 2, 6),  # dtypes,
    ('w', 2, 4),
    ('begin', 2, 5),
    ('number', 2, 5),
    ('y', 2, 11),
    ('x', 4, 3),  # ranks.
    ('begin', 4, 1),
    ('number', 4, 1),
    ('y', 4, 1),
  ),
)
def test_a_call_of_other_structs_is_an_error(kernel, struct, place, value):
  memory, structs, (*_, y) = _call()
  frames.put(structs[struct], place, value)
  assert frames.handle(kernel, structs['frame']) == 77 and not y.any()
  ((size, message, code),) = memory.errors
  assert (size, code & 0xFFFFFFFF) == (28, 3) and 'handler' in message


@pytest.mark.parametrize(
  ('name', 'place', 'value'),
  (('x', 1, 63), ('w', 0, 4), ('w', 1, 128), ('y', 0, 3), ('y', 1, 4)),
)
def test_a_call_of_other_shapes_is_an_error(kernel, name, place, value):
  _memory, structs, (*_, y) = _call()
  dims = ctypes.c_int64.from_address(structs[name] + 40).value
  frames.put(dims, place, value)
  assert frames.handle(kernel, structs['frame']) == 77 and not y.any()


@pytest.mark.parametrize(
  ('begin', 'number'), ((-1, 1), (3, 1), (2, -1), (2, 2))
)
def test_what_is_outside_the_weights_is_an_error(kernel, begin, number):
  _memory, structs, (*_, place, which, y) = _call()
  place[:], which[:] = begin, number
  assert frames.handle(kernel, structs['frame']) == 77 and not y.any()


@pytest.mark.versions
def test_xla_raises_the_error(kernel):
  call = jax.ffi.ffi_call(kernel._NAME, jax.ShapeDtypeStruct((2, 3), jnp.int32))
  with pytest.raises(jax.errors.JaxRuntimeError, match='handler'):
    zero = jnp.int32(0)
    call(jnp.zeros((2, 64)), zero, zero, _draw(3, 64)).block_until_ready()


def test_without_numba_products_are_xlas(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda _: None)
  dispatch._import_numba.cache_clear()
  try:
    assert blocks.numba_cpu() is None and blocks.implementation() == 'xla'
  finally:
    dispatch._import_numba.cache_clear()


@pytest.mark.parametrize('error', (ImportError, RuntimeError))
def test_what_cannot_be_imported_is_told_once(
  kernel, monkeypatch, caplog, error
):
  def fail(name):
    raise error('the header is another one')

  monkeypatch.setattr(importlib, 'import_module', fail)
  dispatch._import_numba.cache_clear()
  try:
    with caplog.at_level('WARNING', 'absl'):
      assert blocks.implementation() == blocks.implementation() == 'xla'
  finally:
    dispatch._import_numba.cache_clear()
  assert caplog.text.count('the header is another one') == 1


def test_devices_multiply_their_own_parts(kernel):
  mesh = jax.sharding.Mesh(jax.devices()[:2], ('data',))
  spec = PartitionSpec('data')
  x, w = _draw(4, 64), _draw(6, 64, seed=1)
  call = jax.shard_map(
    kernel.sums, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
  )
  np.testing.assert_array_equal(jax.jit(call)(x, w), _wanted(x, w))


_CHILD = """
import numpy as np
from kaiju_jax.kernels.int8_matmul import blocks
from tests.kernels import test_numba_cpu as tests
from tests.kernels import test_paged_decode_numba as paged

if kernel := blocks.numba_cpu():
  for rows, size, outputs in tests.SHAPES[::3]:
    x, w = tests._draw(rows, size), tests._draw(outputs, size, seed=1)
    assert (np.asarray(kernel.sums(x, w)) == tests._wanted(x, w)).all(), x.shape
  paged.test_it_is_the_definition(None, paged.SIZES[2], False)
print(kernel and kernel._STEP)
"""


@pytest.mark.parametrize(
  ('features', 'step'),
  (
    ('avx,avx2', 16),
    pytest.param('avx,avx2,avxvnni', 32, marks=pytest.mark.slow),
    pytest.param('sse2', None, marks=pytest.mark.slow),
  ),
)
def test_processors_without_avx512(kernel, features, step):
  from numba.core import codegen

  features = [f'+{name}' for name in features.split(',')]
  if not set(features) <= set(codegen.get_host_cpu_features().split(',')):
    pytest.skip(f'needs a processor with {features}')
  settings = {
    'NUMBA_CPU_NAME': 'x86-64',
    'NUMBA_CPU_FEATURES': ','.join(features),
  }
  out = subprocess.run(
    [sys.executable, '-c', _CHILD],
    env=os.environ | settings,
    capture_output=True,
    text=True,
    check=False,
  )
  assert out.returncode == 0, out.stderr
  assert out.stdout.split()[-1] == str(step)

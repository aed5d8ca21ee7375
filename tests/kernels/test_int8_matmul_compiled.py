"""What the compilers of H100 and TPU make of the kernels, at real shapes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels.int8_matmul import api
from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.model import presets
from tests import compiled

TOKENS = 8192
PROJECTIONS = ('w_in_DF', 'w_out_DF', 'w_q_DHK', 'w_o_DHK')


def shape_of(preset, name):
  """Returns (contract, C, O) of a projection on one of its devices."""
  config = presets.preset(preset)
  _, width = presets.MESHES[preset]
  inner = config.d_ff
  if name.endswith('HK'):
    inner = config.num_heads * config.head_dim
  sizes = config.d_model, inner // width
  if name in ('w_in_DF', 'w_q_DHK'):
    return 'first', *sizes
  return 'last', *sizes[::-1]


def training(preset, name, implementation, tokens=TOKENS, dtype=jnp.bfloat16):
  """Returns a jit of a projection and its gradients, and the operands."""
  contract, contracted, outputs = shape_of(preset, name)
  nonnegative = name == 'w_out_DF'
  options = {'contract': contract, 'implementation': implementation}

  def step(x_RC, w, scale_O, dy_RO):
    found = api.matmul(
      x_RC,
      w,
      scale_O,
      nonnegative=nonnegative,
      relu2=name == 'w_in_DF',
      keep_codes=True,
      **options,
    )
    return (
      found,
      api.input_gradient(dy_RO, w, scale_O, **options),
      api.input_gradient(dy_RO, w, scale_O, rounding='stochastic', **options),
      api.weight_gradient(
        found.codes_RC,
        found.scale_R,
        dy_RO,
        nonnegative=nonnegative,
        **options,
      ),
    )

  w_shape = contracted, outputs
  return jax.jit(step), (
    jax.ShapeDtypeStruct((tokens, contracted), dtype),
    jax.ShapeDtypeStruct(
      w_shape if contract == 'first' else w_shape[::-1], jnp.int8
    ),
    jax.ShapeDtypeStruct((outputs,), jnp.float32),
    jax.ShapeDtypeStruct((tokens, outputs), dtype),
  )


def test_shapes_are_the_presets_own():
  assert shape_of('13b', 'w_in_DF') == ('first', 5120, 3072)
  assert shape_of('34b', 'w_out_DF') == ('last', 4352, 7168)
  assert shape_of('110b', 'w_q_DHK') == ('first', 12_288, 1536)
  assert shape_of('110b', 'w_o_DHK') == ('last', 1536, 12_288)


# Each projection and each preset once; the rest by `make aot-full`.
_IN_CI = {
  ('13b', 'w_in_DF'),
  ('34b', 'w_q_DHK'),
  ('110b', 'w_out_DF'),
  ('110b', 'w_o_DHK'),
}


@pytest.mark.aot
@pytest.mark.parametrize(
  ('preset', 'name'),
  [
    pair if pair in _IN_CI else pytest.param(*pair, marks=pytest.mark.full)
    for pair in itertools.product(presets.MESHES, PROJECTIONS)
  ],
)
def test_on_an_h100(preset, name, tokens=TOKENS):
  jitted, operands = training(preset, name, 'pallas_gpu', tokens)
  kernels = compiled.gpu(jitted, *operands)
  assert [
    kernel.name for kernel in kernels.values() if kernel.spill_stores
  ] == []
  types = {
    'int8_matmul': 'wgmma s8',
    'int8_matmul__1': 'wgmma s8',
    'int8_matmul_dx': 'wgmma bf16',
    'int8_matmul_dw': 'wgmma bf16',
  }
  for kernel, instruction in types.items():
    assert set(kernels[kernel].instructions) == {instruction}
    assert kernels[kernel].shared_memory <= 232_448
  assert {'int8_quantize', 'int8_quantize_stochastic'} <= set(kernels)


@pytest.mark.aot
@pytest.mark.parametrize(
  'name', [pytest.param('w_in_DF', marks=pytest.mark.full), 'w_out_DF']
)
def test_float32_on_an_h100(name):
  """No tensor core multiplies it: its gradients' products are plain ones."""
  jitted, operands = training('13b', name, 'pallas_gpu', dtype=jnp.float32)
  kernels = compiled.gpu(jitted, *operands)
  assert not any(kernel.spill_stores for kernel in kernels.values())
  for kernel in 'int8_matmul', 'int8_matmul__1':
    assert set(kernels[kernel].instructions) == {'wgmma s8'}
  for kernel in 'int8_matmul_dx', 'int8_matmul_dw':
    assert not kernels[kernel].instructions
    assert kernels[kernel].shared_memory <= 232_448


@pytest.mark.aot
@pytest.mark.parametrize(
  'tokens', [32, pytest.param(600, marks=pytest.mark.full)]
)
def test_few_tokens_on_an_h100(tokens):
  test_on_an_h100('13b', 'w_in_DF', tokens)


def test_few_tokens_have_tiles_for_more_multiprocessors():
  assert blocks.gpu(8192, 5120, 3072, 'first')[:2] == (256, 128)
  assert blocks.gpu(8192, 3072, 5120, 'last')[:2] == (128, 256)
  # 5 · 24, 10 · 24 and 1 · 48 tiles.
  assert blocks.gpu(600, 5120, 3072, 'first')[:2] == (64, 128)
  assert blocks.gpu(32, 5120, 3072, 'first')[:2] == (64, 64)
  assert blocks.gpu_float(600, 3072, 5120, 2)[:2] == (128, 128)


@pytest.mark.aot
@pytest.mark.full
def test_a_bad_tile_shows_on_an_h100(monkeypatch):
  # 256 · 256 / 128 = 512 registers of a thread for the sum: there are 255.
  bad = blocks.Gpu(256, 256, 64, 4, 2)
  monkeypatch.setattr(blocks, 'gpu', lambda *sizes: bad)
  with pytest.raises(AssertionError, match='int8_matmul'):
    test_on_an_h100('13b', 'w_out_DF')


@pytest.mark.aot
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  ('accelerator', 'name'),
  [
    ('v5e_256', 'w_out_DF'),
    ('v5p_128', 'w_in_DF'),
    pytest.param('v5e_256', 'w_in_DF', marks=pytest.mark.full),
    pytest.param('v5p_128', 'w_out_DF', marks=pytest.mark.full),
    pytest.param('v6e_256', 'w_in_DF', marks=pytest.mark.full),
    pytest.param('v6e_256', 'w_out_DF', marks=pytest.mark.full),
  ],
)
def test_on_a_tpu(accelerator, name):
  make = functools.partial(training, '110b', name, 'pallas_tpu')
  counts = compiled.tpu(make, accelerator)
  # Forward, and backward with dy as codes.
  assert set(counts['int8_matmul']) == {'vmatmul s8'}
  assert set(counts['int8_matmul_dx']) == {'vmatmul bf16'}
  assert set(counts['int8_matmul_dw']) == {'vmatmul bf16'}


def too_many_rows():
  """`training`, with more rows than VMEM holds."""
  blocks.tpu = lambda *sizes: blocks.Tpu(4096, 512, 1024)
  return training('110b', 'w_in_DF', 'pallas_tpu')


@pytest.mark.aot
@pytest.mark.full
def test_bad_blocks_show_on_a_tpu():
  with pytest.raises(RuntimeError, match=r'RESOURCE_EXHAUSTED|vmem'):
    compiled.tpu(too_many_rows, 'v5e_256')

"""Squinch's kernels, compiled for hardware that is not here."""

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.aot import build
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.squinch import api
from kaiju_jax.kernels.squinch import blocks
from tests import compiled

pytestmark = pytest.mark.aot

# Sources over fsdp and a device's gradient: the hidden units of 13b, 34b and
# 110b, a key projection, and a norm's gain.
WEIGHTS = [
  (8, 5120, 3072),
  (16, 7168, 4352),
  (64, 12_288, 6400),
  (8, 5120, 128),
  (8, 5120, 1),
]
TPUS = 'v5e_256', 'v5p_128', 'v6e_256'
CODES = [
  ('fitted', 'ln6'),
  pytest.param(('floor', 'quarter'), marks=pytest.mark.full),
]


def encoding(parts, rows, columns, dtype='bfloat16', codes=('zero', 'ln6')):
  x_RC = jax.ShapeDtypeStruct((rows, columns), dtype)
  return jax.jit(lambda x_RC: api.encode_parts(x_RC, parts, *codes)), x_RC


def decoding(parts, rows, columns, codes=('zero', 'ln6')):
  packed_NPGC = jax.ShapeDtypeStruct(
    (parts, 6, rows // 8 // parts, columns), jnp.uint8
  )
  return jax.jit(lambda packed: api.decode_sum(packed, *codes)), packed_NPGC


def assert_fits(kernels, name):
  """One kernel, no copy beside it, and room for sixteen warps or more."""
  assert list(kernels) == [name]
  kernel = kernels[name]
  assert kernel.spill_stores == kernel.spill_loads == 0
  assert kernel.registers <= 128
  # What is exchanged between threads is bytes on their way out.
  assert kernel.shared_memory <= 16_384


def cases(*chosen):
  """Returns them, and the rest of (weight, TPU) for `make aot-full`."""
  rest = [
    (weight, accelerator)
    for weight in WEIGHTS[:4]
    for accelerator in TPUS
    if (weight, accelerator) not in chosen
  ]
  return [*chosen, *(pytest.param(*x, marks=pytest.mark.full) for x in rest)]


@pytest.mark.parametrize(
  'weight',
  [
    *WEIGHTS[2:4],
    *(pytest.param(x, marks=pytest.mark.full) for x in WEIGHTS[:2]),
    pytest.param(WEIGHTS[4], marks=pytest.mark.full),
  ],
  ids=str,
)
def test_h100(weight):
  for dtype in 'bfloat16', 'float32':
    assert_fits(compiled.gpu(*encoding(*weight, dtype)), 'squinch_encode')
  assert_fits(compiled.gpu(*decoding(*weight)), 'squinch_decode')


@pytest.mark.parametrize('codes', CODES)
def test_h100_by_every_code(codes):
  kernels = compiled.gpu(*encoding(*WEIGHTS[0], codes=codes))
  assert_fits(kernels, 'squinch_encode')
  assert_fits(compiled.gpu(*decoding(*WEIGHTS[0], codes)), 'squinch_decode')


@pytest.mark.full
def test_a_tile_too_large_spills():
  with tuned.trying(blocks.Threads(columns=32, N=1, warps=1)):
    kernel = compiled.gpu(*encoding(*WEIGHTS[0]))['squinch_encode']
  assert kernel.spill_stores > 0
  with pytest.raises(AssertionError):
    assert_fits({'squinch_encode': kernel}, 'squinch_encode')


def opcodes(jitted, operand, accelerator):
  """What a TPU's compiler made of it, by opcode."""
  operand = compiled.placed(operand, accelerator)
  module = build.build(jitted, (operand,)).module
  entry = module.computations[module.entry].instructions.values()
  # Tables are constants, a bitcast moves nothing, and what is copied ahead is
  # small enough to lie in the chip's own memory.
  free = 'parameter', 'constant', 'bitcast', 'copy-start', 'copy-done'
  return [each.opcode for each in entry if each.opcode not in free]


@pytest.mark.parametrize(
  ('weight', 'accelerator'),
  cases((WEIGHTS[2], 'v5p_128'), (WEIGHTS[3], 'v5e_256')),
  ids=str,
)
def test_tpu(weight, accelerator):
  for dtype in 'bfloat16', 'float32':
    assert opcodes(*encoding(*weight, dtype), accelerator) == ['custom-call']
  assert opcodes(*decoding(*weight), accelerator) == ['custom-call']


@pytest.mark.full
@pytest.mark.parametrize('accelerator', TPUS)
@pytest.mark.parametrize('codes', [('floor', 'quarter'), ('fitted', 'ln6')])
def test_tpu_by_every_code(codes, accelerator):
  encoded = opcodes(*encoding(*WEIGHTS[0], codes=codes), accelerator)
  decoded = opcodes(*decoding(*WEIGHTS[0], codes), accelerator)
  assert encoded == decoded == ['custom-call']


@pytest.mark.full
@pytest.mark.parametrize('accelerator', TPUS)
def test_a_block_too_large_is_refused(accelerator):
  with (
    tuned.trying(blocks.Tpu(G=640 * 64, N=1)),
    pytest.raises(jax.errors.JaxRuntimeError, match='vmem'),
  ):
    opcodes(*encoding(1, 5120 * 64, 3072), accelerator)

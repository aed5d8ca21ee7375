"""The TPU kernels as the real compiler makes them, at the presets' shapes.

One layer's attention on one device: 32,768 tokens, and the heads of 13b, 34b
and 110b split by eight.
"""

import functools
import itertools

import jax
import pytest

from kaiju_jax.aot import attention_kernels
from kaiju_jax.aot import build
from kaiju_jax.aot import schedule
from kaiju_jax.kernels import dispatch
from tests import compiled

pytestmark = pytest.mark.aot

_LENGTH = 32_768
_CHIPS = 'v5e_256', 'v5p_128', 'v6e_256'
_KERNELS = {
  'visibility_attention_forward',
  'visibility_attention_dq',
  'visibility_attention_dkv',
}

_IN_CI = [
  ('v5e_256', 5, 1024, 'int8'),
  ('v5p_128', 12, None, 'int8'),
  ('v5p_128', 7, None, 'bfloat16'),
]
_EVERY = itertools.product(
  _CHIPS, (5, 7, 12), (1024, None), ('int8', 'bfloat16')
)


def _build(chip, run, structs):
  """Compiles a program for one device."""
  placed = compiled.placed(structs, chip)
  with dispatch.compiling_for('tpu'):
    return build.build(run, placed)


@pytest.mark.parametrize(
  ('chip', 'heads', 'window', 'kind'),
  [
    case if case in _IN_CI else pytest.param(*case, marks=pytest.mark.full)
    for case in _EVERY
  ],
)
def test_matrix_instructions(chip, heads, window, kind):
  counts = compiled.tpu(
    functools.partial(attention_kernels.alone, heads, window, kind), chip
  )
  counts = {name: count for name, count in counts.items() if count}
  assert counts.keys() == _KERNELS
  for count in counts.values():
    # PV and what the backward pass adds are in bfloat16, QKᵀ is as its codes.
    assert count['vmatmul bf16'] > 0
    assert (count['vmatmul s8'] > 0) == (kind == 'int8')
    assert count['vmatmul f32'] == 0


def _least_busy(tiles=None):
  """Returns the share of the matrix unit's slots that a visit fills."""
  make = functools.partial(
    attention_kernels.alone, 5, None, 'bfloat16', tiles=tiles
  )
  with compiled.installed():
    kernels = schedule.read(make, 'v5e_256')
  shares = {
    name: [x.busy['MXU'] for x in stretches if x.busy['MXU']]
    for name, stretches in kernels.items()
  }
  shares = {name: busy for name, busy in shares.items() if busy}
  assert shares.keys() == _KERNELS
  # Each visits with a mask, and without.
  assert all(len(busy) == 2 for busy in shares.values())
  return min(itertools.chain(*shares.values()))


@pytest.mark.full
def test_a_visit_fills_the_matrix_units_schedule():
  assert _least_busy() > 0.8
  assert _least_busy(tiles=(128, 128)) < 0.8


def test_a_whole_pass_is_linear_in_length():
  run, structs = attention_kernels.layer(12, 1024, 'bfloat16')
  program = _build('v5p_128', jax.jit(run), structs)
  # Of queries by keys, one bit each would be 128 MiB, and 12 heads' logits
  # 48 GiB. What XLA cuts and pads is a few times the operands.
  operands = 4 * _LENGTH * 12 * 128 * 2
  assert program.memory.temporary < 2 * operands


@pytest.mark.full
def test_other_shapes_compile():
  for heads, kind, head_dim, length in (
    (1, 'float32', 64, 1000),
    (96, 'int8', 64, 100),
    (3, 'float32', 256, 2048),
  ):
    jitted, structs = attention_kernels.alone(
      heads, 300, kind, head_dim, length
    )
    _build('v5e_256', jitted, structs)


@pytest.mark.full
def test_blocks_too_large_for_vector_memory_are_an_error():
  jitted, structs = attention_kernels.alone(
    5, 1024, 'bfloat16', tiles=(4096, 128)
  )
  with pytest.raises(jax.errors.JaxRuntimeError, match='vmem'):
    _build('v5e_256', jitted, structs)

"""The TPU kernels as the real compiler makes them, at the presets' shapes.

One layer's attention on one device: 32,768 tokens, and the heads of 13b, 34b
and 110b split by eight. Each chip and each number of heads is tried; with
EVERY_SHAPE=1 in the environment, each chip with each number.
"""

import functools
import itertools
import os
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax import aot
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import tpu_march
from tests import compiled
import tpu_gpu_configs

_LENGTH = 32_768
_CHIPS = 'v5e_256', 'v5p_128', 'v6e_256'
_KERNELS = {
  'visibility_attention_forward',
  'visibility_attention_dq',
  'visibility_attention_dkv',
}

SOME = [
  ('v5e_256', 5, 1024, 'int8'),
  ('v5p_128', 7, None, 'int8'),
  ('v6e_256', 12, 1024, 'int8'),
  ('v6e_256', 5, None, 'bfloat16'),
]
EVERY = list(
  itertools.product(_CHIPS, (5, 7, 12), (1024, None), ('int8', 'bfloat16'))
)


def _layer(heads, window, kind, head_dim=128, length=_LENGTH):
  """Returns forward and backward, half-int8 or of floats, and their shapes."""
  B, L, H, K = 1, length, heads, head_dim
  codes = kind == 'int8'
  out = 'bfloat16' if codes else kind

  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)

  def scales(*shape):
    return array('float32', *shape) if codes else None

  keywords = {
    'window': window,
    'scale': K**-0.5,
    'implementation': 'pallas_tpu',
  }

  def run(arrays, visibility, results, cotangents, scales):
    keywords.update(scales)
    return (
      api.forward(*arrays, *visibility, **keywords),
      api.backward(*arrays, *visibility, *results, *cotangents, **keywords),
    )

  vectors = array(out, B, L, H, K), array('float32', B, L, H)
  return run, (
    [array(kind, B, L, H, K), array(kind, B, L, K), array(kind, B, L, K)],
    [array('int32', B, L)] * 5,
    vectors,
    vectors,
    {
      'q_scale_BLH': scales(B, L, H),
      'k_scale': scales(B, L),
      'v_scale': scales(B, L),
    },
  )


def kernels_alone(*shape):
  """Returns a jit of a layer's kernels without what XLA does around them.

  What the compiler writes out of each of XLA's own takes most of the time.
  """
  run, structs = _layer(*shape)
  calls = []

  def march(body, *arrays, outputs, **keywords):
    arrays = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays
    )
    calls.append((body, arrays, outputs, keywords))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)

  with (
    dispatch.compiling_for('tpu'),
    mock.patch.object(tpu_march, 'march', march),
  ):
    jax.eval_shape(run, *structs)

  def all_of_them(*operands):
    return [
      tpu_march.march(body, *arrays, outputs=outputs, **keywords)
      for (body, _, outputs, keywords), arrays in zip(calls, operands)
    ]

  return jax.jit(all_of_them), [arrays for _, arrays, _, _ in calls]


def _build(chip, run, structs):
  """Compiles a program for one device."""
  try:
    device = aot.devices(tpu_gpu_configs.load(chip))[0]
  except aot.MissingPlugin as error:
    pytest.skip(str(error))
  here = jax.sharding.SingleDeviceSharding(device)
  with dispatch.compiling_for('tpu'):
    return aot.build(
      run,
      jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), structs
      ),
    )


@pytest.mark.parametrize(
  ('chip', 'heads', 'window', 'kind'),
  EVERY if os.environ.get('EVERY_SHAPE') else SOME,
)
def test_matrix_instructions(chip, heads, window, kind):
  counts = compiled.tpu(
    functools.partial(kernels_alone, heads, window, kind), chip
  )
  counts = {name: count for name, count in counts.items() if count}
  assert counts.keys() == _KERNELS
  for count in counts.values():
    # PV and what the backward pass adds are in bfloat16, QKᵀ is as its codes.
    assert count['vmatmul bf16'] > 0
    assert (count['vmatmul s8'] > 0) == (kind == 'int8')
    assert count['vmatmul f32'] == 0


def test_a_whole_pass_is_linear_in_length():
  run, structs = _layer(12, 1024, 'bfloat16')
  program = _build('v5p_128', jax.jit(run), structs)
  # Of queries by keys, one bit each would be 128 MiB, and 12 heads' logits
  # 48 GiB. What XLA cuts and pads is a few times the operands.
  operands = 4 * _LENGTH * 12 * 128 * 2
  assert program.memory.temporary < 2 * operands


def test_other_shapes_compile():
  for heads, kind, head_dim, length in (
    (1, 'float32', 64, 1000),
    (96, 'int8', 64, 100),
    (3, 'float32', 256, 2048),
  ):
    jitted, structs = kernels_alone(heads, 300, kind, head_dim, length)
    _build('v5e_256', jitted, structs)


def test_blocks_too_large_for_vector_memory_are_an_error():
  with blocks.trying(blocks.TpuTiles(4096, 128), 'tpu'):
    jitted, structs = kernels_alone(5, 1024, 'bfloat16')
  with pytest.raises(jax.errors.JaxRuntimeError, match='vmem'):
    _build('v5e_256', jitted, structs)

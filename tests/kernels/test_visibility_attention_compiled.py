"""The kernels as their compilers leave them, at the presets' own shapes.

A kernel that agrees with its reference in interpret mode may still spill its
registers, or multiply without the matrix unit. Heads are those of one device
where the presets' meshes split them.
"""

import contextlib

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.model import presets
from tests import compiled

GPU_KERNELS = [
  f'visibility_attention_{kind}' for kind in ('forward', 'dq', 'dkv')
]


def _arguments(preset, coded):
  """(arrays, scales, cotangents) of one row of a preset's full length."""
  config = presets.preset(preset)
  L, K = config.max_length, config.head_dim
  H = config.num_heads // presets.MESHES[preset][1]
  shape = jax.ShapeDtypeStruct
  out_BLHK = shape((1, L, H, K), jnp.bfloat16)
  lse_BLH = shape((1, L, H), jnp.float32)
  scale_BM = shape((1, L), jnp.float32)
  dtype = jnp.int8 if coded else jnp.bfloat16
  arrays = [shape((1, L, *rest), dtype) for rest in ((H, K), (K,), (K,))]
  arrays += [shape((1, L), jnp.int32)] * 5
  scales = {'q_scale_BLH': lse_BLH, 'k_scale': scale_BM, 'v_scale': scale_BM}
  cotangents = [out_BLHK, lse_BLH] * 2
  return arrays, scales if coded else {}, cotangents


def _step(window, scale, implementation):
  """A fresh jit: what was traced for another platform stays so."""
  keywords = {
    'window': window,
    'scale': scale,
    'implementation': implementation,
  }

  @jax.jit
  def forward_and_backward(arrays, scales, cotangents):
    return (
      api.forward(*arrays, **keywords, **scales),
      api.backward(*arrays, *cotangents, **keywords, **scales),
    )

  return forward_and_backward


def _check_gpu(arguments, window, tiles=None):
  """Fails where a kernel spills, or does not feed the matrix unit."""
  trying = contextlib.nullcontext() if tiles is None else blocks.trying(tiles)
  with dispatch.compiling_for('gpu'), trying:
    step = _step(window, 128**-0.5, None)
    kernels = compiled.gpu(step, *arguments)
  coded = bool(arguments[1])
  for name in GPU_KERNELS:
    kernel = kernels[name]
    assert kernel.spill_stores == 0, (name, kernel)
    assert kernel.instructions['wgmma bf16'] > 0, (name, kernel)
    assert (kernel.instructions['wgmma s8'] > 0) == coded, (name, kernel)
    # Beside a wgmma, a product of single warps would be a tile too small.
    assert not any(key.startswith('mma') for key in kernel.instructions)


@pytest.mark.parametrize(
  ('preset', 'coded', 'window'),
  [
    ('13b', False, 1024),
    ('34b', True, None),
    ('110b', False, None),
    ('110b', True, 1024),
  ],
)
def test_gpu_kernels_use_the_matrix_unit_and_do_not_spill(
  preset, coded, window
):
  _check_gpu(_arguments(preset, coded), window)


def test_tiles_too_large_for_their_warps_are_noticed():
  with pytest.raises(AssertionError, match='spill_stores'):
    _check_gpu(_arguments('110b', False), 1024, blocks.Tiles(128, 128, 4, 2))

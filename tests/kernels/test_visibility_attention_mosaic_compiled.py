"""The Mosaic GPU kernel as H100's compiler leaves it, at the presets' shapes.

Heads are those of one device where the presets' meshes split them.
"""

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.model import presets
from tests import compiled

pytestmark = pytest.mark.aot


def _kernel(preset, coded, window):
  """Compiles one row of a preset's full length."""
  config = presets.preset(preset)
  L, K = config.max_length, config.head_dim
  H = config.num_heads // presets.MESHES[preset][1]
  shape = jax.ShapeDtypeStruct
  dtype = jnp.int8 if coded else jnp.bfloat16
  arrays = [shape((1, L, *rest), dtype) for rest in ((H, K), (K,), (K,))]
  arrays += [shape((1, L), jnp.int32)] * 5
  scale_BM = shape((1, L), jnp.float32)
  scales = {
    'q_scale_BLH': shape((1, L, H), jnp.float32),
    'k_scale': scale_BM,
    'v_scale': scale_BM,
  }

  def run(arrays, scales):
    return api.forward(
      *arrays,
      window=window,
      scale=128**-0.5,
      implementation='mosaic_gpu',
      **scales,
    )

  with dispatch.compiling_for('gpu'):
    kernels = compiled.gpu(jax.jit(run), arrays, scales if coded else {})
  return kernels['visibility_attention_forward_mosaic_gpu_kernel']


def _check(preset, coded, window):
  kernel = _kernel(preset, coded, window)
  # Two loops, with a mask and without. K is 128: in each, QKᵀ contracts 16
  # bfloat16 or 32 bytes an instruction, and PV the block's 128 keys by 16.
  assert kernel.instructions == (
    {'wgmma s8': 2 * 4, 'wgmma bf16': 2 * 8}
    if coded
    else {'wgmma bf16': 2 * (8 + 8)}
  )
  # Of 65,536 for three warpgroups, which the kernel then deals out anew.
  assert kernel.registers <= 65536 // 384
  assert kernel.spill_stores == kernel.spill_loads == 0, kernel


@pytest.mark.parametrize(
  ('preset', 'coded', 'window'),
  [
    ('110b', True, 1024),
    pytest.param('13b', False, 1024, marks=pytest.mark.full),
    pytest.param('34b', True, None, marks=pytest.mark.full),
    pytest.param('110b', False, None, marks=pytest.mark.full),
  ],
)
def test_it_multiplies_in_the_matrix_unit_and_does_not_spill(
  preset, coded, window
):
  _check(preset, coded, window)


@pytest.mark.full
def test_a_block_too_large_is_noticed():
  with blocks.trying(blocks.MosaicTiles(keys=256, stages=1)):
    kernel = _kernel('110b', False, 1024)
  assert kernel.spill_stores > 0

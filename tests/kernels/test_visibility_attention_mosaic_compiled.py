"""The Mosaic GPU kernel as H100's compiler leaves it, at the presets' shapes.

Heads are those of one device where the presets' meshes split them.
"""

import jax
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from tests import compiled
from tests.kernels import attention_compiled

pytestmark = pytest.mark.aot


def _kernel(preset, coded, window):
  """Compiles one row of a preset's full length."""
  arrays, scales, _ = attention_compiled.arguments(preset, coded)

  def run(arrays, scales):
    return api.forward(
      *arrays,
      window=window,
      scale=128**-0.5,
      implementation='mosaic_gpu',
      **scales,
    )

  with dispatch.compiling_for('gpu'):
    kernels = compiled.gpu(jax.jit(run), arrays, scales)
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

"""The kernels as their compilers leave them, at the presets' own shapes.

A kernel that agrees with its reference in interpret mode may still spill its
registers, or multiply without the matrix unit. Heads are those of one device
where the presets' meshes split them.
"""

import jax
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from tests import compiled
from tests.kernels import attention_compiled

pytestmark = pytest.mark.aot


def _gpu_kernels(preset, coded, window, kinds):
  """Compiles a fresh jit: what was traced for another platform stays so."""
  arrays, scales, cotangents = attention_compiled.arguments(preset, coded)
  keywords = {'window': window, 'scale': 128**-0.5}

  def run(arrays, scales, cotangents):
    results = [api.forward(*arrays, **keywords, **scales)]
    if 'dq' in kinds:
      results += api.backward(*arrays, *cotangents, **keywords, **scales)
    return results

  with dispatch.compiling_for('gpu'):
    kernels = compiled.gpu(jax.jit(run), arrays, scales, cotangents)
  return [kernels[f'visibility_attention_{kind}'] for kind in kinds]


def _check_gpu(preset, coded, window, kinds):
  """Fails where a kernel spills, or does not feed the matrix unit."""
  for kernel in _gpu_kernels(preset, coded, window, kinds):
    assert kernel.spill_stores == 0, kernel
    assert kernel.instructions['wgmma bf16'] > 0, kernel
    assert (kernel.instructions['wgmma s8'] > 0) == coded, kernel
    # An mma is a single warp's: its tile would be too small for a wgmma.
    assert not any(name.startswith('mma') for name in kernel.instructions)


@pytest.mark.parametrize(
  ('preset', 'coded', 'window'),
  [
    ('13b', False, 1024),
    ('110b', True, None),
    pytest.param('34b', True, None, marks=pytest.mark.full),
    pytest.param('110b', False, None, marks=pytest.mark.full),
    pytest.param('110b', True, 1024, marks=pytest.mark.full),
  ],
)
def test_gpu_kernels_use_the_matrix_unit_and_do_not_spill(
  preset, coded, window
):
  _check_gpu(preset, coded, window, blocks.GPU_KINDS)


@pytest.mark.full
@pytest.mark.parametrize('window', [None, 1024])
def test_values_may_be_codes_within_the_kernel(window):
  with blocks.trying(blocks.Values(0)):
    _check_gpu('110b', True, window, ['forward'])


@pytest.mark.full
def test_a_tile_too_large_for_its_warps_is_noticed():
  with (
    blocks.trying(blocks.Tiles(128, 128, 4, 2), 'forward'),
    pytest.raises(AssertionError, match='spill_stores'),
  ):
    _check_gpu('110b', False, 1024, ['forward'])

"""The kernel in Triton itself, as Triton leaves it for an H100."""

import contextlib

import jax
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from tests import compiled
from tests.kernels import attention_compiled

pytestmark = pytest.mark.aot


def _kernel(preset, coded, window, tiles=None):
  pytest.importorskip('triton')
  pytest.importorskip('jax_triton', exc_type=ImportError)
  arrays, scales, _ = attention_compiled.arguments(preset, coded)

  def forward(arrays, scales):
    return api.forward(
      *arrays,
      window=window,
      scale=128**-0.5,
      implementation='triton_kernel',
      **scales,
    )

  trying = contextlib.nullcontext() if tiles is None else blocks.trying(tiles)
  with dispatch.compiling_for('gpu'), trying:
    kernels = compiled.gpu(jax.jit(forward), arrays, scales)
  return kernels['visibility_attention_forward']


@pytest.mark.parametrize(
  ('preset', 'coded', 'window'),
  [
    ('110b', True, 1024),
    pytest.param('13b', False, 1024, marks=pytest.mark.full),
    pytest.param('34b', True, None, marks=pytest.mark.full),
  ],
)
def test_it_uses_the_matrix_unit_and_does_not_spill(preset, coded, window):
  kernel = _kernel(preset, coded, window)
  assert kernel.spill_stores == kernel.spill_loads == 0
  assert kernel.instructions['wgmma bf16'] > 0
  assert (kernel.instructions['wgmma s8'] > 0) == coded
  assert not any(name.startswith('mma') for name in kernel.instructions)


@pytest.mark.full
def test_tiles_too_large_for_their_warps_spill():
  kernel = _kernel('110b', False, 1024, blocks.Tiles(128, 128, 4, 2))
  assert kernel.spill_stores > 0

"""The kernels as their compilers leave them, at the presets' own shapes.

A kernel that agrees with its reference in interpret mode may still spill its
registers, or multiply without the matrix unit. Heads are those of one device
where the presets' meshes split them.
"""

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.model import presets
from tests import compiled

pytestmark = pytest.mark.aot

TRITON, MOSAIC = 'triton_kernel', 'mosaic_gpu'
# What an implementation's forward kernel is called, after the function's name.
_SUFFIXES = {TRITON: '', MOSAIC: '_mosaic_gpu_kernel'}


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


def _kernels(preset, coded, window, kinds, implementation=None):
  """Compiles a fresh jit: what was traced for another platform stays so."""
  arrays, scales, cotangents = _arguments(preset, coded)
  keywords = {
    'window': window,
    'scale': 128**-0.5,
    'implementation': implementation,
  }

  def run(arrays, scales, cotangents):
    results = [api.forward(*arrays, **keywords, **scales)]
    if 'dq' in kinds:
      results += api.backward(*arrays, *cotangents, **keywords, **scales)
    return results

  with dispatch.compiling_for('gpu'):
    kernels = compiled.gpu(jax.jit(run), arrays, scales, cotangents)
  suffix = _SUFFIXES.get(implementation, '')
  return [kernels[f'visibility_attention_{kind}{suffix}'] for kind in kinds]


def _forward(preset, coded, window, implementation):
  """Returns the forward kernel of one implementation."""
  if implementation == TRITON:
    pytest.importorskip('triton')
    pytest.importorskip('jax_triton', exc_type=ImportError)
  (kernel,) = _kernels(preset, coded, window, ['forward'], implementation)
  return kernel


def _check(kernel, coded):
  """Fails where a kernel spills, or does not feed the matrix unit."""
  assert kernel.spill_stores == kernel.spill_loads == 0, kernel
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
  for kernel in _kernels(preset, coded, window, blocks.GPU_KINDS):
    _check(kernel, coded)


@pytest.mark.full
@pytest.mark.parametrize('window', [None, 1024])
def test_values_may_be_codes_within_the_kernel(window):
  with tuned.trying(blocks.Values(0)):
    (kernel,) = _kernels('110b', True, window, ['forward'])
  _check(kernel, coded=True)


@pytest.mark.parametrize(
  ('preset', 'coded', 'window'),
  [
    ('110b', True, 1024),
    pytest.param('13b', False, 1024, marks=pytest.mark.full),
    pytest.param('34b', True, None, marks=pytest.mark.full),
    pytest.param('110b', False, None, marks=pytest.mark.full),
  ],
)
@pytest.mark.parametrize('implementation', [TRITON, MOSAIC])
def test_other_kernels_use_it_and_do_not_spill(
  preset, coded, window, implementation
):
  kernel = _forward(preset, coded, window, implementation)
  _check(kernel, coded)
  if implementation == MOSAIC:
    # Two loops, with a mask and without. K is 128: in each, QKᵀ contracts 16
    # bfloat16 or 32 bytes an instruction, and PV the block's 128 keys by 16.
    assert kernel.instructions == (
      {'wgmma s8': 2 * 4, 'wgmma bf16': 2 * 8}
      if coded
      else {'wgmma bf16': 2 * (8 + 8)}
    )
    # Of 65,536 for three warpgroups, which the kernel then deals out anew.
    assert kernel.registers <= 65536 // 384


@pytest.mark.full
@pytest.mark.parametrize(
  ('implementation', 'window', 'sizes'),
  [
    (None, 1024, blocks.Tiles(128, 128, 4, 2)),
    (TRITON, 1024, blocks.Tiles(128, 128, 4, 2)),
    (MOSAIC, None, blocks.MosaicTiles(keys=256, stages=1)),
  ],
)
def test_blocks_too_large_for_their_warps_spill(implementation, window, sizes):
  with tuned.trying(sizes):
    kernel = _forward('110b', False, window, implementation)
  assert kernel.spill_stores > 0
  with pytest.raises(AssertionError):
    _check(kernel, coded=False)

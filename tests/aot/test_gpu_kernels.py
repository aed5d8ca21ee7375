"""Registers, spills and instructions of GPU kernels that were not run."""

import os

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.aot import devices
from kaiju_jax.aot import gpu_kernels
from kaiju_jax.aot import ptx
from tests import compiled
from tests.aot import dots


def _triton(size, dtype, contracted=64, warps=4):
  triton = pytest.importorskip('jax.experimental.pallas.triton')
  parameters = triton.CompilerParams(num_warps=warps, num_stages=2)
  return dots.call(size, dtype, contracted, compiler_params=parameters)


@pytest.mark.parametrize(
  ('dtype', 'expected'),
  # An instruction takes 64 rows of a warp group and 32 bytes of each.
  [('bfloat16', {'wgmma bf16': 4}), ('int8', {'wgmma s8': 2})],
)
@pytest.mark.aot
def test_a_tile_of_triton(dtype, expected):
  jitted, operands = _triton(64, dtype)
  kernel = compiled.gpu(jitted, *operands)['one_dot']
  assert kernel.instructions == expected
  assert kernel.instructions['mma s8'] == 0
  assert kernel.spill_stores == kernel.spill_loads == 0
  # The sum alone takes 64 · 64 / 128 = 32 registers per thread.
  assert 32 < kernel.registers <= 255
  # At least one operand is in shared memory for the tensor cores.
  assert kernel.shared_memory >= 64 * 64


@pytest.mark.aot
def test_small_tiles_use_the_instruction_of_one_warp():
  jitted, operands = _triton(16, 'bfloat16')
  kernel = compiled.gpu(jitted, *operands)['one_dot']
  assert kernel.instructions['mma bf16'] > 0
  assert kernel.instructions['wgmma bf16'] == 0


@pytest.mark.aot
def test_a_block_too_large_spills():
  # The sum needs 128 · 128 / 32 = 512 registers per thread; there are 255.
  jitted, operands = _triton(128, 'bfloat16', warps=1)
  kernel = compiled.gpu(jitted, *operands)['one_dot']
  assert kernel.registers == 255
  assert kernel.spill_stores > 0
  assert kernel.spill_loads > 0


@pytest.mark.aot
def test_more_shared_memory_than_there_is_is_an_error():
  jitted, operands = _triton(256, 'bfloat16', contracted=256)
  with pytest.raises(jax.errors.JaxRuntimeError, match='Shared memory size'):
    compiled.gpu(jitted, *operands)


@pytest.mark.aot
def test_a_plain_jit_has_xlas_kernels():
  x = jax.ShapeDtypeStruct((128, 128), jnp.float32)
  kernels = compiled.gpu(jax.jit(lambda x: jnp.sin(x) + 1), x)
  assert len(kernels) == 1
  (kernel,) = kernels.values()
  assert not kernel.instructions


def _mosaic(a_LK, b_KV):
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import mosaic_gpu

  transforms = (
    mosaic_gpu.TilingTransform((8, 64)),
    mosaic_gpu.SwizzleTransform(128),
  )

  def mosaic_dot(a_LK, b_KV, out_LV, a_smem, b_smem, arrived):
    mosaic_gpu.copy_gmem_to_smem(a_LK, a_smem, arrived)
    mosaic_gpu.copy_gmem_to_smem(b_KV, b_smem, arrived)
    mosaic_gpu.barrier_wait(arrived)

    def summed(sum_ref):
      mosaic_gpu.wgmma(sum_ref, a_smem, b_smem)
      return sum_ref[...]

    out_LV[...] = pl.run_scoped(summed, mosaic_gpu.ACC((64, 64), jnp.float32))

  tile = mosaic_gpu.SMEM((64, 64), jnp.bfloat16, transforms=transforms)
  return mosaic_gpu.kernel(
    mosaic_dot,
    out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
    scratch_types=[tile, tile, mosaic_gpu.Barrier(num_arrivals=2)],
  )(a_LK, b_KV)


@pytest.mark.aot
def test_mosaic_gpu_and_its_memory():
  x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
  kernels = compiled.gpu(jax.jit(lambda a, b: _mosaic(a, b)), x, x)
  kernel = kernels['mosaic_dot_mosaic_gpu_kernel']
  assert kernel.instructions == {'wgmma bf16': 4}
  assert kernel.spill_stores == 0
  assert 32 < kernel.registers <= 255
  with pytest.raises(RuntimeError, match='was compiled before'):
    compiled.gpu(jax.jit(lambda a, b: _mosaic(a, b)), x, x)


def test_a_missing_assembler_is_named(monkeypatch):
  monkeypatch.setattr(ptx, '_places', lambda package: ())
  monkeypatch.setenv('PATH', '')
  ptx.ptxas.cache_clear()
  with pytest.raises(devices.MissingPlugin, match='nvidia-cuda-nvcc-cu12'):
    ptx.ptxas()


@pytest.mark.aot
def test_the_environment_is_restored(monkeypatch):
  monkeypatch.setenv('MOSAIC_GPU_DUMP_TO', 'before')
  x = jax.ShapeDtypeStruct((8,), jnp.float32)
  compiled.gpu(jax.jit(jnp.sin), x)
  assert os.environ['MOSAIC_GPU_DUMP_TO'] == 'before'
  monkeypatch.delenv('MOSAIC_GPU_DUMP_TO')
  compiled.gpu(jax.jit(jnp.sin), x)
  assert 'MOSAIC_GPU_DUMP_TO' not in os.environ


def test_another_platform_is_refused():
  jitted, operands = dots.call(64, 'bfloat16')
  with pytest.raises(ValueError, match="'cpu_8' is a cpu: expected a gpu"):
    gpu_kernels.read(jitted, operands, 'cpu_8')

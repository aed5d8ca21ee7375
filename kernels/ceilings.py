"""Measures the best rates of this device, in the run that is compared to them.

    least seconds = max(operations / matmul, bytes / copy)

No program reaches a data sheet's figures. A large matmul and a large copy show
what a kernel can reach on this very device, with its clock and its cooling.
Values are random, because a matmul of zeros draws less power and runs faster.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing


class Ceilings(NamedTuple):
  """Rates of the default device.

  Attributes:
    bf16_matmul: operations/s, two per multiply-add, summed in float32.
    int8_matmul: the same for int8, summed in int32.
    copy: bytes/s, read and written.
  """

  bf16_matmul: float
  int8_matmul: float
  copy: float


def measure(
  size: int | None = None, mebibytes: int | None = None, repeats: int = 9
) -> Ceilings:
  """Returns the ceilings of the default device.

  Args:
    size: rows and columns of the matmuls; 8192, or 512 on a CPU.
    mebibytes: size of the array that is copied; 1024, or 16 on a CPU.
    repeats: rounds, each timing everything once.
  """
  on_cpu = dispatch.platform() == 'cpu'
  size = size or (512 if on_cpu else 8192)
  mebibytes = mebibytes or (16 if on_cpu else 1024)
  a_LK, b_VK = _operands(size)
  codes_LK, codes_VK = (jnp.clip(32 * x, -127, 127) for x in (a_LK, b_VK))
  copied = jnp.ones(mebibytes * 2**20 // 4, jnp.float32)
  runs = {
    'bf16_matmul': _matmul(jnp.bfloat16, jnp.float32, a_LK, b_VK),
    'int8_matmul': _matmul(jnp.int8, jnp.int32, codes_LK, codes_VK),
    'copy': functools.partial(jax.jit(jnp.copy), copied),
  }
  seconds = timing.medians(runs, repeats, calls=1 if on_cpu else 4)
  amounts = {
    'bf16_matmul': 2 * size**3,
    'int8_matmul': 2 * size**3,
    'copy': 2 * copied.nbytes,
  }
  return Ceilings(**{name: amounts[name] / seconds[name] for name in runs})


def _operands(size: int):
  keys = jax.random.split(jax.random.key(0))
  return [jax.random.normal(key, (size, size), jnp.bfloat16) for key in keys]


def _matmul(dtype, total, *operands):
  # int8 tensor cores take both operands with the contracted dimension last.
  run = jax.jit(
    lambda a_LK, b_VK: jnp.einsum(
      'LK,VK->LV', a_LK, b_VK, preferred_element_type=total
    )
  )
  return functools.partial(run, *(x.astype(dtype) for x in operands))

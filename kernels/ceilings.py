"""Measures the best rates of this device, in the run that is compared to them.

    least seconds = max(operations / matmul, bytes / copy)

No program reaches a data sheet's figures. A large matmul and a large copy show
what a kernel can reach on this very device, with its clock and its cooling.
Values are random, because a matmul of zeros draws less power and runs faster.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing


class Ceilings(NamedTuple):
  """Rates of the default device."""

  bf16_matmul: float  # operations/s, two per multiply-add, summed in float32.
  int8_matmul: float  # The same for int8, summed in int32.
  copy: float  # bytes/s, read and written.


def measure(
  size: int | None = None, mebibytes: int | None = None, repeats: int = 9
) -> Ceilings:
  """Returns the ceilings of the default device.

  Args:
    size: rows and columns of the matmuls; 8192, or 512 on a CPU.
    mebibytes: size of the array that is copied; 1024, or 16 on a CPU.
    repeats: rounds, each timing everything once.
  """
  found = spreads(size, mebibytes, repeats)
  return Ceilings(**{name: each.median for name, each in found.items()})


def spreads(
  size: int | None = None, mebibytes: int | None = None, repeats: int = 9
) -> dict[str, timing.Spread]:
  """Returns the rates of all rounds, by the fields of `Ceilings`.

  Args:
    size: as for `measure`.
    mebibytes: as for `measure`.
    repeats: as for `measure`.
  """
  on_cpu = dispatch.platform() == 'cpu'
  size = size or (512 if on_cpu else 8192)
  mebibytes = mebibytes or (16 if on_cpu else 1024)
  made = {
    name: (jitted, make())
    for name, (jitted, make) in programs(size, mebibytes).items()
  }
  runs = {
    name: functools.partial(jitted, *operands)
    for name, (jitted, operands) in made.items()
  }
  times = timing.spreads(runs, repeats, calls=1 if on_cpu else 4)
  amounts = {
    'bf16_matmul': 2 * size**3,
    'int8_matmul': 2 * size**3,
    'copy': 2 * mebibytes * 2**20,
  }
  return {
    name: timing.Spread(
      amounts[name] / times[name].median,
      amounts[name] / times[name].most,
      amounts[name] / times[name].least,
      times[name].rounds,
    )
    for name in runs
  }


def programs(
  size: int, mebibytes: int
) -> dict[str, tuple[Any, Callable[[], tuple[jax.Array, ...]]]]:
  """Returns the jitted functions, each with a function that makes its operands.

  Args:
    size: as for `measure`.
    mebibytes: as for `measure`.
  """

  def values():
    keys = jax.random.split(jax.random.key(0))
    return [jax.random.normal(key, (size, size), jnp.bfloat16) for key in keys]

  def codes():
    return [jnp.clip(32 * x, -127, 127).astype(jnp.int8) for x in values()]

  def copied():
    return (jnp.ones(mebibytes * 2**20 // 4, jnp.float32),)

  return {
    'bf16_matmul': (_matmul(jnp.float32), values),
    'int8_matmul': (_matmul(jnp.int32), codes),
    'copy': (jax.jit(jnp.copy), copied),
  }


def _matmul(total):
  # int8 tensor cores take both operands with the contracted dimension last.
  return jax.jit(
    lambda a_LK, b_VK: jnp.einsum(
      'LK,VK->LV', a_LK, b_VK, preferred_element_type=total
    )
  )

"""How fast is int8 against bf16 and XLA's s8 product?"""

from collections.abc import Callable
import functools
from typing import Any

import jax

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import api
from kaiju_jax.kernels.int8_matmul import bench
from kaiju_jax.kernels.int8_matmul import blocks

from . import benches
from . import setting as setting_lib

_FIRST = '110b w_in', '110b w_out', '13b w_in', '13b w_out', '13b w_q'
_TINY = bench.Shape(32, 64, 128, 'first')


def _default(shape) -> str:
  del shape
  return blocks.implementation()


measure = functools.partial(benches.measure, bench, _default)


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, dict[str, bench.Shape]]]:
  """Returns the presets' products."""
  return benches.cases(setting, bench.SHAPES, _FIRST, 10, _TINY)


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns each product of each implementation, and XLA's."""
  del device
  names = dispatch.list_kernels(api.RUNS_ON, dispatch.platform())
  found = {}
  for label, (_, case) in cases(setting).items():
    (shape,) = case.values()
    for kernel in bench.KERNELS:
      for name in names:
        found[f'{label}: {kernel}, {name}'] = functools.partial(
          _ours, kernel, shape, name
        )
  return found


def _ours(kernel, shape, name):
  run = functools.partial(bench.ours, kernel, shape, name)
  return jax.jit(run), (jax.eval_shape(lambda: bench.operands(shape)),)

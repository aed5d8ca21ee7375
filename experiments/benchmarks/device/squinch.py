"""How near does the codec come to a copy?"""

from collections.abc import Callable
import functools
from typing import Any

import jax

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.squinch import api
from kaiju_jax.kernels.squinch import bench
from kaiju_jax.kernels.squinch import blocks

from . import benches
from . import setting as setting_lib

_FIRST = '13b hidden', '110b hidden', '34b hidden', '13b keys'
_TINY = bench.Shape(2, 64, 64)


def _default(shape) -> str:
  groups = shape.rows // (8 * shape.parts)
  return blocks.implementation(
    dispatch.platform(), shape.parts, groups, shape.columns
  )


measure = functools.partial(benches.measure, bench, _default)


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, dict[str, bench.Shape]]]:
  """Returns the presets' gradients."""
  return benches.cases(setting, bench.SHAPES, _FIRST, 5, _TINY)


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns both directions of each implementation."""
  del device
  here = dispatch.platform()
  found = {}
  for label, (_, case) in cases(setting).items():
    (shape,) = case.values()
    for kernel in bench.KERNELS:
      for name, places in api.RUNS_ON.items():
        if here in places:
          found[f'{label}: {kernel}, {name}'] = functools.partial(
            _program, kernel, shape, name
          )
  return found


def _program(kernel, shape, name):
  run = functools.partial(bench.KERNELS[kernel], shape, implementation=name)
  return jax.jit(run), (jax.eval_shape(lambda: bench.operands(shape)),)

"""How near does a decoding step come to one read of the cache?"""

from collections.abc import Callable
import functools
from typing import Any

import jax

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import bench
from kaiju_jax.kernels.paged_decode import blocks

from . import benches
from . import setting as setting_lib

_FIRST = (
  '110b/8, 32 × 32k',
  '13b/8, 64 × 16k',
  '110b/8, 64 rings, window 1024',
  '110b/8, 1 × 128k',
  '110b/8, 16 × 32k, 8 beams',
)
_TINY = bench.Shape(heads=2, batch=2, context=64, slots=32)


def _default(shape) -> str:
  return blocks.implementation(
    dispatch.platform(), bench.block_shape(shape, 'int8')
  )


measure = functools.partial(benches.measure, bench, _default)


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, dict[str, bench.Shape]]]:
  """Returns the presets' steps."""
  return benches.cases(setting, bench.SHAPES, _FIRST, 12, _TINY)


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns the kernel of each step with both caches."""
  del device
  found = {}
  for label, (_, case) in cases(setting).items():
    (shape,) = case.values()
    for cache in bench.CACHES:
      found[f'{label}: {cache}'] = functools.partial(_kernel, shape, cache)
  return found


def _kernel(shape, cache):
  where = bench.layout(shape)
  own = blocks.implementation(
    dispatch.platform(), bench.block_shape(shape, cache)
  )

  def run(arrays, where):
    # The plan, which layers share, is made within.
    return bench.step(shape, own)(**arrays, **where)

  arrays = jax.eval_shape(lambda: bench.operands(shape, where, cache))
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), where._asdict()
  )
  return jax.jit(run), (arrays, abstract)

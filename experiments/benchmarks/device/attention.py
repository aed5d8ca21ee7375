"""How fast is attention against cuDNN and XLA, and half-int8 against bf16?"""

from collections.abc import Callable
import functools
from typing import Any

import jax

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import bench
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import peers
from kaiju_jax.kernels.visibility_attention import shapes

from . import benches
from . import setting as setting_lib

_FIRST = (
  '110b, window',
  '110b, window, int8',
  '110b, all',
  '110b, all, int8',
  '250m, window',
  '15m, all',
)
_TINY = shapes.Shape(48, 2, 32, window=20)


def _default(shape) -> str:
  return blocks.implementation(
    dispatch.platform(), shape.length, shape.length, shape.head_dim
  )


measure = functools.partial(benches.measure, bench, _default)


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, dict[str, shapes.Shape]]]:
  """Returns the shapes; each times both passes of all contenders."""
  return benches.cases(setting, shapes.SHAPES, _FIRST, 25, _TINY)


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns both passes of our kernels and of cuDNN, at every shape."""
  del device
  found = {}
  for name, (_, case) in cases(setting).items():
    (shape,) = case.values()
    here = dispatch.platform()
    kernels = [
      kernel
      for kernel, places in api.RUNS_ON.items()
      if here in places and places != dispatch.ANYWHERE
    ]
    for kernel in kernels:
      found[f'{name}: {kernel}'] = functools.partial(_ours, shape, kernel)
    if here == 'gpu' and shape.rows == 'causal':
      found[f'{name}: cudnn'] = functools.partial(_cudnn, shape)
  return found


def _ours(shape, implementation):
  forward, backward = bench.calls(shape, implementation)

  def run(arrays, scales, dout_BLHK, dlse_BLH):
    results = forward(arrays, scales)
    cotangents = *results, dout_BLHK, dlse_BLH
    return results, backward(arrays, scales, cotangents)

  return jax.jit(run), jax.eval_shape(lambda: bench.operands(shape))


def _cudnn(shape):
  arrays, _, dout_BLHK, _ = jax.eval_shape(
    lambda: bench.operands(shape._replace(coded=False))
  )
  attend = peers.attention(shape, 'cudnn', masked=False)

  def run(arrays, dout_BLHK):
    out_BLHK, pull = jax.vjp(attend, *arrays)
    return out_BLHK, pull(dout_BLHK)

  return jax.jit(run), (tuple(arrays), dout_BLHK)

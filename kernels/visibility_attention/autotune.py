"""Candidates of blocks, for the largest preset with and without a window.

`benchmarks.device --slices=autotune` searches them, in bfloat16 and half-int8,
and writes `tuned.json` beside this file, where `blocks.py` reads the winners.
On a GPU each kernel is tuned alone: while the search tries blocks for dq, dk
and dv keep theirs. On a TPU all kernels share their blocks.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import importlib.util
import itertools
from typing import Any

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import bench
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import shapes

_NAMES = '110b, all', '110b, all, int8', '110b, window', '110b, window, int8'
SHAPES = {name: shapes.SHAPES[name] for name in _NAMES}
TPU = 'tpu'
_IMPLEMENTATIONS = {
  **dict.fromkeys(blocks.GPU_KINDS, 'pallas_gpu'),
  blocks.TRITON: 'triton_kernel',
  blocks.MOSAIC: 'mosaic_gpu',
  blocks.VALUES: 'pallas_gpu',
  TPU: 'pallas_tpu',
}
Tried = blocks.Tiles | blocks.TpuTiles | blocks.MosaicTiles | blocks.Values


def kinds(platform: str) -> list[str]:
  """Returns the kernels of a platform that this machine can tune."""
  if platform == 'gpu':
    optional = [blocks.TRITON] if importlib.util.find_spec('jax_triton') else []
    return [*blocks.GPU_KINDS, *optional, blocks.MOSAIC, blocks.VALUES]
  return [TPU] if platform == 'tpu' else []


def candidates(kind: str) -> list[Tried]:
  """Returns blocks to try; leaves out most that registers cannot hold."""
  if kind == TPU:
    return [
      blocks.TpuTiles(rows, keys)
      for rows, keys in itertools.product((384, 768, 1152), (256, 512, 1024))
    ]
  if kind == blocks.VALUES:
    return [blocks.Values(0), blocks.Values(1)]
  if kind == blocks.MOSAIC:
    return [
      blocks.MosaicTiles(keys, stages)
      for keys, stages in ((64, 2), (64, 4), (128, 1), (128, 2))
    ]
  marching = ((64, 4), (64, 8), (128, 8))  # (size, warps)
  if kind == 'dkv':
    sizes = [
      (rows, keys, warps)
      for rows, (keys, warps) in itertools.product((32, 64, 128), marching)
    ]
  else:
    sizes = [
      (rows, keys, warps)
      for keys, (rows, warps) in itertools.product((32, 64, 128), marching)
    ]
  return [
    blocks.Tiles(*size, stages)
    for size, stages in itertools.product(sizes, (2, 3))
  ]


def jobs(named: Mapping[str, shapes.Shape] = SHAPES) -> dict[str, tuned.Job]:
  """Returns the search of every shape and kernel, by the winner's key."""
  found = {}
  platform = dispatch.platform()
  for shape, kind in itertools.product(named.values(), kinds(platform)):
    if kind == blocks.VALUES and not shape.coded:
      continue
    tried = candidates(kind)
    if kind in (*blocks.GPU_KINDS, blocks.TRITON):
      tried = dict.fromkeys([bench.gpu_blocks(shape, kind), *tried])
    found[key_of(shape, kind)] = tuned.Job(
      [each._asdict() for each in tried],
      functools.partial(_prepare, shape, kind),
    )
  return found


def key_of(shape: shapes.Shape, kind: str) -> str:
  """Returns the key of a kernel's winner at a shape."""
  if kind == TPU:
    return blocks.tpu_key(shape.window, shape.heads, shape.head_dim, 2)
  return blocks.gpu_key(kind, shape.window, shape.head_dim, 2, shape.coded)


def _prepare(shape, kind) -> Callable[[tuned.Blocks], Callable[[], Any]]:
  arrays, scales, dout_BLHK, dlse_BLH = bench.operands(shape)
  sizes = {
    TPU: blocks.TpuTiles,
    blocks.VALUES: blocks.Values,
    blocks.MOSAIC: blocks.MosaicTiles,
  }.get(kind, blocks.Tiles)
  forward, backward = bench.calls(shape, _IMPLEMENTATIONS[kind])
  forward = functools.partial(forward, arrays, scales)
  cotangents = *forward(), dout_BLHK, dlse_BLH
  backward = functools.partial(backward, arrays, scales, cotangents)
  call = {
    'dq': backward,
    'dkv': backward,
    TPU: lambda: (forward(), backward()),
  }.get(kind, forward)
  return lambda fields: tuned.bind(call, sizes(**fields), kind)

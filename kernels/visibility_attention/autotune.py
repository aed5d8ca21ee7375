"""Finds the fastest blocks on the GPU at hand, and writes `tuned.json`.

    python -m kaiju_jax.kernels.visibility_attention.autotune [--repeats=5]

At the largest preset's shape, with and without a window, in bfloat16 and in
half-int8; a quarter of an hour. Each kernel is tuned alone: while dq tries, dk
and dv keep their blocks.
"""

from collections.abc import Sequence
import functools
import itertools
import pathlib
import sys

from absl import app
from absl import flags

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import bench
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import shapes

_REPEATS = flags.DEFINE_integer('repeats', 5, 'Rounds.', lower_bound=1)
_SHAPES = '110b, all', '110b, all, int8', '110b, window', '110b, window, int8'


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  if dispatch.platform() != 'gpu':
    here = dispatch.platform()
    sys.exit(f'error: blocks are measured on a GPU, and this is a {here}.')
  for name, kind in itertools.product(_SHAPES, blocks.GPU_KINDS):
    shape = shapes.SHAPES[name]
    found = search(shape, kind, candidates(kind), _REPEATS.value)
    key = blocks.gpu_key(kind, shape.window, shape.head_dim, 2, shape.coded)
    folder = pathlib.Path(__file__).parent
    tuned.write(folder, tuned.device_kind(), key, found)
    print(f'{key}: {found.best}, {1e3 * found.seconds:.3f} ms')


def candidates(kind: str) -> list[dict[str, int]]:
  """Returns blocks to try; most of what registers cannot hold is left out."""
  wide = [(64, 4), (128, 8)]
  if kind == 'dkv':
    pairs = [
      (rows, keys, warps)
      for rows in (32, 64, 128)
      for keys, warps in [*wide, (64, 8)]
    ]
  else:
    pairs = [
      (rows, keys, warps)
      for keys in (32, 64, 128)
      for rows, warps in [*wide, (64, 8)]
    ]
  return [
    blocks.Tiles(*pair, stages)._asdict() for pair in pairs for stages in (2, 3)
  ]


def search(
  shape: shapes.Shape,
  kind: str,
  tried: Sequence[dict[str, int]],
  repeats: int,
) -> tuned.Found:
  """Returns the fastest blocks of one kernel.

  Args:
    shape: at which.
    kind: 'forward', 'dq' or 'dkv'; the latter two within the backward pass.
    tried: fields of `blocks.Tiles`.
    repeats: rounds.
  """
  arrays, scales, dout_BLHK, dlse_BLH = bench.operands(shape)
  results = bench.calls(shape, 'pallas_gpu')[0](arrays, scales)

  def run(fields):
    with blocks.trying(blocks.Tiles(**fields), kind):
      forward, backward = bench.calls(shape, 'pallas_gpu')
      if kind == 'forward':
        call = functools.partial(forward, arrays, scales)
      else:
        cotangents = *results, dout_BLHK, dlse_BLH
        call = functools.partial(backward, arrays, scales, cotangents)
      call()  # Traced here, while the blocks are those to try.
    return call

  return tuned.search(tried, run, repeats)


if __name__ == '__main__':
  app.run(main)

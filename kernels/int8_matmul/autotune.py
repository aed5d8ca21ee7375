"""Candidates of tiles of the s8 product on a GPU, for the benchmark's codes.

`benchmarks.device --slices=autotune` searches them and writes `tuned.json`
beside this file, where `blocks.py` reads the winners. A TPU needs no search:
its blocks are as large as its vector memory allows.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import itertools

import jax

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.int8_matmul import bench
from kaiju_jax.kernels.int8_matmul import blocks


def candidates(shape: bench.Shape) -> list[blocks.Gpu]:
  """Returns the tiles to try, first those that `blocks.gpu` would choose."""
  rule = blocks.gpu(shape.rows, shape.contracted, shape.outputs, shape.contract)
  tried = [
    blocks.Gpu(R, O, C, warps, stages)
    for (R, O), C, warps, stages in itertools.product(
      ((128, 128), (128, 256), (256, 128), (64, 256)),
      (64, 128),
      (4, 8),
      (3, 4),
    )
  ]
  return list(dict.fromkeys([rule, *tried]))


def jobs(
  shapes: Mapping[str, bench.Shape] = bench.SHAPES,
) -> dict[str, tuned.Job]:
  """Returns the search of every shape, by the winner's key."""
  if dispatch.platform() != 'gpu':
    return {}
  return {
    blocks.key(*shape[:4]): tuned.Job(
      [each._asdict() for each in candidates(shape)],
      functools.partial(_prepare, shape),
    )
    for shape in shapes.values()
  }


def _prepare(shape: bench.Shape) -> Callable[[tuned.Blocks], Callable]:
  operands = bench.operands(shape)

  step = functools.partial(bench.ours, 'codes', shape, 'pallas_gpu')
  call = functools.partial(jax.jit(step), operands)
  return lambda candidate: tuned.bind(call, blocks.Gpu(**candidate))

"""Finds the fastest tiles of the s8 product on the GPU at hand.

    python -m kaiju_jax.kernels.int8_matmul.autotune

Each candidate multiplies the benchmark's codes. Winners go to `tuned.json`
beside this file, where `blocks.py` reads them. A TPU needs no search: its
blocks are as large as its vector memory allows.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import itertools
import pathlib
from typing import Any

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


def tune(
  folder: str | pathlib.Path,
  shapes: Mapping[str, bench.Shape] = bench.SHAPES,
  repeats: int = 9,
) -> dict[str, tuned.Found]:
  """Searches for every shape, and writes the winners.

  Args:
    folder: the folder of `tuned.json`.
    shapes: shapes by name.
    repeats: rounds, each timing every candidate once.

  Returns:
    The winners by their keys.

  Raises:
    ValueError: the platform is not a GPU.
  """
  if dispatch.platform() != 'gpu':
    raise ValueError(
      f'{dispatch.platform()} has no tiles of int8_matmul to search: expected'
      ' gpu.'
    )
  found = {}
  for shape in shapes.values():
    name = blocks.key(*shape[:4])
    found[name] = tuned.search(
      [each._asdict() for each in candidates(shape)],
      functools.partial(_run, shape, bench.operands(shape)),
      repeats,
    )
    tuned.write(folder, tuned.device_kind(), name, found[name])
  return found


def _run(
  shape: bench.Shape,
  operands: Mapping[str, jax.Array],
  candidate: tuned.Blocks,
) -> Callable[[], Any]:
  step = jax.jit(functools.partial(bench.ours, 'codes', shape, 'pallas_gpu'))

  def call():
    # The first call traces within the context.
    with blocks.trying(blocks.Gpu(**candidate)):
      return step(operands)

  return call


if __name__ == '__main__':
  tuned.command(tune, pathlib.Path(__file__).parent)

"""Chooses the implementation and the block sizes for a shape."""

from collections.abc import Sequence
import types
from typing import NamedTuple

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned


class Gpu(NamedTuple):
  """A tile of a product [R, C] × [C, O] on a GPU."""

  R: int  # Rows.
  O: int  # Outputs.
  C: int  # Contracted elements per step.
  warps: int  # Warps per program.
  stages: int  # Blocks that are loaded or multiplied at once.
  group: int = 8  # Rows of tiles whose programs run together.


class Rows(NamedTuple):
  """Sizes for quantizing rows: R rows per program, C values at a time."""

  R: int
  C: int
  warps: int
  stages: int = 1


_MULTIPROCESSORS = 132  # On an H100.
# Ordered from large to small. A warp group multiplies 64 rows at once.
_SMALLER = (
  Gpu(128, 128, 128, 8, 4),
  Gpu(64, 128, 128, 4, 4),
  Gpu(64, 64, 128, 4, 4),
)


def implementation() -> str:
  """Returns the default: on a CPU `numba_cpu` if it can be, otherwise `xla`.

  No kernel of ours for an accelerator was measured to be faster.
  """
  return 'numba_cpu' if numba_cpu() else 'xla'


def numba_cpu() -> types.ModuleType | None:
  """Returns the module `numba_cpu`, None for another platform or without it."""
  return dispatch.numba_cpu(__package__)


def key(
  rows: int, contracted: int, outputs: int, contract: str = 'first'
) -> str:
  """Returns the key of an s8 product's measured blocks."""
  return tuned.key(
    rows=rows, contracted=contracted, outputs=outputs, contract=contract
  )


def gpu(
  rows: int, contracted: int, outputs: int, contract: str, width: int = 2
) -> Gpu:
  """Returns the tile of an s8 product whose result has `width` bytes."""
  name = key(rows, contracted, outputs, contract)
  if found := tuned.find(__file__, Gpu, name):
    return found
  # A tile of the weight is transposed once for all rows of a program's tile.
  large = Gpu(256, 128, 128, 8, 3)
  if contract == 'last':
    large = large._replace(R=128, O=256)
  elif width > 2:  # A transposed tile and a float32 result spill registers.
    return _filling(rows, outputs, _SMALLER)
  return _filling(rows, outputs, (large, *_SMALLER))


def gpu_float(rows: int, contracted: int, outputs: int, width: int) -> Gpu:
  """Returns the tile of a product of floats of `width` bytes."""
  if width > 2:  # No tensor core multiplies float32.
    return Gpu(64, 64, 32, 4, 2)
  tiles = (Gpu(128, 128, 64, 8, 3), *(each._replace(C=64) for each in _SMALLER))
  return _filling(rows, outputs, tiles)


def gpu_rows(rows: int, columns: int) -> Rows:
  """Returns sizes for quantizing: a row per program, 8 bf16 per thread."""
  return Rows(1, 2048, 8)


def _filling(rows: int, outputs: int, tiles: Sequence[Gpu]) -> Gpu:
  """Returns the first tile with a program per multiprocessor, or the last."""
  for tile in tiles:
    if -(-rows // tile.R) * -(-outputs // tile.O) >= _MULTIPROCESSORS:
      return tile
  return tiles[-1]


class Tpu(NamedTuple):
  """Blocks of a product [R, C] × [C, O] on a TPU: rows, outputs, contracted."""

  R: int
  O: int
  C: int


class TpuWeight(NamedTuple):
  """Blocks of a weight's gradient: contracted, outputs, rows at a time."""

  C: int
  O: int
  R: int


# The parts of a TensorCore's VMEM (64 MiB on v5p, 128 on v5e and v6e) that a
# kernel and that its blocks may take; the compiler needs the difference.
VMEM_LIMIT = 56 * 2**20
_VMEM_BLOCKS = 40 * 2**20
# Rows that are quantized at a time: the height of a tile of int8.
TPU_ROWS = 32


def tpu(
  rows: int, contracted: int, outputs: int, bytes_in: int, bytes_kept: int
) -> Tpu:
  """Returns the blocks of a product that holds whole rows in VMEM.

  R is as large as fits, because each block of rows reads the whole weight.
  """
  O = min(512, _round_up(outputs, 128))
  C = _divisor(contracted, 1024)
  w = 2 * C * O
  for R in (1024, 512, 256, 128, 64):
    used = R * contracted * (2 * bytes_in + bytes_kept) + w + R * O * 12
    if used <= _VMEM_BLOCKS:
      break
  else:
    R = TPU_ROWS
  return Tpu(min(R, _round_up(rows, TPU_ROWS)), O, C)


def tpu_weight(rows: int, contracted: int, outputs: int) -> TpuWeight:
  """Returns the blocks of a weight's gradient."""
  return TpuWeight(
    min(512, _round_up(contracted, 128)),
    min(512, _round_up(outputs, 128)),
    min(512, _round_up(rows, TPU_ROWS)),
  )


def tpu_quantize(rows: int, columns: int, bytes_in: int) -> int:
  """Returns the rows per block of the kernel that only quantizes."""
  fits = _VMEM_BLOCKS // (2 * columns * (bytes_in + 1))
  return max(
    TPU_ROWS, min(256, _round_up(rows, TPU_ROWS), fits // TPU_ROWS * TPU_ROWS)
  )


def tpu_columns(columns: int) -> int:
  """Returns how many columns of rows are quantized at a time."""
  return _divisor(columns, 1024)


def _divisor(size: int, most: int) -> int:
  """Returns the largest multiple of 128 up to `most` that divides `size`.

  Returns `size` itself where there is none.
  """
  for candidate in range(most, 0, -128):
    if size % candidate == 0:
      return candidate
  return size


def _round_up(size: int, multiple: int) -> int:
  return -(-size // multiple) * multiple

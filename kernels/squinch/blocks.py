"""Which implementation and which tiles suit a shape. Pure Python.

A GPU's program holds eight rows of a tile in registers, eight columns of bf16
or four of f32 in a thread: loads of 16 bytes. A TPU's block is one vector of
128 columns wide, for a strided load of every eighth row can be no wider.
"""

from typing import NamedTuple

# 32 groups are a tile of uint8 on a TPU, and 128 columns a vector.
TPU_GROUPS = 32
TPU_COLUMNS = 128
# Offsets in a GPU's kernel are int32.
_GPU_LIMIT = 2**31


class Gpu(NamedTuple):
  """A tile of the GPU's kernels.

  Attributes:
    G: groups; a power of two, as is C.
    C: columns.
    N: sources that are loaded together; it divides them.
    warps: of a program.
  """

  G: int
  C: int
  N: int
  warps: int


class Tpu(NamedTuple):
  """A block of the TPU's kernels, 128 columns wide.

  Attributes:
    G: groups, a multiple of 32.
    N: sources of a block; it divides them.
  """

  G: int
  N: int


def implementation(platform: str, parts: int, groups: int, columns: int) -> str:
  """Returns the implementation for uint8[parts, 6, groups, columns].

  On a TPU XLA has what would fill only a corner of a block: few groups or few
  columns.
  """
  if platform == 'gpu' and parts * groups * 8 * columns < _GPU_LIMIT:
    return 'pallas_gpu'
  if (
    platform == 'tpu'
    and groups >= TPU_GROUPS // 2
    and columns >= TPU_COLUMNS // 2
  ):
    return 'pallas_tpu'
  return 'reference'


def gpu_encode(groups: int, columns: int, itemsize: int) -> Gpu:
  """Returns the tile of `encode` of floats of so many bytes."""
  warps = 4
  tile = _tile(groups, columns, 32 * warps * 16 // itemsize)
  return Gpu(*tile, N=1, warps=warps)


def gpu_decode(groups: int, columns: int, parts: int) -> Gpu:
  """Returns the tile of `decode_sum` of so many parts."""
  warps = 4
  tile = _tile(groups, columns, 32 * warps * 4)
  return Gpu(*tile, N=_divisor(parts, 4), warps=warps)


def tpu(groups: int, parts: int) -> Tpu:
  """Returns the block of both directions; `encode` has one part at a time."""
  padded = -(-groups // TPU_GROUPS) * TPU_GROUPS
  return Tpu(min(padded, 4 * TPU_GROUPS), _divisor(parts, 8))


def _tile(groups: int, columns: int, size: int) -> tuple[int, int]:
  """Returns groups and columns: powers of two, at most `size` elements.

  As wide as an eighth of it, at most, hangs over the edge of the columns, and
  as high as fills it up.
  """
  width = size
  while width > 1 and (
    width > columns
    or (width > 32 and -(-columns // width) * width > 1.125 * columns)
  ):
    width //= 2
  height = size // width
  while height >= 2 * groups:
    height //= 2
  return height, width


def _divisor(number: int, limit: int) -> int:
  return max(n for n in range(1, limit + 1) if number % n == 0)

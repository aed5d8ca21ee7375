"""Chooses the implementation and the tiles for a shape, in pure Python.

A GPU's program holds eight rows of a tile in registers. A thread has eight
columns of bf16 or four of f32, so that it loads 16 bytes. A TPU's block is one
vector of 128 columns wide, because a strided load of every eighth row cannot be
wider.

Where `autotune` has measured on the device at hand, its winners replace the
rules here. The rules were compiled, not timed.
"""

from typing import NamedTuple

from kaiju_jax.kernels import tuned

KINDS = 'encode', 'decode'
# On a TPU, a tile of uint8 has 32 groups and a vector has 128 columns.
TPU_GROUPS = 32
TPU_COLUMNS = 128
# Offsets in a GPU's kernel are int32.
_GPU_LIMIT = 2**31


class Threads(NamedTuple):
  """The sizes of a GPU's program that hold for all shapes."""

  columns: int  # Columns per thread.
  N: int  # Sources that are loaded together; a divisor of their number.
  warps: int  # Warps per program.


class Gpu(NamedTuple):
  """A tile of the GPU's kernels."""

  G: int  # Groups; a power of two, as is C.
  C: int  # Columns.
  N: int  # As in `Threads`.
  warps: int  # Warps per program.


class Tpu(NamedTuple):
  """A block of the TPU's kernels, 128 columns wide."""

  G: int  # Groups, a multiple of 32.
  N: int  # Sources of a block; a divisor of their number.


def implementation(platform: str, parts: int, groups: int, columns: int) -> str:
  """Returns the implementation for uint8[parts, 6, groups, columns].

  On a TPU, XLA computes arrays of few groups or few columns, because they would
  fill only a corner of a kernel's block.
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


def gpu(
  kind: str, *, parts: int, groups: int, columns: int, itemsize: int
) -> Gpu:
  """Returns the tile of a GPU's kernel.

  Args:
    kind: one of KINDS.
    parts: sources of a sum, or parts that `encode` makes.
    groups: groups per part.
    columns: columns of the array.
    itemsize: bytes per float that the kernel reads or writes.
  """
  found = tuned.find(__file__, Threads, key(kind, parts, itemsize))
  threads = found or Threads(16 // itemsize, N=_divisor(parts, 4), warps=4)
  tile = _tile(groups, columns, 32 * threads.warps * threads.columns)
  return Gpu(*tile, threads.N, threads.warps)


def tpu(kind: str, *, parts: int, groups: int, itemsize: int) -> Tpu:
  """Returns the block of a TPU's kernel.

  Args:
    kind: one of KINDS.
    parts: as for `gpu`.
    groups: groups per part.
    itemsize: as for `gpu`.
  """
  found = tuned.find(__file__, Tpu, key(kind, parts, itemsize))
  sizes = found or Tpu(4 * TPU_GROUPS, N=_divisor(parts, 8))
  padded = -(-groups // TPU_GROUPS) * TPU_GROUPS
  return sizes._replace(G=min(padded, sizes.G))


def key(kind: str, parts: int, itemsize: int) -> str:
  """Returns the key of a kernel's measured sizes."""
  if kind == 'encode':
    return tuned.key(kind=kind, itemsize=itemsize)
  return tuned.key(kind=kind, parts=parts)


def _tile(groups: int, columns: int, size: int) -> tuple[int, int]:
  """Returns a tile's groups and columns: powers of two, ≤ `size` elements.

  It is as wide as possible, as long as the last tile adds at most an eighth to
  the columns. Its height then makes up `size`, or covers all groups.
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

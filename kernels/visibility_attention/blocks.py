"""Chooses the implementation and the block sizes for a shape, in pure Python.

The sizes of `chunked` were measured on a CPU with
`experiments.benchmarks.attention`. The sizes of the GPU kernels follow from the
registers that their compilers report, those of `pallas_tpu` from its compiler's
schedules. Where `autotune` has measured on the device at hand, its winners
replace them.
"""

import math
from typing import NamedTuple

from kaiju_jax.kernels import tuned

# Up to this many logits per head the reference is as fast as `chunked`.
_DENSE = 128 * 128
# Logits in one step of a march (`chunked.py`): 2 MiB of float32, which fit into
# a CPU's cache.
_LOGITS = 2**19
# The default kernel of each platform that has one.
_KERNELS = {'gpu': 'pallas_gpu', 'tpu': 'pallas_tpu'}
# Tokens, at most, of several query tiles that share a list of key blocks.
_PLAN_TOKENS = 8


class Sizes(NamedTuple):
  """Blocks of the chunked implementation."""

  I: int  # Queries per block.
  J: int  # Keys per block.
  Z: int  # Blocks that march together (`chunked.py` says how).


def implementation(
  platform: str, length: int, memory: int, head_dim: int
) -> str:
  """Returns the platform's kernel, or the faster implementation in plain XLA.

  Heads of more than 256 channels go to XLA, because neither a GPU program nor a
  TPU's vector memory has room for a tile of them.
  """
  if platform in _KERNELS and head_dim <= 256:
    return _KERNELS[platform]
  return 'reference' if length * memory <= _DENSE else 'chunked'


def sizes(length: int, memory: int, heads: int, window: int | None) -> Sizes:
  """Returns `chunked`'s blocks for `length` queries and `memory` keys.

  A block is about half as long as the average distance that a causal query
  looks back. Smaller blocks need more steps, larger ones compute more unseen
  pairs.
  """
  reach = memory // 2 if window is None else min(window, memory)
  target = min(max(reach // 2, 32), 256)
  I = _even(length, target)
  J = _even(memory, target)
  return Sizes(I, J, max(1, _LOGITS // (I * heads * J)))


class Tiles(NamedTuple):
  """Blocks of a GPU kernel."""

  rows: int  # Rows per query tile, all heads of a few tokens; a power of two.
  keys: int  # Keys per key block; a power of two.
  warps: int  # Warps per program.
  stages: int  # Visited blocks that are loaded or multiplied at once.


# The kernels of `pallas_gpu`, that of `triton_kernel` and that of `mosaic_gpu`.
GPU_KINDS = ('forward', 'dq', 'dkv')
TRITON = 'triton_forward'
MOSAIC = 'mosaic_forward'
# The choice when `pallas_gpu` turns values into floats; see `Values`.
VALUES = 'values'

# The largest tiles that H100's registers hold without a spill, by the bytes of
# a key in floats. Compiled, not timed.
_GPU = {
  256: {
    'forward': Tiles(128, 128, 8, 2),
    'dq': Tiles(128, 64, 8, 2),
    'dkv': Tiles(64, 128, 8, 2),
    TRITON: Tiles(128, 128, 8, 3),
  },
  512: dict.fromkeys(GPU_KINDS, Tiles(64, 32, 8, 2))
  | {TRITON: Tiles(128, 64, 8, 3)},
  1024: {
    'forward': Tiles(32, 32, 4, 2),
    'dq': Tiles(32, 32, 8, 1),
    'dkv': Tiles(32, 32, 8, 1),
    TRITON: Tiles(64, 32, 8, 2),
  },
}


def gpu(
  kind: str,
  *,
  rows: int,
  memory: int,
  window: int | None,
  head_dim: int,
  itemsize: int,
  integer_dot: bool,
) -> Tiles:
  """Returns the blocks of a GPU kernel: measured ones where there are any.

  Args:
    kind: one of GPU_KINDS, or TRITON.
    rows: queries times heads.
    memory: keys.
    window: None for all.
    head_dim: K, a power of two.
    itemsize: bytes of a float.
    integer_dot: whether q and k are multiplied as codes.
  """
  key = gpu_key(kind, window, head_dim, itemsize, integer_dot)
  if found := tuned.find(__file__, Tiles, key, kind):
    return found
  bytes_of_a_key = max(256, head_dim * itemsize)
  tiles = _GPU[bytes_of_a_key][kind]
  fewest = _power(min(rows, tiles.rows))
  return tiles._replace(
    rows=fewest,
    keys=_power(min(memory, tiles.keys)),
    warps=tiles.warps if fewest == tiles.rows else 4,
  )


class MosaicTiles(NamedTuple):
  """Blocks of the Mosaic GPU kernel, whose query tiles always have 128 rows."""

  keys: int  # Keys per key block.
  stages: int  # Visited blocks that shared memory holds at once.


# Two warpgroups multiply in turn. Each has 64 rows, those of one instruction.
MOSAIC_ROWS = 2 * 64
# The shared memory of a multiprocessor that a program may use, and the number
# of stages beyond which more would be idle.
_MOSAIC_BYTES, _MOSAIC_STAGES = 224 * 1024, 4


def mosaic(
  *,
  row_bytes: int,
  key_bytes: int,
  window: int | None,
  head_dim: int,
  integer_dot: bool,
) -> MosaicTiles:
  """Returns the blocks of the Mosaic GPU kernel: measured ones if there are.

  Otherwise a block has 128 keys: twice as many do not fit into a thread's
  registers.

  Args:
    row_bytes: bytes of a row's query and output in shared memory.
    key_bytes: bytes of everything that the kernel reads per key, the value
      included.
    window: as for `api.forward`.
    head_dim: K.
    integer_dot: whether q and k are multiplied as codes.
  """
  key = gpu_key(MOSAIC, window, head_dim, 2, integer_dot)
  if found := tuned.find(__file__, MosaicTiles, key, MOSAIC):
    return found
  keys = 128
  fits = (_MOSAIC_BYTES - MOSAIC_ROWS * row_bytes) // (keys * key_bytes)
  return MosaicTiles(keys, min(fits, _MOSAIC_STAGES))


class Values(NamedTuple):
  """When `pallas_gpu`'s forward pass turns coded values into floats."""

  first: int  # 1: once, before the kernel; 0: in the kernel, for each tile.


def dequantize_first(rows: int, window: int | None, head_dim: int) -> bool:
  """Returns whether values become floats before the forward kernel on a GPU.

  Codes are half the bytes to read, but each visit of a block then takes 891
  instructions instead of 715 (counted in its PTX, without a mask). Converting
  the one KV head beforehand pays where many tiles read it. So up to 16 tiles
  read codes, and more tiles read floats. The number 16 is our guess: neither
  way was timed.

  Args:
    rows: queries times heads.
    window: None for all.
    head_dim: K.
  """
  key = gpu_key(VALUES, window, head_dim, 2, True)
  if found := tuned.find(__file__, Values, key, VALUES):
    return bool(found.first)
  return rows > 16 * _GPU[256]['forward'].rows


def gpu_key(
  kind: str,
  window: int | None,
  head_dim: int,
  itemsize: int,
  integer_dot: bool,
) -> str:
  """Returns the key of a GPU kernel's measured blocks."""
  return tuned.key(
    kind=kind,
    windowed=window is not None,
    head_dim=head_dim,
    itemsize=itemsize,
    integer_dot=integer_dot,
  )


def _power(size: int) -> int:
  """Returns the least power of two ≥ `size` that a matrix unit takes, ≥ 16."""
  return max(16, 1 << (size - 1).bit_length())


def plan_tiles(rows: int, heads: int) -> int:
  """Returns how many query tiles of `rows` rows share one list of key blocks.

  Tiles that share a list hold more than 4 and at most 8 tokens together, a
  small part of a key block. So their common list is hardly longer than the list
  of one tile, and there are fewer than L / 4 lists. A tile of more than 8
  tokens has a list of its own.
  """
  return max(1, _PLAN_TOKENS * heads // rows)


def _even(length: int, target: int) -> int:
  """Returns the size of equal blocks of about `target`, a multiple of 8."""
  count = -(-length // target)
  return min(length, -(-length // (8 * count)) * 8)


class TpuTiles(NamedTuple):
  """Blocks of a TPU kernel, multiples of a register's 128 lanes."""

  rows: int  # Rows per query tile, all heads of whole tokens where that fits.
  keys: int  # Keys per key block.


def tpu(
  *,
  length: int,
  memory: int,
  heads: int,
  head_dim: int,
  itemsize: int,
  window: int | None,
) -> TpuTiles:
  """Returns the blocks of the TPU kernels: measured ones where there are any.

  In the schedules compiled for v5e, v5p and v6e, about 1,024 rows by 512 keys
  keep the units busy, and half as many rows hardly less so. With a short window
  256 keys are better, because they compute fewer unseen pairs. The plan is most
  exact for tiles of whole tokens. Tiles that divide the rows evenly avoid a
  padded copy of the queries.

  Args:
    length: queries.
    memory: keys.
    heads: rows per query.
    head_dim: K.
    itemsize: bytes per number of the products' operands.
    window: as for `api.forward`.
  """
  key = tpu_key(window, heads, head_dim, itemsize)
  if found := tuned.find(__file__, TpuTiles, key, 'tpu'):
    return found
  reach = memory if window is None else min(window, memory)
  # 16 MiB of vector memory hold 1,152 rows of up to 256 bytes.
  most = 1152 * 256 // max(256, head_dim * itemsize)
  unit = math.lcm(128, heads)
  if unit > most or length * heads <= most:
    unit = 128
  return TpuTiles(
    _divide(length * heads, unit, most // unit * unit),
    _divide(memory, 128, 512 if reach > 1024 else 256),
  )


def tpu_key(
  window: int | None, heads: int, head_dim: int, itemsize: int
) -> str:
  """Returns the key of the TPU kernels' measured blocks."""
  return tuned.key(
    windowed=window is not None,
    heads=heads,
    head_dim=head_dim,
    itemsize=itemsize,
  )


def _divide(length: int, unit: int, most: int) -> int:
  """Returns the largest divisor of `length` among multiples of `unit`.

  It is at least most/2 and at most `most`, a multiple itself. Where there is no
  such divisor, returns the smallest multiple that needs no more blocks than
  `most`.
  """
  for size in range(most, most // 2 - 1, -unit):
    if length % size == 0:
      return size
  count = -(-length // most)
  return -(-length // (unit * count)) * unit

"""Chooses the implementation and the tiles for a shape, in pure Python.

The winners of `autotune` for a kind of device precede the rules here. A decode
kernel must read the cache once, and the memory limits its speed. So the rules
keep many loads under way: enough splits that every core has work, and several
tiles loading in each. The rules were reasoned and compiled (their tiles spill
no registers at the presets' shapes), not measured on a device.

Rows are a row's queries times their heads.
"""

from typing import NamedTuple

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned

# Tiles that each part of a split must still have.
_TILES_PER_SPLIT = 4
# Programs that an H100's 132 multiprocessors hold, by R: while one loads,
# another computes, and each multiprocessor has rows of several lengths.
_GPU_PROGRAMS = {16: 4 * 132, 32: 4 * 132, 64: 2 * 132, 128: 132}
# Keys per step in XLA, few enough that a CPU's caches hold the intermediate
# results. With 512, attention took a seventh longer, and with 1,024 more than
# twice as long, because XLA then moves operations out of the loop.
_XLA_KEYS = 256
# Most rows that numba decodes on a CPU by default. With some 200, XLA's
# products of floats take as long.
_CPU_ROWS = 128
# Keys per step on a TPU, enough that a step's latency (two matmuls and two sums
# over lanes, one after the other) is a small part of it. The pages of a step
# are unrolled, so their number is limited too.
_TPU_KEYS = 2048
_TPU_PAGES = 16
# Rows per tile; their sums fill half of a TPU core's vector registers.
_TPU_ROWS = 256


class Sizes(NamedTuple):
  """Tiles of a kernel."""

  R: int  # Rows per tile; on a GPU a power of two, at least 16.
  J: int  # Keys per step; a power of two on a GPU, otherwise whole pages.
  X: int  # Splits of a row's visited pages.
  warps: int = 4  # Warps per program, on a GPU.
  stages: int = 3  # Stages of the program's pipeline, on a GPU.


class Shape(NamedTuple):
  """The sizes that the choice depends on."""

  B: int  # Rows of the batch.
  rows: int  # Queries times heads.
  K: int  # Key size.
  P: int  # Pages of the pool.
  N: int  # Pages in a row's table.
  S: int  # Slots of a page.
  # Bytes of an element of the cache, the smaller number where keys and values
  # differ.
  itemsize: int
  window: int | None  # See `api.decode`.
  # Whether keys and values are codes with a scale per token.
  is_coded: bool = False
  sinks: int = 0  # See `api.decode`.


def implementation(platform: str, shape: Shape) -> str:
  """Returns the implementation for `shape` on 'cpu', 'gpu' or 'tpu'."""
  name = {'gpu': 'pallas_gpu', 'tpu': 'pallas_tpu'}.get(platform, 'numba_cpu')
  if misfit(name, shape):
    return 'xla'
  if name != 'numba_cpu':
    return name
  is_chunk = shape.rows > _CPU_ROWS
  return 'xla' if is_chunk or not dispatch.numba_cpu(__package__) else name


def misfit(implementation: str, shape: Shape) -> str | None:
  """Returns why an implementation cannot take `shape`, or None if it can."""
  if implementation == 'numba_cpu':
    if not shape.is_coded:
      return 'numba_cpu takes keys and values as codes with a scale per token.'
    if shape.K % 64 or shape.S % 16:
      return (
        f'K={shape.K}, S={shape.S}: numba_cpu takes multiples of 64 and 16.'
      )
  if implementation == 'pallas_gpu':
    if shape.K < 32 or shape.K & (shape.K - 1):
      return f'K={shape.K}: pallas_gpu takes powers of two from 32.'
    elements = shape.P * shape.S * shape.K
    if elements >= 2**31 and elements * shape.itemsize <= 2**32:
      # Up to 4 GiB Pallas makes 32-bit offsets, which Triton reads as signed.
      return (
        f'a pool of {elements} elements: pallas_gpu takes fewer than 2**31, or'
        ' more than 2**32 bytes, where addresses have 64 bits.'
      )
  if implementation == 'pallas_tpu':
    rows = 32 // shape.itemsize
    if shape.S % rows:
      return (
        f'S={shape.S}: pallas_tpu takes multiples of {rows}, the rows of a tile'
        f' of {shape.itemsize}-byte elements.'
      )
    if shape.K % 128:
      return f'K={shape.K}: pallas_tpu takes multiples of 128.'
  return None


def sizes(implementation: str, shape: Shape) -> Sizes:
  """Returns the tiles of an implementation for `shape`."""
  found = tuned.find(__file__, Sizes, key(implementation, shape))
  return found or rule(implementation, shape)


def key(implementation: str, shape: Shape) -> str:
  """Returns the key of tuned sizes: without the pool's size, codes, sinks."""
  fields = shape._asdict()
  del fields['P'], fields['is_coded'], fields['sinks']
  return tuned.key(implementation=implementation, **fields)


def rule(implementation: str, shape: Shape) -> Sizes:
  """Returns the tiles for shapes that were not measured."""
  rules = {'pallas_gpu': _gpu, 'pallas_tpu': _tpu}
  return rules.get(implementation, _xla)(shape)


def check(implementation: str, shape: Shape, sizes: Sizes) -> None:
  """Refuses a shape or tiles that an implementation cannot take.

  Raises:
    ValueError: says what would be right.
  """
  reason = misfit(implementation, shape)
  if reason:
    raise ValueError(f'{reason} implementation=None chooses another.')
  if sizes.X < 1:
    raise ValueError(f'sizes.X={sizes.X}: expected at least one split.')
  if implementation == 'pallas_gpu':
    for name, value in ('R', sizes.R), ('J', sizes.J):
      if value < 16 or value & (value - 1):
        raise ValueError(
          f'sizes.{name}={value}: pallas_gpu takes powers of two from 16.'
        )
    return
  if implementation == 'pallas_tpu' and sizes.R % 32:
    raise ValueError(
      f'sizes.R={sizes.R}: pallas_tpu takes multiples of 32, the rows of a tile'
      ' of codes.'
    )
  if sizes.J < 1 or sizes.J % shape.S:
    raise ValueError(
      f'sizes.J={sizes.J}: expected whole pages, a multiple of S={shape.S}.'
    )


def count_visited(shape: Shape) -> int:
  """Returns the most slots that a row's queries visit, if they are adjacent."""
  if shape.window is None:
    return shape.N * shape.S
  # A window that starts within a page touches one page more.
  pages = -(-shape.window // shape.S) + 1 + -(-shape.sinks // shape.S)
  return min(pages, shape.N) * shape.S


def _xla(shape: Shape) -> Sizes:
  pages = max(1, min(shape.N, _XLA_KEYS // shape.S))
  return Sizes(shape.rows, pages * shape.S, 1)


def _gpu(shape: Shape) -> Sizes:
  R = min(128, max(16, _power(shape.rows)))
  J = 64 if shape.itemsize < 4 else 16
  programs = shape.B * -(-shape.rows // R)
  tiles = -(-count_visited(shape) // J)
  X = max(1, min(tiles // _TILES_PER_SPLIT, _GPU_PROGRAMS[R] // programs))
  # Two of the five stages hold loading tiles, (5 - 1) / 2, because a tile's
  # addresses are loads as well and take as long.
  return Sizes(R, J, X, 8 if R == 128 else 4, 5)


def _tpu(shape: Shape) -> Sizes:
  R = min(_TPU_ROWS, -(-shape.rows // 32) * 32)
  pages = min(shape.N, _TPU_PAGES, max(1, _TPU_KEYS // shape.S))
  groups = -(-count_visited(shape) // (pages * shape.S))
  # A chip whose two cores are one device gives each of them a split.
  return Sizes(R, pages * shape.S, 2 if groups >= 2 * _TILES_PER_SPLIT else 1)


def _power(n: int) -> int:
  """Returns the least power of two that is at least n."""
  return 1 << max(n - 1, 0).bit_length()

"""Which implementation and which block sizes suit a shape. Pure Python.

Those of `chunked` were measured on a CPU with `experiments.bench_attention`,
those of the GPU kernels by what their compilers say of registers.
"""

from collections.abc import Iterator
import contextlib
import contextvars
import pathlib
import types
from typing import NamedTuple

from kaiju_jax.kernels import tuned

# One dense block of this many logits per head is as fast as a march.
_DENSE = 128 * 128
# Logits that one step of a march holds: a few MiB of float32, near the caches.
_LOGITS = 2**19
# The kernel of a platform that has one.
_KERNELS = {'gpu': 'pallas_gpu'}
# Tokens whose query tiles share a list of key blocks.
_PLAN_TOKENS = 8


class Sizes(NamedTuple):
  """Blocks of the chunked implementation.

  Attributes:
    I: queries a block.
    J: keys a block.
    Z: blocks that march together.
  """

  I: int
  J: int
  Z: int


def implementation(
  platform: str, length: int, memory: int, head_dim: int
) -> str:
  """Returns the platform's kernel, or what is faster in plain XLA on a CPU.

  Of more than 256 channels a GPU program has no room for a tile: those heads
  are XLA's.
  """
  if platform in _KERNELS and head_dim <= 256:
    return _KERNELS[platform]
  return 'reference' if length * memory <= _DENSE else 'chunked'


def sizes(length: int, memory: int, heads: int, window: int | None) -> Sizes:
  """Returns block sizes for `length` queries of `heads` heads, `memory` keys.

  A block is about half as long as a query looks back, on average of a causal
  row: smaller ones are more steps, larger ones compute more unseen pairs.
  """
  reach = memory // 2 if window is None else min(window, memory)
  target = min(max(reach // 2, 32), 256)
  I = _even(length, target)
  J = _even(memory, target)
  return Sizes(I, J, max(1, _LOGITS // (I * heads * J)))


class Tiles(NamedTuple):
  """Blocks of a GPU kernel.

  Attributes:
    rows: of a query tile, all heads of a few tokens; a power of two.
    keys: of a key block; a power of two.
    warps: of a program.
    stages: how many visited blocks are in flight.
  """

  rows: int
  keys: int
  warps: int
  stages: int


# The kernels of `pallas_gpu`, and that of `triton_kernel`.
GPU_KINDS = ('forward', 'dq', 'dkv')
TRITON = 'triton_forward'

# By the bytes of a key in floats: as large as H100's registers hold without a
# spill. Compiled, not timed.
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

_tried = contextvars.ContextVar('tried', default=types.MappingProxyType({}))


@contextlib.contextmanager
def trying(tiles: Tiles, *kinds: str) -> Iterator[None]:
  """Within it, GPU kernels of `kinds`, or all, are traced with these blocks."""
  tried = {
    **_tried.get(),
    **dict.fromkeys(kinds or (*GPU_KINDS, TRITON), tiles),
  }
  token = _tried.set(tried)
  try:
    yield
  finally:
    _tried.reset(token)


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
    kind: of GPU_KINDS, or TRITON.
    rows: queries times heads.
    memory: keys.
    window: None for all.
    head_dim: K, a power of two.
    itemsize: bytes of a float.
    integer_dot: whether q and k meet as codes.
  """
  if kind in _tried.get():
    return _tried.get()[kind]
  folder = pathlib.Path(__file__).parent
  key = gpu_key(kind, window, head_dim, itemsize, integer_dot)
  if found := tuned.winner(folder, tuned.device_kind(), key):
    return Tiles(**found)
  bytes_of_a_key = max(256, head_dim * itemsize)
  tiles = _GPU[bytes_of_a_key][kind]
  fewest = _power(min(rows, tiles.rows))
  return tiles._replace(
    rows=fewest,
    keys=_power(min(memory, tiles.keys)),
    warps=tiles.warps if fewest == tiles.rows else 4,
  )


def gpu_key(
  kind: str,
  window: int | None,
  head_dim: int,
  itemsize: int,
  integer_dot: bool,
) -> str:
  """Returns what measured blocks of a GPU kernel are filed under."""
  return tuned.key(
    kind=kind,
    windowed=window is not None,
    head_dim=head_dim,
    itemsize=itemsize,
    integer_dot=integer_dot,
  )


def _power(size: int) -> int:
  """The power of two from `size` on, at least what a matrix unit takes."""
  return max(16, 1 << (size - 1).bit_length())


def plan_tiles(rows: int, heads: int) -> int:
  """Returns how many query tiles of `rows` rows share one list of key blocks.

  Together they hold about 8 tokens, a small part of a key block: the list of
  all is hardly longer than that of one, and there are at most L / 8 of them.
  """
  return max(1, _PLAN_TOKENS * heads // rows)


def _even(length: int, target: int) -> int:
  """Divides `length` into equal blocks of about `target`, multiples of 8."""
  count = -(-length // target)
  return min(length, -(-length // (8 * count)) * 8)

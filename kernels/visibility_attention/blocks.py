"""Which implementation and which block sizes suit a shape. Pure Python.

The numbers were measured on a CPU with `experiments.bench_attention`.
"""

from collections.abc import Iterator
import contextlib
import contextvars
from typing import NamedTuple

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

  A head of more than 256 channels does not fit into a GPU program's registers:
  plain XLA takes it.
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


_tried = contextvars.ContextVar('tried', default=None)


@contextlib.contextmanager
def trying(tiles: Tiles) -> Iterator[None]:
  """Within it, every GPU kernel that is traced has these blocks."""
  token = _tried.set(tiles)
  try:
    yield
  finally:
    _tried.reset(token)


def gpu(
  kind: str,
  *,
  rows: int,
  memory: int,
  head_dim: int,
  itemsize: int,
  integer_dot: bool,
) -> Tiles:
  """Returns the blocks of a GPU kernel.

  Args:
    kind: 'forward', 'dq' or 'dkv'.
    rows: queries times heads.
    memory: keys.
    head_dim: K, a power of two.
    itemsize: bytes of the widest value that meets in a product.
    integer_dot: whether q and k meet as codes.
  """
  if _tried.get() is not None:
    return _tried.get()
  return _GPU[kind]


_GPU = {
  'forward': Tiles(128, 64, 8, 2),
  'dq': Tiles(128, 64, 8, 2),
  'dkv': Tiles(64, 64, 8, 2),
}


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

"""Which implementation and which block sizes suit a shape. Pure Python.

The numbers were measured on a CPU with `experiments.bench_attention`.
"""

from typing import NamedTuple

# One dense block of this many logits per head is as fast as a march.
_DENSE = 128 * 128
# Logits that one step of a march holds: a few MiB of float32, near the caches.
_LOGITS = 2**19
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


def implementation(length: int, memory: int) -> str:
  """Returns the implementation that is faster on a CPU."""
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

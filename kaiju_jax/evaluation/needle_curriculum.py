"""Training rows for the needle: a curriculum from short rows to long ones.

A model that starts on long rows sees too few matches to find out that keys
match at all. So documents grow, 32 tokens to 256, and the short ones are
streams of repeated pairs in which a third of the tokens carry loss. Recipe
from a feasibility study of ours: 340 steps of 1,024 tokens are enough from
the initialization of `induction.py`.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.evaluation import needle


@dataclasses.dataclass(frozen=True)
class Stage:
  """A part of the curriculum.

  Attributes:
    length: tokens a document; a row packs as many as it holds.
    share: of the run's rows, in units of the curriculum's sum.
    style: 'stream' (pairs drawn with replacement from a few, scattered in
      filler; every repeat of a key is a question) or 'batch' (needles in a
      body, each asked for once at the end).
    needles: fewest and most different keys in a document.
    filler: part of a stream that is filler.
  """

  length: int
  share: int
  style: str
  needles: tuple[int, int]
  filler: float = 0.0


CURRICULUM = (
  Stage(length=32, share=120, style='stream', needles=(2, 6)),
  Stage(length=64, share=60, style='stream', needles=(4, 12), filler=0.3),
  Stage(length=128, share=60, style='batch', needles=(12, 16)),
  Stage(length=256, share=100, style='batch', needles=(12, 16)),
)


def document(rng: np.random.Generator, stage: Stage) -> packing.Piece:
  """Draws one training document, weight 1 on each answer and 0 elsewhere."""
  fewest, most = stage.needles
  count = int(rng.integers(fewest, most + 1))
  keys = needle.distinct(rng, 1, count, needle.KEYS)[0]
  values = needle.distinct(rng, 1, count, needle.VALUES)[0]
  tokens = rng.integers(needle.FILLER.start, needle.FILLER.stop, stage.length)
  tokens[0] = needle.BOS
  weights = np.zeros(stage.length, np.float32)
  if stage.style == 'stream':
    pairs = int((stage.length - 1) * (1 - stage.filler)) // 2
    drawn = rng.integers(count, size=pairs)
    starts = 1 + needle.scatter(rng, 1, pairs, 2, stage.length - 1)[0]
    asked = np.ones(pairs, bool)
    asked[np.unique(drawn, return_index=True)[1]] = False
  else:
    body = stage.length - 1 - 2 * count
    drawn = np.concatenate([np.arange(count), rng.permutation(count)])
    starts = np.concatenate(
      [
        1 + needle.scatter(rng, 1, count, 2, body)[0],
        1 + body + 2 * np.arange(count),
      ]
    )
    asked = np.arange(2 * count) >= count
  tokens[starts] = keys[drawn]
  tokens[starts + 1] = values[drawn]
  weights[starts[asked] + 1] = 1
  return packing.Piece(tokens, weights=weights)


class Rows:
  """The curriculum as a row source: short documents first, packed.

  All rows are equally long, so that the whole curriculum is one compiled
  step; which stage a row belongs to follows from its number.
  """

  def __init__(
    self,
    count: int,
    length: int = 256,
    seed: int = 0,
    curriculum: Sequence[Stage] = CURRICULUM,
  ):
    """Takes the run's length, over which the curriculum is stretched.

    Args:
      count: rows of the run.
      length: tokens a row, at least the longest document's.
      seed: of every draw.
      curriculum: the stages, in order.

    Raises:
      ValueError: a document longer than the row.
    """
    longest = max(stage.length for stage in curriculum)
    if longest > length:
      raise ValueError(
        f'data.length={length}: the needle curriculum has documents of'
        f' {longest} tokens, which need rows at least as long.'
      )
    self._count = count
    self._length = length
    self._seed = seed
    self._curriculum = tuple(curriculum)
    shares = np.cumsum([stage.share for stage in curriculum])
    self._ends = shares / shares[-1] * count

  def __len__(self) -> int:
    return self._count

  def stage(self, index: int) -> Stage:
    """Returns the stage of row `index`; the last one beyond the run's end."""
    number = np.searchsorted(self._ends, index, 'right')
    return self._curriculum[min(int(number), len(self._curriculum) - 1)]

  def __getitem__(self, index: int) -> packing.Row:
    if index < 0:
      raise IndexError(f'row {index}: rows are counted from 0 on.')
    stage = self.stage(index)
    rng = np.random.default_rng((self._seed, index))
    pieces = [
      document(rng, stage)._replace(source=number)
      for number in range(self._length // stage.length)
    ]
    return packing.row(pieces, self._length)

"""Makes training rows for the needle: a curriculum of growing documents.

A model that starts on long documents sees too few matches to learn that keys
match at all. So documents grow. The short ones are streams of repeated pairs,
in which a third of the tokens carry loss. Each initialization has its own
curriculum; both were found by trial. From the initialization of
`evaluation/induction.py`, 400 steps of 1,024 tokens are enough. From the
standard one the model must find induction first, which a small, growing pool of
keys makes possible.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.tasks.needle import questions as needle


@dataclasses.dataclass(frozen=True)
class Stage:
  """A part of the curriculum."""

  length: int  # Tokens per document; a row packs as many documents as it holds.
  share: int  # Part of the run's rows, relative to the sum over the curriculum.
  needles: tuple[int, int]  # Fewest and most different keys in a document.
  # Fraction of the documents that are streams; the others are batches.
  streams: float
  filler: float  # Fraction of a stream that is filler.
  # How many keys, and as many values, documents draw from.
  pool: int = len(needle.KEYS)


# A few streams remain to the end. Batches hardly ask for the nearest needles,
# which are all that a model with short windows finds and which it would forget.
_SUGGESTED = (
  Stage(32, 120, needles=(2, 6), streams=1.0, filler=0.0),
  Stage(64, 60, needles=(4, 12), streams=1.0, filler=0.3),
  Stage(128, 60, needles=(12, 16), streams=0.25, filler=0.3),
  Stage(256, 160, needles=(12, 16), streams=0.25, filler=0.3),
)
# The model learns to match a few keys within one window, and then more keys.
# In documents of four windows, loss then remains only where global layers help.
_FOUND = (
  Stage(16, 300, needles=(2, 4), streams=1.0, filler=0.0, pool=8),
  Stage(16, 75, needles=(2, 6), streams=1.0, filler=0.0, pool=12),
  Stage(16, 75, needles=(2, 6), streams=1.0, filler=0.0, pool=16),
  Stage(16, 100, needles=(2, 6), streams=1.0, filler=0.0, pool=24),
  Stage(16, 100, needles=(2, 6), streams=1.0, filler=0.0, pool=32),
  Stage(16, 100, needles=(2, 6), streams=1.0, filler=0.0, pool=48),
  Stage(16, 150, needles=(2, 6), streams=1.0, filler=0.0),
  Stage(64, 1200, needles=(4, 12), streams=1.0, filler=0.0),
  Stage(128, 100, needles=(12, 16), streams=0.25, filler=0.3),
  Stage(256, 250, needles=(12, 16), streams=0.25, filler=0.3),
)
# The first stage of _FOUND alone: tests when a model learns to match, if ever.
_FIRST = _FOUND[:1]
CURRICULA = {
  'induction': _SUGGESTED,
  'standard': _FOUND,
  'few_keys': _FIRST,
}


def document(rng: np.random.Generator, stage: Stage) -> packing.Piece:
  """Draws one training document, with weight 1 on each answer and 0 elsewhere.

  A *stream* repeats a few pairs, drawn with replacement, scattered in filler;
  every repeat of a key is a question. A *batch* is a body of needles, followed
  by each needle once more in another order.
  """
  count = int(rng.integers(stage.needles[0], stage.needles[1] + 1))
  if rng.random() < stage.streams:
    pair, start = _stream(rng, stage, count)
  else:
    pair, start = _batch(rng, stage, count)
  tokens = rng.integers(needle.FILLER.start, needle.FILLER.stop, stage.length)
  tokens[0] = needle.BOS
  keys, values = needle.KEYS[: stage.pool], needle.VALUES[: stage.pool]
  tokens[start] = needle.distinct(rng, 1, count, keys)[0, pair]
  tokens[start + 1] = needle.distinct(rng, 1, count, values)[0, pair]
  is_repeat = np.ones(len(pair), bool)
  is_repeat[np.unique(pair, return_index=True)[1]] = False
  weights = np.zeros(stage.length, np.float32)
  weights[start[is_repeat] + 1] = 1
  return packing.Piece(tokens, weights=weights)


def _stream(rng, stage: Stage, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the pairs of a stream, and where each starts."""
  pairs = int((stage.length - 1) * (1 - stage.filler)) // 2
  start = 1 + needle.scatter(rng, 1, pairs, 2, stage.length - 1)[0]
  return rng.integers(count, size=pairs), start


def _batch(rng, stage: Stage, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the pairs of a batch, and where each starts."""
  body = stage.length - 1 - 2 * count
  start = 1 + needle.scatter(rng, 1, count, 2, body)[0]
  questions = 1 + body + 2 * np.arange(count)
  return (
    np.concatenate([np.arange(count), rng.permutation(count)]),
    np.concatenate([start, questions]),
  )


class Rows:
  """The curriculum as a row source; a row's number decides its stage.

  All rows are equally long, so that the whole curriculum is one compiled step.
  """

  has_epochs = False  # `tasks/amounts.py`

  def __init__(
    self,
    count: int,
    length: int = 256,
    seed: int = 0,
    curriculum: Sequence[Any] = CURRICULA['induction'],
    document: Callable[..., packing.Piece] = document,
  ):
    """Spreads the curriculum over a run.

    Args:
      count: rows of the run.
      length: tokens per row, at least those of the longest document.
      seed: the seed of every draw.
      curriculum: the stages, in order; each has a `length` and a `share`.
      document: (rng, stage) → a document of `stage.length` tokens.

    Raises:
      ValueError: a document longer than the row.
    """
    longest = max(stage.length for stage in curriculum)
    if longest > length:
      raise ValueError(
        f'data.length={length}: the curriculum has documents of'
        f' {longest} tokens, which need rows at least as long.'
      )
    self._count = count
    self._length = length
    self._seed = seed
    self._curriculum = tuple(curriculum)
    self._document = document
    shares = np.cumsum([stage.share for stage in curriculum])
    self._ends = shares * count // shares[-1]

  def __len__(self) -> int:
    return self._count

  def unseen(self) -> 'Rows':
    """Returns the same stages drawn from a seed with which no run trains."""
    return Rows(
      self._count,
      self._length,
      2**32 + self._seed,
      self._curriculum,
      self._document,
    )

  def stage(self, index: int) -> Any:
    """Returns the stage of row `index`; beyond the run's end, the last one."""
    number = np.searchsorted(self._ends, index, 'right')
    return self._curriculum[min(int(number), len(self._curriculum) - 1)]

  def __getitem__(self, index: int) -> packing.Row:
    if index < 0:
      raise IndexError(f'row {index}: must be at least 0.')
    stage = self.stage(index)
    rng = np.random.default_rng((self._seed, index))
    pieces = [
      self._document(rng, stage)._replace(source=number)
      for number in range(self._length // stage.length)
    ]
    return packing.row(pieces, self._length)

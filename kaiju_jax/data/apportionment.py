"""How many rows of each block every source of a mixture gets.

Rows are counted in blocks of Q. After i rows, source s should have had

    W_s(i) = Σ w_s(row) over the rows before i

where the weights of a row sum to 1. A whole number of rows cannot be W, but it
can stay within one row of it: at the end of each block every source has had
⌊W_s⌋ or ⌈W_s⌉ rows. What is over after all have ⌊W_s⌋ goes to the sources that
must have another row soonest (the earliest i at which W_s reaches it). Giving
it to the largest fractions instead fails where weights change: a source rounded
up just before its weight falls to 0 stays ahead forever, and in some block more
than Q rows would be due. The earliest deadline first meets all deadlines
whenever any order does, and some order does, because the fractions themselves
are a schedule.

The weights change once, from row `begin` to row `end`, linearly. Blocks are cut
short there, so that no block holds rows of two stages.

That each block's counts are exact is our guess at what a data mix is; the
sources name mixes and give no weights.
"""

from collections.abc import Sequence
import dataclasses
import threading

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stages:
  """The weights of S sources over a run, each set summing to 1.

  Attributes:
    first: float64[S], the weights of the rows before `begin`.
    last: float64[S], those of the rows from `end` on.
    begin: the row at which the weights begin to change.
    end: the row at which they have changed; `begin` for a change at once.
  """

  first: np.ndarray
  last: np.ndarray
  begin: int
  end: int

  def sum_weights(self, row: int) -> np.ndarray:
    """Returns float64[S], the weights' sums over the rows before `row`."""
    inside = min(max(row - self.begin, 0), self.end - self.begin)
    changed = max(row - self.end, 0)
    if inside:
      changed += inside**2 / (2 * (self.end - self.begin))
    return (row - changed) * self.first + changed * self.last

  def find_rows(self, counts: np.ndarray) -> np.ndarray:
    """Returns float64[S], at which row each source's sum reaches its count.

    Infinity where it never does.
    """
    at_begin, at_end = self.sum_weights(self.begin), self.sum_weights(self.end)
    with np.errstate(divide='ignore', invalid='ignore'):
      before = counts / self.first
      after = self.end + (counts - at_end) / self.last
      rest = counts - at_begin
      slope = (self.last - self.first) / (self.end - self.begin)
      root = np.sqrt(self.first**2 + 2 * slope * rest)
      inside = self.begin + 2 * rest / (self.first + root)
    found = np.where(counts <= at_end, inside, after)
    return np.where(counts <= at_begin, before, found)


def stages(
  weights: Sequence[float],
  annealed: Sequence[float],
  total: int,
  anneal_at: float = 1.0,
  anneal_over: float = 0.0,
) -> Stages:
  """Returns the stages of a run of `total` rows.

  Args:
    weights: of S sources, not negative, in any unit.
    annealed: the same in the annealing stage.
    total: rows of the run.
    anneal_at: fraction of them after which the weights begin to change.
    anneal_over: fraction of them over which they change.
  """
  begin = round(anneal_at * total)
  end = begin + round(anneal_over * total)
  first, last = (np.asarray(one, np.float64) for one in (weights, annealed))
  return Stages(first / first.sum(), last / last.sum(), begin, end)


class Blocks:
  """The blocks of a run, and how many rows of each source precede each."""

  def __init__(self, stages: Stages, size: int):
    """Counts a block when a row of it, or of a later one, is asked for.

    Args:
      stages: the weights.
      size: Q, rows of a block; the last one of a stage may be shorter.
    """
    self._stages = stages
    self._size = size
    self._starts = np.unique([0, stages.begin, stages.end])
    blocks = -(-np.diff(self._starts) // size)
    self._firsts = np.concatenate([[0], np.cumsum(blocks)])
    self._counts = [np.zeros(len(stages.first), np.int64)]
    # The loader's thread and a checkpoint may both ask.
    self._lock = threading.Lock()

  def number(self, row: int) -> int:
    """Returns the block of a row."""
    stage = int(np.searchsorted(self._starts, row, 'right')) - 1
    return int(self._firsts[stage] + (row - self._starts[stage]) // self._size)

  def begin(self, number: int) -> int:
    """Returns the first row of a block."""
    stage = int(np.searchsorted(self._firsts, number, 'right')) - 1
    nth = number - self._firsts[stage]
    return int(self._starts[stage] + nth * self._size)

  def counts(self, number: int) -> np.ndarray:
    """Returns int64[S], the rows of each source before a block."""
    with self._lock:
      while len(self._counts) <= number:
        end = self.begin(len(self._counts))
        self._counts.append(self._given(end, self._counts[-1]))
      return self._counts[number]

  def _given(self, end: int, counts: np.ndarray) -> np.ndarray:
    """Returns the counts after a block's rows, from those before it."""
    wanted = self._stages.sum_weights(end)
    given = np.maximum(np.floor(wanted).astype(np.int64), counts)
    left = end - int(given.sum())
    if left:
      is_open = np.ceil(wanted) > given
      deadlines = self._stages.find_rows(given + 1)
      order = np.lexsort([deadlines, ~is_open])
      given[order[:left]] += 1
    return given

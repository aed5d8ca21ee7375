"""Decides how many rows of each block come from each source of a mixture.

Rows are counted in blocks of Q. After i rows, source s should have given

    W_s(i) = Σ w_s(row) over the rows before i

where the weights of a row sum to 1. W is no whole number, but the count of rows
can stay within one of it: at the end of each block every source has given ⌊W_s⌋
or ⌈W_s⌉ rows. Every source first gets ⌊W_s⌋. The remaining rows go to the
sources with the earliest deadlines, the i at which W_s reaches the source's
next row. Giving them to the largest fractions would fail where weights change:
a source that was rounded up just before its weight falls to 0 would stay ahead
forever, and in some block more than Q rows would be due. The earliest deadline
first meets all deadlines whenever any order does. Some order does, because the
fractions themselves are a schedule.

The weights change once, linearly from row `begin` to row `end`. A block ends at
each of these two rows, so that no block holds rows of two stages.

That each block's counts are exact is our guess; the sources name data mixes and
give no weights.
"""

from collections.abc import Sequence
import dataclasses
import threading

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stages:
  """The weights of S sources over a run; each set sums to 1."""

  first: np.ndarray  # float64[S], the weights of the rows before `begin`.
  last: np.ndarray  # float64[S], the weights of the rows from `end` on.
  begin: int  # The row at which the weights begin to change.
  # The row at which the change is complete; `begin` for a sudden change.
  end: int

  def sum_weights(self, row: int) -> np.ndarray:
    """Returns float64[S], the sums of the weights of the rows before `row`."""
    inside = min(max(row - self.begin, 0), self.end - self.begin)
    changed = max(row - self.end, 0)
    if inside:
      changed += inside**2 / (2 * (self.end - self.begin))
    return (row - changed) * self.first + changed * self.last

  def find_rows(self, counts: np.ndarray) -> np.ndarray:
    """Returns float64[S], the rows at which the sums reach `counts`.

    Infinity for a source whose sum never does.
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
    weights: weights of S sources, not negative, in any unit.
    annealed: their weights in the annealing stage, likewise.
    total: rows of the run.
    anneal_at: fraction of the rows after which the weights begin to change.
    anneal_over: fraction of the rows over which they change.
  """
  begin = round(anneal_at * total)
  end = begin + round(anneal_over * total)
  first, last = (np.asarray(one, np.float64) for one in (weights, annealed))
  return Stages(first / first.sum(), last / last.sum(), begin, end)


class Blocks:
  """The blocks of a run, and the rows of each source before each block."""

  def __init__(self, stages: Stages, size: int):
    """Makes the blocks; their rows are counted when they are needed.

    Args:
      stages: the weights.
      size: Q, rows of a block; the last block of a stage may be shorter.
    """
    self._stages = stages
    self._size = size
    self._starts = np.unique([0, stages.begin, stages.end])
    blocks = -(-np.diff(self._starts) // size)
    self._firsts = np.concatenate([[0], np.cumsum(blocks)])
    self._counts = [np.zeros(len(stages.first), np.int64)]
    # The loader's thread and a checkpoint may both count.
    self._lock = threading.Lock()

  def number(self, row: int) -> int:
    """Returns the number of the block that holds a row."""
    stage = int(np.searchsorted(self._starts, row, 'right')) - 1
    return int(self._firsts[stage] + (row - self._starts[stage]) // self._size)

  def first_row(self, number: int) -> int:
    """Returns the first row of a block."""
    stage = int(np.searchsorted(self._firsts, number, 'right')) - 1
    nth = number - self._firsts[stage]
    return int(self._starts[stage] + nth * self._size)

  def counts(self, number: int) -> np.ndarray:
    """Returns int64[S], the rows of each source before a block."""
    with self._lock:
      while len(self._counts) <= number:
        end = self.first_row(len(self._counts))
        self._counts.append(self._given(end, self._counts[-1]))
      return self._counts[number]

  def _given(self, end: int, counts: np.ndarray) -> np.ndarray:
    """Returns the counts at row `end`, from those a block before."""
    wanted = self._stages.sum_weights(end)
    given = np.maximum(np.floor(wanted).astype(np.int64), counts)
    left = end - int(given.sum())
    if left:
      is_open = np.ceil(wanted) > given
      deadlines = self._stages.find_rows(given + 1)
      order = np.lexsort([deadlines, ~is_open])
      given[order[:left]] += 1
    return given

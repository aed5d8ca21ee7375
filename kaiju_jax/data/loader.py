"""Rows to batches, in an order that an interruption cannot change.

A row source says everything about its rows; what is left is to cut them out
ahead of the step, which one thread of Grain does, and to know which row is
next. That number is the whole state: it counts rows, not batches, so that a
run may go on from it with another batch size.
"""

from collections.abc import Iterator
from typing import Protocol

import grain

from kaiju_jax.data import packing

_ENDLESS = 2**62


class RowSource(Protocol):
  """Rows as a pure function of a config, a seed and the row's number."""

  def __len__(self) -> int:
    """Rows of one epoch."""

  def __getitem__(self, index: int) -> packing.Row:
    """Returns row `index`; any from 0 on, epoch after epoch."""


class Batches(Iterator[packing.Batch]):
  """An endless iterator of batches [A, B, L], which can say where it is."""

  def __init__(
    self, source: RowSource, batch: int, microbatches: int, start: int
  ):
    self._source = source
    self._shape = (microbatches, batch)
    self._seek(start)

  def __next__(self) -> packing.Batch:
    batch = next(self._iterator)
    self._row += self._shape[0] * self._shape[1]
    return batch

  def get_state(self) -> dict[str, int]:
    """Returns what `set_state` takes; JSON can hold it."""
    return {'row': self._row}

  def set_state(self, state: dict[str, int]) -> None:
    """Goes on from where `get_state` was called.

    Raises:
      ValueError: not a state of this class.
    """
    row = state.get('row') if isinstance(state, dict) else None
    if type(row) is not int or row < 0:
      raise ValueError(
        f"data state {state!r}: expected {{'row': n}}, the number of the next"
        ' row.'
      )
    self._seek(row)

  def close(self) -> None:
    """Ends the thread."""
    self._iterator.close()

  def _seek(self, row: int) -> None:
    self._row = row
    dataset = (
      grain.MapDataset.range(row, _ENDLESS)
      .map(self._source.__getitem__)
      .batch(self._shape[0] * self._shape[1], batch_fn=self._stack)
    )
    self._iterator = iter(
      dataset.to_iter_dataset(
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
      )
    )

  def _stack(self, rows) -> packing.Batch:
    batch = packing.stack(rows)
    return packing.Batch(*(field.reshape(*self._shape, -1) for field in batch))


def batches(
  source: RowSource, batch: int, microbatches: int = 1, start: int = 0
) -> Batches:
  """Returns an endless iterator of batches [A, B, L] with exact resume.

  Args:
    source: the rows, in order.
    batch: B, rows a microbatch.
    microbatches: A.
    start: number of the first row.
  """
  return Batches(source, batch, microbatches, start)


def epoch(source: RowSource, batch: int) -> Iterator[packing.Batch]:
  """Yields each row of one epoch once, as batches [B, L] of one shape.

  Rows of padding, whose weight is 0, fill the last batch.
  """
  for first in range(0, len(source), batch):
    rows = [source[i] for i in range(first, min(first + batch, len(source)))]
    padding = packing.row([], len(rows[0].tokens))
    yield packing.stack(rows + [padding] * (batch - len(rows)))

"""Rows to batches, in an order that an interruption cannot change.

A row source returns any row by its number. The loader batches the rows ahead
of the step, in one thread of Grain, and knows the number of the next row. That
number is the loader's whole state. It counts rows, not batches, so it does not
depend on the batch size. Where the row source can account for its rows, as a
mixture can, the state holds the account as well, and a text that is not the one
before the interruption is refused.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any
from typing import Protocol

import grain
import numpy as np

from kaiju_jax.data import packing

_ENDLESS = 2**62


class RowSource(Protocol):
  """Rows as a pure function of a config, a seed and the row's number."""

  def __len__(self) -> int:
    """Rows of one epoch."""

  def __getitem__(self, index: int) -> packing.Row:
    """Returns row `index`, from 0 on; after one epoch comes the next."""


class Accountable(RowSource, Protocol):
  """A row source that can tell whether its rows are still the same."""

  def account(self, index: int) -> Any:
    """Returns what the rows before `index` were made of, for JSON."""

  def check_account(self, index: int, account: Any) -> None:
    """Raises ValueError where `account(index)` is not what it was."""


class Batches(Iterator[packing.Batch]):
  """An endless iterator of batches [A, B, L], which can say where it is."""

  def __init__(
    self,
    source: RowSource,
    batch: int,
    microbatches: int,
    start: int,
    own: Sequence[int],
  ):
    self._source = source
    self._batch = batch
    self._microbatches = microbatches
    self._own = own
    self._seek(start)

  def __next__(self) -> packing.Batch:
    batch = next(self._iterator)
    self._row += self._microbatches * self._batch
    return batch

  def get_state(self) -> dict[str, Any]:
    """Returns what `set_state` takes; JSON can hold it."""
    state = {'row': self._row}
    if hasattr(self._source, 'account'):
      state['account'] = self._source.account(self._row)
    return state

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from where `get_state` was called.

    Raises:
      ValueError: not a state of this class, or the rows before it were others.
    """
    row = state.get('row') if isinstance(state, dict) else None
    if type(row) is not int or row < 0:
      raise ValueError(
        f"data state {state!r}: expected {{'row': n}}, the number of the next"
        ' row.'
      )
    if hasattr(self._source, 'check_account'):
      self._source.check_account(row, state.get('account'))
    self._seek(row)

  def close(self) -> None:
    """Ends the thread."""
    self._iterator.close()

  def _seek(self, row: int) -> None:
    self._row = row
    # Functions, not methods: a method would refer back to this object, and a
    # dropped iterator and its thread would live until a garbage collection.
    draw = functools.partial(_draw, self._source, row, self._own, self._batch)
    stack = functools.partial(_stack, (self._microbatches, len(self._own)))
    dataset = (
      grain.MapDataset.range(_ENDLESS)
      .map(draw)
      .batch(self._microbatches * len(self._own), batch_fn=stack)
    )
    self._iterator = iter(
      dataset.to_iter_dataset(
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
      )
    )


def _draw(
  source: RowSource, first: int, own: Sequence[int], batch: int, number: int
) -> packing.Row:
  """Returns own row `number`, where the first microbatch begins at `first`."""
  microbatch, place = divmod(number, len(own))
  return source[first + microbatch * batch + own[place]]


def _stack(shape: Sequence[int], rows: Sequence[packing.Row]) -> packing.Batch:
  """Returns [A · b] rows as a batch [A, b, …]; `shape` is (A, b)."""
  return packing.stack(rows).map(lambda x: x.reshape(*shape, *x.shape[1:]))


def batches(
  source: RowSource,
  batch: int,
  microbatches: int = 1,
  start: int = 0,
  own: Sequence[int] | None = None,
) -> Batches:
  """Returns an endless iterator of batches [A, B, L] with exact resume.

  Args:
    source: the rows, in order.
    batch: B, rows per microbatch.
    microbatches: A.
    start: number of the first row.
    own: the rows of each microbatch (0…B − 1, in order) that this process
      reads; by default all. The loader's state does not depend on it.
  """
  own = range(batch) if own is None else own
  return Batches(source, batch, microbatches, start, own)


def epoch(source: RowSource, batch: int) -> Iterator[packing.Batch]:
  """Yields each row of one epoch once, as batches [B, L] of one shape.

  Rows of padding fill the last batch; their weights are 0.
  """
  for first in range(0, len(source), batch):
    rows = [source[i] for i in range(first, min(first + batch, len(source)))]
    padding = packing.row([], len(rows[0].tokens))
    if (extras := rows[0].extras) is not None:
      zeros = {name: np.zeros_like(array) for name, array in extras.items()}
      padding = padding._replace(extras=zeros)
    yield packing.stack(rows + [padding] * (batch - len(rows)))

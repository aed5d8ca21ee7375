"""Batches rows in an order that an interruption cannot change.

A row source returns any row by its number. The loader batches the rows ahead of
the step, in one thread of Grain, and knows the number of the next row. That
number alone says where a run is. It counts rows, not batches, so that it does
not depend on the batch size.

The loader's state also holds a description of the text (`same_text.py`) and, if
the row source has one, as a mixture has, its account of the rows so far. The
loader refuses to resume if either has changed.

Where batches grow (`training/batch_schedule.py`), a batch keeps its shape [A,
B, L]. The microbatches beyond the current size are padding; they take no rows.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any
from typing import Protocol

import grain
import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.data import same_text

_ENDLESS = 2**62

# (row, steps) → the row at which the step begins that is `steps` steps later.
After = Callable[[int, int], int]


class RowSource(Protocol):
  """Rows as a pure function of a config, a seed and the row's number."""

  def __len__(self) -> int:
    """Returns the number of rows of one epoch."""

  def __getitem__(self, index: int) -> packing.Row:
    """Returns row `index`, from 0 on; the next epoch follows each epoch."""


class Batches(Iterator[packing.Batch]):
  """An endless iterator of batches [A, B, L], with a state to resume from."""

  def __init__(
    self,
    source: RowSource,
    batch: int,
    microbatches: int,
    start: int,
    own: Sequence[int],
    after: After | None = None,
    text: Mapping[str, Any] | None = None,
  ):
    self._source = source
    self._text = text
    self._batch = batch
    self._microbatches = microbatches
    self._own = own
    self._after = after or functools.partial(_equal, batch * microbatches)
    self.seek(start)

  def __next__(self) -> packing.Batch:
    batch = next(self._iterator)
    self._row = self._after(self._row, 1)
    return batch

  def get_state(self) -> dict[str, Any]:
    """Returns the state for `set_state`; JSON can hold it."""
    state = {'row': self._row}
    if self._text is not None:
      state['text'] = self._text
    if hasattr(self._source, 'account'):
      state['account'] = self._source.account(self._row)
    return state

  def set_state(self, state: dict[str, Any]) -> None:
    """Continues from the place of `get_state`.

    Raises:
      ValueError: not a state of this class, or the text or the rows before the
        place have changed.
    """
    row = state.get('row') if isinstance(state, dict) else None
    if type(row) is not int or row < 0:
      raise ValueError(
        f"data state {state!r}: expected {{'row': n}}, the number of the next"
        ' row.'
      )
    if self._text is not None:
      same_text.check(state.get('text'), self._text)
    if hasattr(self._source, 'check_account'):
      self._source.check_account(row, state.get('account'))
    self.seek(row)

  def close(self) -> None:
    """Ends the thread."""
    self._iterator.close()

  def seek(self, row: int) -> None:
    """Continues from a row, without a check of the rows before it."""
    self._row = row
    # Functions, not methods: a method would refer back to this object, so that
    # a dropped iterator and its thread would live until a garbage collection.
    draw = functools.partial(
      _draw,
      self._source,
      functools.partial(self._after, row),
      (self._microbatches, self._batch),
      self._own,
    )
    self._iterator = iter(
      grain.MapDataset.range(_ENDLESS)
      .map(draw)
      .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    )


def _equal(rows: int, row: int, steps: int) -> int:
  """Returns the row at which the step begins that is `steps` after `row`."""
  return row + steps * rows


def _draw(
  source: RowSource,
  begin: Callable[[int], int],
  shape: tuple[int, int],
  own: Sequence[int],
  number: int,
) -> packing.Batch:
  """Returns this process's rows of batch `number`, [A, b, …]."""
  microbatches, batch = shape
  firsts = range(begin(number), begin(number + 1), batch)
  rows = [source[first + place] for first in firsts for place in own]
  rows = _fill(rows, microbatches * len(own))
  return packing.stack(rows).map(
    lambda x: x.reshape(microbatches, len(own), *x.shape[1:])
  )


def _fill(rows: Sequence[packing.Row], count: int) -> list[packing.Row]:
  """Returns the rows, padded to `count` with rows of weight 0."""
  padding = packing.row([], len(rows[0].tokens))
  if (extras := rows[0].extras) is not None:
    zeros = {name: np.zeros_like(array) for name, array in extras.items()}
    padding = padding._replace(extras=zeros)
  return [*rows, *[padding] * (count - len(rows))]


def batches(
  source: RowSource,
  batch: int,
  microbatches: int = 1,
  start: int = 0,
  own: Sequence[int] | None = None,
  after: After | None = None,
  text: Mapping[str, Any] | None = None,
) -> Batches:
  """Returns an endless iterator of batches [A, B, L] with exact resume.

  Args:
    source: the rows, in order.
    batch: B, rows per microbatch.
    microbatches: A.
    start: number of the first row.
    own: the rows of each microbatch (0…B − 1, in order) that this process
      reads; by default all. The loader's state does not depend on it.
    after: where each step begins (`BatchSchedule.row_after`); by default every
      step takes A·B rows.
    text: {source: `same_text.describe`}, the text from which the rows are made;
      None where they are not made from text.
  """
  own = range(batch) if own is None else own
  return Batches(source, batch, microbatches, start, own, after, text)


def epoch(source: RowSource, batch: int) -> Iterator[packing.Batch]:
  """Yields each row of one epoch once, as batches [B, L] of one shape.

  Rows of padding with weight 0 fill the last batch.
  """
  for first in range(0, len(source), batch):
    rows = [source[i] for i in range(first, min(first + batch, len(source)))]
    yield packing.stack(_fill(rows, batch))

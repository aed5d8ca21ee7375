"""Rows to batches, in an order that an interruption cannot change.

A row source returns any row by its number. The loader batches the rows ahead
of the step, in one thread of Grain, and knows the number of the next row. That
number is the loader's whole state. It counts rows, not batches, so it does not
depend on the batch size. Beside it lies what tells whether the rows are still
the same: a description of the text (`same_text.py`), and where the row source
can account for its rows, as a mixture can, that account. Another text than
before the interruption is refused.

Where batches grow (`training/batch_schedule.py`), a batch keeps its shape
[A, B, L]: the microbatches that do not count are padding, and their rows are
neither drawn nor counted.
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

# (row, steps) → the row at which the step begins that is so many steps later.
After = Callable[[int, int], int]


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
    """Returns what `set_state` takes; JSON can hold it."""
    state = {'row': self._row}
    if self._text is not None:
      state['text'] = self._text
    if hasattr(self._source, 'account'):
      state['account'] = self._source.account(self._row)
    return state

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from where `get_state` was called.

    Raises:
      ValueError: not a state of this class, or the text or the rows before it
        were others.
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
    """Goes on from a row, whatever the rows before it were."""
    self._row = row
    # Functions, not methods: a method would refer back to this object, and a
    # dropped iterator and its thread would live until a garbage collection.
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
  """Returns where steps of `rows` rows each lead from `row`."""
  return row + steps * rows


def _draw(
  source: RowSource,
  begin: Callable[[int], int],
  shape: tuple[int, int],
  own: Sequence[int],
  number: int,
) -> packing.Batch:
  """Returns batch `number`, [A, b, …], of its own rows.

  Args:
    source: the rows.
    begin: number of a batch → its first row.
    shape: (A, B).
    own: the b of each microbatch's B rows that are read.
    number: the batch's number, from 0 on.
  """
  microbatches, batch = shape
  firsts = range(begin(number), begin(number + 1), batch)
  rows = [source[first + place] for first in firsts for place in own]
  rows = _fill(rows, microbatches * len(own))
  return packing.stack(rows).map(
    lambda x: x.reshape(microbatches, len(own), *x.shape[1:])
  )


def _fill(rows: Sequence[packing.Row], count: int) -> list[packing.Row]:
  """Returns rows and as many of padding, weight 0, as make `count`."""
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
    text: {source: `same_text.describe`}, the text that the rows are made of;
      None where they are made of none.
  """
  own = range(batch) if own is None else own
  return Batches(source, batch, microbatches, start, own, after, text)


def epoch(source: RowSource, batch: int) -> Iterator[packing.Batch]:
  """Yields each row of one epoch once, as batches [B, L] of one shape.

  Rows of padding fill the last batch; their weights are 0.
  """
  for first in range(0, len(source), batch):
    rows = [source[i] for i in range(first, min(first + batch, len(source)))]
    yield packing.stack(_fill(rows, batch))

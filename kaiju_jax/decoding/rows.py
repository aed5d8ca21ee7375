"""The host's account of a cache's rows: which are open, and with which pages.

A row takes the pages of its longest text when it opens and gives them back when
it closes, so that a text that has begun can always be finished.
"""

from collections.abc import Mapping

import numpy as np

from kaiju_jax.decoding import pages as pages_lib
from kaiju_jax.model import paging


class Rows:
  """Free rows of a cache, and the pages of the others.

  Attributes:
    rows: R, how many rows there are.
    pages: who holds each page.
  """

  def __init__(self, pools: Mapping[str, paging.Pool], rows: int):
    self.rows = rows
    self._pools = pools
    self.pages = pages_lib.Pages(
      {kind: pool.pages for kind, pool in pools.items()}
    )
    # What is handed out next stands at the end.
    self._free_rows = list(range(rows))[::-1]
    self._taken: dict[int, dict[str, list[int]]] = {}

  def open(
    self, length: int, extra: int = 0
  ) -> tuple[int, dict[str, np.ndarray]]:
    """Takes a row and the pages of a text of `length` tokens.

    Args:
      length: tokens of the whole text, prompt and continuation.
      extra: slots beyond it, in every kind.

    Returns:
      The row, and for each kind its pages, int32 [N], −1 after the last.

    Raises:
      ValueError: no row could ever hold it.
      pages.Full: no row is free, or too few pages are.
    """
    needs = {kind: self._need(kind, length, extra) for kind in self._pools}
    if not self._free_rows:
      raise pages_lib.Full(f'all {self.rows} rows are open: close one first.')
    for kind, count in needs.items():
      if count > self.pages.free(kind):
        raise pages_lib.Full(
          f'a text of {length} tokens needs {count} {kind} pages and'
          f' {self.pages.free(kind)} are free: close a row first.'
        )
    row = self._free_rows.pop()
    taken = {
      kind: self.pages.take(kind, count) for kind, count in needs.items()
    }
    self._taken[row] = taken
    tables = {}
    for kind, pages in taken.items():
      table_N = np.full(self._pools[kind].row_pages, -1, np.int32)
      table_N[: len(pages)] = pages
      tables[kind] = table_N
    return row, tables

  def close(self, row: int) -> None:
    """Gives a row and its pages back.

    Raises:
      ValueError: the row is not open.
    """
    if row not in self._taken:
      raise ValueError(f'row={row}: is not open; open are {self.open_rows}.')
    for kind, pages in self._taken.pop(row).items():
      self.pages.release(kind, reversed(pages))
    self._free_rows.append(row)

  @property
  def open_rows(self) -> tuple[int, ...]:
    return tuple(sorted(self._taken))

  def _need(self, kind: str, length: int, extra: int) -> int:
    pool = self._pools[kind]
    if pool.window is not None:
      # A ring turns as a whole: every row needs all of its pages.
      return pool.row_pages
    count = -(-(length + extra) // pool.page)
    if count > pool.row_pages:
      raise ValueError(
        f'length={length}, extra={extra}: a row of the cache holds'
        f' {pool.row_slots} tokens.'
      )
    return count

"""Turns the rings of rows whose text grows.

A ring is a row's page table in a kind with a window. When the text grows past
the table's end, the pages that leave the window become its last pages. A page
that something else also holds is replaced by a free one.
"""

from collections.abc import Mapping

import numpy as np

from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.model import paging


class Growth:
  """The turns of rings for one call: `keep` or `undo` them after it."""

  def __init__(
    self,
    pools: Mapping[str, paging.Pool],
    tables: Mapping[str, np.ndarray],
    firsts: Mapping[str, np.ndarray],
    pages: pages_lib.Pages,
    tree: prefix_tree.PrefixTree,
  ):
    """Starts with rings as they are; `turn` changes them in place.

    By kind, `tables` are the pages of all rows, int32 [R, N], and `firsts` the
    index of each row's first page [R]. `tree` evicts points where pages are
    short.
    """
    self._pools = pools
    self._tables = tables
    self._firsts = firsts
    self._pages = pages
    self._tree = tree
    self._before: list[tuple[str, int, np.ndarray, int]] = []
    self._taken: list[tuple[str, int]] = []
    self._leaving: list[tuple[str, int]] = []

  def turn(self, kind: str, row: int, end: int) -> None:
    """Turns a ring until it has the page of position end − 1 and all before it.

    Raises pages.Full: other rows hold all pages.
    """
    table_N, first = self._tables[kind][row], int(self._firsts[kind][row])
    pool, N = self._pools[kind], len(table_N)
    count = -(-end // pool.page)
    to = first + pool.turns(first * pool.page, end)
    if to == first and table_N[count - 1 - first] >= 0:
      return
    self._before.append((kind, row, table_N.copy(), first))
    turned_N = np.full(N, -1, np.int32)
    turned_N[: max(N - (to - first), 0)] = table_N[to - first :]
    missing = np.flatnonzero(turned_N[: count - to] < 0)
    self._leaving += [
      (kind, int(page)) for page in table_N[: to - first] if page >= 0
    ]
    # Evicting a point may free a page, or leave it with no holder but a ring.
    while len(self._reusable(kind)) + self._pages.free(kind) < len(missing):
      if not self._tree.evict():
        break
    turned_N[missing] = self._take(kind, len(missing))
    self._tables[kind][row] = turned_N
    self._firsts[kind][row] = to

  def keep(self) -> None:
    """Releases the pages that left the rings."""
    for kind, page in self._leaving:
      self._pages.release(kind, [page])

  def undo(self) -> None:
    """Restores the rings, and releases the pages taken for them."""
    for kind, row, table_N, first in reversed(self._before):
      self._tables[kind][row] = table_N
      self._firsts[kind][row] = first
    for kind, page in self._taken:
      self._pages.release(kind, [page])

  def _reusable(self, kind: str) -> list[int]:
    """Returns pages that left rings and that nothing else holds."""
    return [
      page
      for page in dict.fromkeys(y for x, y in self._leaving if x == kind)
      if self._pages.holders(kind, page) == self._leaving.count((kind, page))
    ]

  def _take(self, kind: str, count: int) -> list[int]:
    """Returns pages from `_reusable` first, and then free ones."""
    again = self._reusable(kind)[:count]
    for page in again:
      self._leaving.remove((kind, page))
    fresh = self._pages.take(kind, count - len(again))
    self._taken += [(kind, page) for page in fresh]
    return again + fresh

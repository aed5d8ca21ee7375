"""The host's account of a cache's rows: which are open, and with which pages.

A row that opens holds the pages of the point that the prefix tree has for its
text. It then takes others, so that a text that has begun can be finished:

    global    all pages of the longest text, at once
    local     a ring's pages are set aside, and taken as the text grows

Pages that only points hold count as free, because taking pages evicts points
(`eviction.py`). Rows never set aside more than the pool has.

A ring turns by its table: entry n is the page of the positions from (first + n)
· S on; the first entries, `Pool.pinned`, hold the text's first pages and do not
turn. The page that leaves the window becomes the last, unless something else
holds it too; then a fresh page takes its place (`grow`). The host alone knows
this, and passes the tables with every call (`rings`).
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.model import paging


class Opened(NamedTuple):
  """A row that was opened."""

  row: int
  # Tokens of its text that are in the cache.
  length: int
  # By kind (from, to), pages to copy before anything is written: the page with
  # the text's last tokens is another row's, or holds more.
  copies: dict[str, tuple[int, int]]


class Growth:
  """The turns of rings for one call: `keep` or `undo` them after it."""

  def __init__(self, pages: pages_lib.Pages, tree: prefix_tree.PrefixTree):
    """Starts with rings as they are; `tree` evicts where pages are short."""
    self._pages = pages
    self._tree = tree
    # What `turn` changed: arrays, rows, and what they held.
    self._before: list[tuple[np.ndarray, int, Any]] = []
    self._taken: list[tuple[str, int]] = []
    self._leaving: list[tuple[str, int]] = []

  def turn(
    self,
    kind: str,
    pool: paging.Pool,
    table_RN: np.ndarray,
    first_R: np.ndarray,
    row: int,
    end: int,
  ) -> None:
    """Turns a ring until it has the page of position end − 1 and all before it.

    It changes the pages of all rows, int32 [R, N], and the index of each row's
    first page [R], in place. Raises pages.Full: other rows hold all pages.
    """
    table_N, first = table_RN[row], int(first_R[row])
    N, pinned = len(table_N), pool.pinned
    count = -(-end // pool.page)
    to = first + pool.turns(first * pool.page, end)
    if to == first and table_N[count - 1 - first] >= 0:
      return
    self._before += [(table_RN, row, table_N.copy()), (first_R, row, first)]
    left = pinned + to - first  # Pages from `pinned` to here leave.
    turned_N = np.full(N, -1, np.int32)
    turned_N[:pinned] = table_N[:pinned]
    turned_N[pinned : pinned + max(N - left, 0)] = table_N[left:]
    missing = np.flatnonzero(turned_N[: count - to] < 0)
    self._leaving += [
      (kind, int(page)) for page in table_N[pinned:left] if page >= 0
    ]
    # Evicting a point may free a page, or leave it with no holder but a ring.
    while len(self._reusable(kind)) + self._pages.free(kind) < len(missing):
      if not self._tree.evict():
        break
    turned_N[missing] = self._take(kind, len(missing))
    table_RN[row], first_R[row] = turned_N, to

  def keep(self) -> None:
    """Releases the pages that left the rings."""
    for kind, page in self._leaving:
      self._pages.release(kind, [page])

  def undo(self) -> None:
    """Restores the rings, and releases the pages taken for them."""
    for array, row, held in reversed(self._before):
      array[row] = held
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


class Rows:
  """The free rows of a cache, and the pages of the open ones."""

  def __init__(self, pools: Mapping[str, paging.Pool], rows: int):
    self.rows = rows
    self._pools = pools
    # The reference counts.
    self.pages: pages_lib.Pages = pages_lib.Pages(
      {kind: pool.pages for kind, pool in pools.items()}
    )
    # The kinds with a window.
    self._rings = [x for x, pool in pools.items() if pool.window is not None]
    # S, slots of a page.
    self.page: int = next(iter(pools.values())).page
    # Decides which of them are evicted.
    self.policy: eviction.LeastWorth = eviction.LeastWorth(self.pages)
    read = {
      kind: prefix_tree.Ring(pools[kind].window, pools[kind].pinned)
      for kind in self._rings
    }
    # The points at which texts can go on.
    self.tree: prefix_tree.PrefixTree = prefix_tree.PrefixTree(
      self.pages, self.page, read, self.policy
    )
    # The next row to hand out is at the end.
    self._free_rows = list(range(rows))[::-1]
    # By open row, how many pages of each ring it may have at once.
    self._set_aside: dict[int, dict[str, int]] = {}
    # How often rows were opened and closed.
    self._changes = 0
    self._matches: dict[int, prefix_tree.Match | None] = {}
    self._tables = {
      kind: np.full((rows, pool.row_pages), -1, np.int32)
      for kind, pool in pools.items()
    }
    self._firsts = {kind: np.zeros(rows, np.int64) for kind in pools}
    # Positions before these are lost: a search used their slots.
    self._oldest_kept = {kind: np.zeros(rows, np.int64) for kind in pools}

  @property
  def open_rows(self) -> tuple[int, ...]:
    return tuple(sorted(self._set_aside))

  @property
  def version(self) -> tuple[int, int]:
    """Changes as rows open or close, and as points are made or dropped."""
    return self._changes, self.tree.version

  def is_open(self, row: int) -> bool:
    """Returns whether a row is open."""
    return row in self._set_aside

  @property
  def free(self) -> int:
    return len(self._free_rows)

  def room(self, kind: str) -> int:
    """Returns how many pages a new row could have after evictions."""
    pool = self._pools[kind]
    if pool.window is None:
      return pool.pages - int(self._held(kind).sum())
    return pool.pages - self._set_aside_of(kind)

  def free_pages(self) -> dict[str, int]:
    """Returns by kind how many pages a new row could have."""
    return {kind: self.room(kind) for kind in self._pools}

  def frees(self, row: int) -> dict[str, int]:
    """Returns by kind how many pages more there were without an open row."""
    self._check_open(row)
    counts = dict(self._set_aside[row])
    for kind, pool in self._pools.items():
      if pool.window is None:
        table_RN = self._tables[kind]
        holders_P = np.bincount(table_RN[table_RN >= 0], minlength=pool.pages)
        own_N = table_RN[row][table_RN[row] >= 0]
        counts[kind] = int((holders_P[own_N] == 1).sum())
    return counts

  def needs(
    self, length: int, text: prefix_tree.Text | None = None, extra: int = 0
  ) -> tuple[dict[str, int], int]:
    """Returns what `open` would take: pages by kind, and tokens resumed."""
    _, match, needs = self._fit(length, extra, text)
    return needs, 0 if match is None else match.length

  def match_of(self, row: int) -> prefix_tree.Match | None:
    """Returns what a row resumed, if anything."""
    return self._matches[row]

  def rings(self) -> dict[str, np.ndarray]:
    """Returns the page tables [R, N] of all rows, in kinds with a window."""
    return {kind: self._tables[kind].copy() for kind in self._rings}

  def pages_of(self, row: int) -> dict[str, dict[int, int]]:
    """Returns a row's pages by kind: {index: page} for positions index · S on.

    Pages in which a search left only a part of the text are left out.
    """
    self._check_open(row)
    found = {}
    for kind, table_RN in self._tables.items():
      table_N, pinned = table_RN[row], self._pools[kind].pinned
      place_N = np.arange(len(table_N))
      index_N = paging.spread(place_N, self._firsts[kind][row], pinned)
      is_whole_N = index_N * self.page >= self._oldest_kept[kind][row]
      is_whole_N |= place_N < pinned
      found[kind] = {
        int(index_N[place]): int(table_N[place])
        for place in np.flatnonzero(is_whole_N & (table_N >= 0))
      }
    return found

  def open(
    self, length: int, extra: int = 0, text: prefix_tree.Text | None = None
  ) -> Opened:
    """Takes a row, and the pages for a text of `length` tokens in all.

    `extra` are slots beyond it, in every kind; `text` is its beginning, resumed
    as far as the tree has it. Raises ValueError: no row could ever hold it;
    pages.Full: no row is free, or too few pages are.
    """
    counts, match, needs = self._fit(length, extra, text)
    if not self._free_rows:
      raise pages_lib.Full(f'all {self.rows} rows are open: close one first.')
    for kind, count in needs.items():
      room = self.room(kind)
      if count > room:
        raise pages_lib.Full(
          f'a text of {length} tokens needs {count} {kind} pages and {room} are'
          ' free: close a row first.'
        )
    row = self._free_rows.pop()
    self._changes += 1
    self._set_aside[row] = {kind: counts[kind] for kind in self._rings}
    self._matches[row] = match
    copies = {}
    if match is not None:
      self.tree.touch(match, text.owner)
      copies = self._resume(row, match)
    for kind, count in counts.items():
      if kind not in self._rings:
        self._take(kind, row, range(count))
    return Opened(row, 0 if match is None else match.length, copies)

  def close(self, row: int) -> None:
    """Frees a row and releases its pages; ValueError if it is not open."""
    self._check_open(row)
    self._changes += 1
    del self._set_aside[row], self._matches[row]
    for kind, table_RN in self._tables.items():
      held = table_RN[row][table_RN[row] >= 0]
      self.pages.release(kind, held[::-1].tolist())
      table_RN[row] = -1
      self._firsts[kind][row] = self._oldest_kept[kind][row] = 0
    self._free_rows.append(row)

  def grow(self, ends: Mapping[int, int]) -> Growth:
    """Turns rings so that rows have room for text up to `ends`.

    `ends` has by row one past the last position that it will hold. The caller
    keeps the result once the device has followed, or undoes it.
    """
    growth = Growth(self.pages, self.tree)
    try:
      for kind in self._rings:
        held = self._pools[kind], self._tables[kind], self._firsts[kind]
        for row, end in ends.items():
          growth.turn(kind, *held, row, end)
    except BaseException:
      growth.undo()
      raise
    return growth

  def copy_on_write(self, row: int) -> dict[str, list[tuple[int, int]]]:
    """Gives a row its own copies of ring pages that others hold, for a search.

    It also takes the pages that the ring still lacks. Returns by kind the pages
    to copy, (from, to). Raises pages.Full, and takes none: too few are free.
    """
    self._check_open(row)
    while True:
      places = {kind: self._entries_to_copy(kind, row) for kind in self._rings}
      lacking = {
        kind: f'{len(x)} {kind} pages are needed and {self.pages.free(kind)}'
        ' are free; rows hold all others.'
        for kind, x in places.items()
        if len(x) > self.pages.free(kind)
      }
      if not lacking:
        break
      # Evicting a point may also leave its pages to the row alone.
      if not self.tree.evict():
        raise pages_lib.Full(*lacking.values())
    copies = {kind: [] for kind in self._rings}
    for kind, owned in places.items():
      for place in owned:
        page = int(self._tables[kind][row, place])
        (own,) = self.pages.take(kind, 1)
        self._tables[kind][row, place] = own
        if page >= 0:
          self.pages.release(kind, [page])
          copies[kind].append((page, own))
    return copies

  def _entries_to_copy(self, kind: str, row: int) -> list[int]:
    """Returns the entries of a ring that lack a page or share theirs."""
    return [
      place
      for place, page in enumerate(self._tables[kind][row])
      if (page < 0 and place < self._set_aside[row][kind])
      or (page >= 0 and self.pages.holders(kind, int(page)) > 1)
    ]

  def settle(
    self, row: int, first: Mapping[str, int], held: Mapping[str, int]
  ) -> None:
    """Takes over a row's text from a search.

    By kind, `first` is by how many positions it has turned, and `held` the
    position from which on the text's tokens are there, beside the pinned ones.
    """
    for kind, position in first.items():
      self._firsts[kind][row] = position // self.page
      self._oldest_kept[kind][row] = held[kind]

  def oldest_kept(self, row: int) -> dict[str, int]:
    """Returns by kind the position before which a search left no text."""
    return {kind: int(x[row]) for kind, x in self._oldest_kept.items()}

  def firsts(self, row: int) -> dict[str, int]:
    """Returns by kind by how many positions a row has turned."""
    return {kind: int(x[row]) * self.page for kind, x in self._firsts.items()}

  def table(self, row: int) -> dict[str, np.ndarray]:
    """Returns a row's tables by kind, int32 [N]."""
    return {kind: x[row].copy() for kind, x in self._tables.items()}

  def _resume(
    self, row: int, match: prefix_tree.Match
  ) -> dict[str, tuple[int, int]]:
    """Gives a row the pages of a match; returns the pages to copy."""
    found = self.tree.pages(match)
    index, cut = divmod(match.length, self.page)
    for kind, pages in found.items():
      self.pages.hold(kind, pages.values())
      pool = self._pools[kind]
      if pool.window is not None:
        turning = [x - pool.pinned for x in pages if x >= pool.pinned]
        self._firsts[kind][row] = min(turning, default=0)
      for one, page in pages.items():
        self._tables[kind][row, self._place(kind, row, one)] = page
    if not cut:
      return {}
    copies = {}
    for kind, pages in found.items():
      # Released first: if nothing else holds the page, the row may take it as
      # its own copy.
      self.pages.release(kind, [pages[index]])
      place = self._place(kind, row, index)
      self._tables[kind][row, place] = -1
      self._take(kind, row, [place])
      copies[kind] = pages[index], int(self._tables[kind][row, place])
    return copies

  def _place(self, kind: str, row: int, index: int) -> int:
    """Returns the entry of a row's table for one of the pages that it has."""
    pinned = self._pools[kind].pinned
    return index if index < pinned else index - int(self._firsts[kind][row])

  def _take(self, kind: str, row: int, places: Iterable[int]) -> None:
    """Takes pages for those of these entries of a row's table without one."""
    table_N = self._tables[kind][row]
    missing = [x for x in places if table_N[x] < 0]
    self.tree.make_room({kind: len(missing)})
    table_N[missing] = self.pages.take(kind, len(missing))

  def _fit(self, length: int, extra: int, text: prefix_tree.Text | None):
    """Returns a new row's pages by kind, its match, and the pages it adds.

    The last leaves out whole pages of its match that rows hold already.
    """
    counts = {kind: self._count(kind, length, extra) for kind in self._pools}
    match = None if text is None else self.tree.match(text)
    needs = dict(counts)
    if match is not None:
      whole = match.length // self.page
      for kind, pages in self.tree.pages(match).items():
        if kind not in self._rings:
          whole_N = [page for x, page in pages.items() if x < whole]
          needs[kind] -= int(self._held(kind)[whole_N].sum())
    return counts, match, needs

  def _count(self, kind: str, length: int, extra: int) -> int:
    pool = self._pools[kind]
    count = -(-(length + extra) // pool.page)
    if pool.window is not None:
      return min(count, pool.row_pages)
    if count > pool.row_pages:
      raise ValueError(
        f'length={length}, extra={extra}: a row of the cache holds'
        f' {pool.row_slots} tokens.'
      )
    return count

  def _held(self, kind: str) -> np.ndarray:
    """Returns which pages rows hold, bool [P]."""
    is_held_P = np.zeros(self._pools[kind].pages, bool)
    table_RN = self._tables[kind]
    is_held_P[table_RN[table_RN >= 0]] = True
    return is_held_P

  def _set_aside_of(self, kind: str) -> int:
    return sum(rings[kind] for rings in self._set_aside.values())

  def _check_open(self, row: int) -> None:
    if row not in self._set_aside:
      raise ValueError(f'row={row}: is not open; open are {self.open_rows}.')

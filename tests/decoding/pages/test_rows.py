"""Rows over pages of labels: which text's token does each slot hold?

The device is played by lists: it copies the pages that it is told to copy,
turns rings as `cache.rotate` does, and writes into every slot a label of the
whole text up to that token. Whatever is opened, grown, undone, recorded, lent,
evicted or closed, each row must find the labels of its own text, and a row that
was opened must always be able to grow.
"""

from hypothesis import stateful
from hypothesis import strategies
import numpy as np
import pytest

from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.model import paging
from tests.decoding import machines

S, WINDOW, LENGTH, ROWS = 4, 10, 48, 4
POOLS = {
  'global': paging.Pool((1,), None, S, row_pages=LENGTH // S, pages=40),
  'local': paging.Pool((0,), WINDOW, S, row_pages=3, pages=12),
}


numbers, flags = strategies.integers(0, 99), strategies.booleans()
tails = strategies.lists(strategies.integers(1, 2), min_size=1, max_size=30)


class Row:
  """What the device knows of a row, and the text that should be there."""

  def __init__(self, world, text):
    opened = world.rows.open(len(text.tokens), text=text)
    self.world, self.text, self.number = world, text, opened.row
    self.length = self.resumed = opened.length
    self.tables = world.rows.table(self.number)
    self.first = world.rows.firsts(self.number)
    self.oldest_kept = 0
    assert 0 <= opened.length < len(text.tokens)
    for kind, (source, target) in opened.copies.items():
      world.copy(kind, source, target)

  def turn(self, end, ring):
    self.tables['local'] = ring
    turns = max(0, -(-(end - 3 * S - self.first['local']) // S))
    self.first['local'] += turns * S

  def write(self, end):
    for position in range(self.length, end):
      for kind, table in self.tables.items():
        slot = position - self.first[kind]
        if slot >= 0:
          page = table[slot // S]
          assert page >= 0
          self.world.labels[kind][page][slot % S] = self.label(position)
    self.length = end

  def label(self, position):
    return position, hash(self.text.tokens[: position + 1].tobytes())

  def check(self):
    for kind, table in self.tables.items():
      lowest = self.length - (WINDOW - 1) if kind == 'local' else 0
      for position in range(max(0, lowest), self.length):
        slot = position - self.first[kind]
        held = self.world.labels[kind][table[slot // S]][slot % S]
        assert held == self.label(position), (kind, position)

  def record(self):
    text = self.text._replace(tokens=self.text.tokens[: self.length])
    rows = self.world.rows
    # No point can be made where a page of its window lacks tokens.
    if max(0, self.length - WINDOW + 1) // S * S < self.oldest_kept:
      with pytest.raises(ValueError, match=r'local page .* is missing'):
        rows.tree.record(text, rows.pages_of(self.number))
      return
    point = rows.tree.record(text, rows.pages_of(self.number))
    self.world.texts.setdefault(point, text)

  def lend(self, keeps_pages):
    """Owns its rings, and scribbles over what a search has no use for."""
    for kind, copies in self.world.rows.copy_on_write(self.number).items():
      for source, target in copies:
        self.world.copy(kind, source, target)
    self.tables = self.world.rows.table(self.number)
    lowest = max(0, self.length - WINDOW + 1)
    if keeps_pages:
      lowest = lowest // S * S
    lowest = max(lowest, self.oldest_kept)  # Of another search.
    held = {'global': 0, 'local': lowest}
    for kind, table in self.tables.items():
      for place, page in enumerate(table):
        for slot in range(S):
          position = self.first[kind] + place * S + slot
          if page >= 0 and not held[kind] <= position < self.length:
            self.world.labels[kind][page][slot] = 'a beam'
    self.world.rows.settle(self.number, self.first, held)
    self.oldest_kept = lowest


class World(stateful.RuleBasedStateMachine):
  """The rows of a cache, under all that may happen to them."""

  def __init__(self):
    super().__init__()
    self.open, self.texts = [], {}
    self.rows = rows_lib.Rows(POOLS, ROWS)
    self.labels = {
      kind: [[None] * S for _ in range(pool.pages)]
      for kind, pool in POOLS.items()
    }

  def copy(self, kind, source, target):
    self.labels[kind][target] = list(self.labels[kind][source])

  def row(self, number):
    return self.open[number % len(self.open)]

  def has_rows(self):
    return bool(self.open)

  @stateful.rule(
    tail=tails,
    other=numbers,
    kept=numbers,
    owner=strategies.sampled_from([b'', b'a', b'b']),
  )
  def open_row(self, tail, other, kept, owner):
    """Opens a row for a text over two tokens, so that many begin alike."""
    begin = np.array([1, 1, 2, 1, 2, 2, 1], np.int32)
    if self.open and other % 2:
      tokens = self.row(other).text.tokens
      begin = tokens[: 1 + kept % len(tokens)]
    tokens = np.array([*begin, *tail][:LENGTH], np.int32)
    text = prefix_tree.Text(tokens, min(7, len(tokens)), owner)
    try:
      self.open.append(Row(self, text))
    except pages_lib.Full:
      assert self.open

  @stateful.precondition(has_rows)
  @stateful.rule(
    chosen=strategies.sets(strategies.integers(0, ROWS - 1), min_size=1),
    count=strategies.integers(1, 13),
    is_undone=strategies.integers(0, 9),
  )
  def extend(self, chosen, count, is_undone):
    """Runs a few more tokens of several rows' texts in one call."""
    rows = [row for place, row in enumerate(self.open) if place in chosen]
    ends = {row: min(row.length + count, len(row.text.tokens)) for row in rows}
    growth = self.rows.grow({row.number: end for row, end in ends.items()})
    if is_undone == 9:
      growth.undo()
      return
    for row in rows:
      row.check()  # The call reads all before it writes.
    rings = self.rows.rings()['local']
    for row, end in ends.items():
      row.turn(end, rings[row.number])
    for row, end in ends.items():
      row.write(end)
    growth.keep()

  @stateful.precondition(has_rows)
  @stateful.rule(number=numbers)
  def record(self, number):
    if self.row(number).length:
      self.row(number).record()

  @stateful.precondition(has_rows)
  @stateful.rule(number=numbers, keeps_pages=flags)
  def lend(self, number, keeps_pages):
    self.row(number).lend(keeps_pages)  # What it needs was set aside.

  @stateful.precondition(has_rows)
  @stateful.rule(number=numbers)
  def close(self, number):
    row = self.row(number)
    self.open.remove(row)
    frees, before = self.rows.frees(row.number), self.rows.free_pages()
    self.rows.close(row.number)
    after = self.rows.free_pages()
    assert frees == {kind: after[kind] - before[kind] for kind in after}

  @stateful.precondition(lambda self: len(self.rows.tree))
  @stateful.rule(number=numbers)
  def drop(self, number):
    points = list(self.rows.tree.points())
    self.rows.tree.drop(points[number % len(points)])

  @stateful.rule()
  def evict(self):
    self.rows.tree.evict()

  @stateful.invariant()
  def rows_read_their_own_text(self):
    for row in self.open:
      row.check()

  @stateful.invariant()
  def points_hold_their_own_text(self):
    for point in self.rows.tree.points():
      tokens = self.texts[point].tokens
      for kind, pages in self.rows.tree.held_pages(point).items():
        lowest = point.length - (WINDOW - 1) if kind == 'local' else 0
        for position in range(max(0, lowest), point.length):
          held = self.labels[kind][pages[position // S]][position % S]
          assert held == (position, hash(tokens[: position + 1].tobytes()))

  def teardown(self):
    while self.open:
      self.close(0)
    self.rows.tree.clear()
    for kind, pool in POOLS.items():
      assert self.rows.pages.free(kind) == pool.pages


TestRows = machines.quick(World, 100, 100)
TestManyRows = pytest.mark.slow(machines.quick(World, 1500, 100))

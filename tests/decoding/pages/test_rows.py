"""Rows over pages of labels: which text's token does each slot hold?

The device is played by lists: it copies the pages that it is told to copy,
turns rings as `cache.rotate` does, and writes into every slot a label of the
whole text up to that token. Whatever is opened, grown, undone, recorded, lent,
evicted or closed, each row must find the labels of its own text, and a row that
was opened must always be able to grow.
"""

import random

from hypothesis import stateful
from hypothesis import strategies
import numpy as np
import pytest

from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.model import paging
from tests.decoding import machines

S, LENGTH, ROWS = 4, 48, 4
EVERYTHING = paging.Pool((1,), None, S, row_pages=LENGTH // S, pages=40)
# Of local pages this has none more than rows may need at once.
TIGHT = {'global': EVERYTHING, 'local': paging.Pool((0,), 10, S, 3, 12)}
SINKS = {'global': EVERYTHING, 'local': paging.Pool((0,), 6, S, 3, 20, sinks=3)}
TWO = {
  'local3+6': paging.Pool((0,), 3, S, 4, 28, sinks=6),
  'local10': paging.Pool((2,), 10, S, 3, 20),
  'global': EVERYTHING,
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
    self.oldest_kept = dict.fromkeys(world.pools, 0)
    assert 0 <= opened.length < len(text.tokens)
    for kind, (source, target) in opened.copies.items():
      world.copy(kind, source, target)

  def turn(self, end, rings):
    for kind, table_RN in rings.items():
      self.tables[kind] = table_RN[self.number]
      room = self.first[kind] + self.world.pools[kind].row_pages * S
      self.first[kind] += max(0, -(-(end - room) // S)) * S

  def slot(self, kind, position):
    """Returns where a position is, or would be if it is not kept any more."""
    if position < self.world.pinned[kind]:
      return position
    slot = position - self.first[kind]
    return slot if slot >= self.world.pinned[kind] else -1

  def write(self, end):
    for position in range(self.length, end):
      for kind, table in self.tables.items():
        slot = self.slot(kind, position)
        if slot >= 0:
          page = table[slot // S]
          assert page >= 0
          self.world.labels[kind][page][slot % S] = self.label(position)
    self.length = end

  def label(self, position):
    return position, hash(self.text.tokens[: position + 1].tobytes())

  def check(self):
    for kind, table in self.tables.items():
      for position in self.world.read(kind, self.length):
        slot = self.slot(kind, position)
        held = self.world.labels[kind][table[slot // S]][slot % S]
        assert held == self.label(position), (kind, position)

  def record(self):
    text = self.text._replace(tokens=self.text.tokens[: self.length])
    rows = self.world.rows
    # No point can be made where a page of its window lacks tokens.
    pages = rows.pages_of(self.number)
    is_lost = any(
      self.world.pinned[kind] <= position // S * S < self.oldest_kept[kind]
      for kind in self.tables
      for position in self.world.read(kind, self.length)
    )
    assert rows.tree.can_record(self.length, pages) != is_lost
    if is_lost:
      with pytest.raises(ValueError, match=r'local.* page .* is missing'):
        rows.tree.record(text, pages)
      return
    point = rows.tree.record(text, pages)
    self.world.texts.setdefault(point, text)

  def lend(self, keeps_pages):
    """Owns its rings, and scribbles over what a search has no use for."""
    for kind, copies in self.world.rows.copy_on_write(self.number).items():
      for source, target in copies:
        self.world.copy(kind, source, target)
    self.tables = self.world.rows.table(self.number)
    held = {}
    for kind, table in self.tables.items():
      window, pinned = self.world.pools[kind].window, self.world.pinned[kind]
      lowest = 0 if window is None else max(0, self.length - window + 1)
      if keeps_pages:
        lowest = lowest // S * S
      held[kind] = max(lowest, self.oldest_kept[kind])  # Of another search.
      kept = {self.slot(kind, x) for x in range(held[kind], self.length)}
      kept |= {*range(min(pinned, self.length))}
      for slot in {*range(S * len(table))} - kept:
        if table[slot // S] >= 0:
          self.world.labels[kind][table[slot // S]][slot % S] = 'a beam'
    self.world.rows.settle(self.number, self.first, held)
    self.oldest_kept = held


class World(stateful.RuleBasedStateMachine):
  """The rows of a cache, under all that may happen to them."""

  pools = TIGHT

  def __init__(self):
    super().__init__()
    self.open, self.texts = [], {}
    # By kind, how many of the first positions' pages never leave a row.
    self.pinned = {x: -(-y.sinks // S) * S for x, y in self.pools.items()}
    self.rows = rows_lib.Rows(self.pools, ROWS)
    self.labels = {
      kind: [[None] * S for _ in range(pool.pages)]
      for kind, pool in self.pools.items()
    }

  def copy(self, kind, source, target):
    self.labels[kind][target] = list(self.labels[kind][source])

  def read(self, kind, length):
    """Returns the positions that the next token's layers read."""
    pool = self.pools[kind]
    lowest = 0 if pool.window is None else length - (pool.window - 1)
    return [x for x in range(length) if x >= lowest or x < pool.sinks]

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
      theirs = self.row(other).text
      begin = theirs.tokens[: 1 + kept % len(theirs.tokens)]
      owner = theirs.owner if other % 3 else owner
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
    rings = self.rows.rings()
    for row, end in ends.items():
      row.turn(end, rings)
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

  @stateful.rule(seed=strategies.integers(0, 2**32 - 1))
  def live(self, seed):
    """Does many of these, as rules alone make few points and short texts."""
    rng = random.Random(seed)
    for _ in range(rng.randint(10, 60)):
      if len(self.open) < ROWS and rng.random() < 0.4:
        tail = rng.choices([1, 2], k=rng.randint(1, 30))
        self.open_row(
          *(tail, rng.randrange(99), rng.randrange(99)),
          rng.choice([b'', b'a', b'b']),
        )
      chances = {
        self.extend: 0.9,
        self.record: 0.5,
        self.lend: 0.05,
        self.close: 0.15,
        self.drop: 0.05,
      }
      for rule, chance in chances.items():
        if rng.random() > chance or not self.open:
          continue
        if rule == self.extend:
          rule({*range(ROWS)}, rng.randint(1, 13), rng.randrange(10))
        elif rule == self.lend:
          rule(rng.randrange(99), rng.random() < 0.5)
        elif rule != self.drop or len(self.rows.tree):
          rule(rng.randrange(99))
      self.rows_read_their_own_text()
      self.points_hold_their_own_text()

  @stateful.invariant()
  def rows_read_their_own_text(self):
    for row in self.open:
      row.check()

  @stateful.invariant()
  def points_hold_their_own_text(self):
    for point in self.rows.tree.points():
      tokens = self.texts[point].tokens
      for kind, pages in self.rows.tree.held_pages(point).items():
        for position in self.read(kind, point.length):
          held = self.labels[kind][pages[position // S]][position % S]
          assert held == (position, hash(tokens[: position + 1].tobytes()))

  def teardown(self):
    while self.open:
      self.close(0)
    self.rows.tree.clear()
    for kind, pool in self.pools.items():
      assert self.rows.pages.free(kind) == pool.pages


class Sinks(World):
  pools = SINKS


class Two(World):
  pools = TWO


TestRows = machines.quick(World, 30, 12)
TestSinks = machines.quick(Sinks, 20, 12)
TestTwoRings = machines.quick(Two, 20, 12)
TestManyRows = pytest.mark.slow(machines.quick(World, 500, 30))
TestManySinks = pytest.mark.slow(machines.quick(Sinks, 500, 30))
TestManyTwoRings = pytest.mark.slow(machines.quick(Two, 500, 30))

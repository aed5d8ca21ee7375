"""Rows over pages of labels: which text's token does each slot hold?

The device is played by lists: it copies the pages that it is told to copy,
turns rings as `cache.rotate` does, and writes into every slot a label of the
whole text up to that token. Whatever is opened, grown, undone, recorded, lent,
evicted or closed, each row must find the labels of its own text, and a row that
was opened must always be able to grow.
"""

import random

import numpy as np
import pytest

from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.model import paging

S, WINDOW, LENGTH, ROWS = 4, 10, 48, 4
POOLS = {
  'global': paging.Pool((1,), None, S, row_pages=LENGTH // S, pages=40),
  'local': paging.Pool((0,), WINDOW, S, row_pages=3, pages=12),
}


class Row:
  """What the device knows of a row, and the text that should be there."""

  def __init__(self, world, text, length):
    opened = world.rows.open(length, text=text)
    self.world, self.text, self.number = world, text, opened.row
    self.length, self.tables, self.first = opened[1:4]
    self.resumed = opened.length
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
    rows.tree.record(text, rows.pages_of(self.number))

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


class World:
  def __init__(self, rng):
    self.rng, self.open = rng, []
    self.rows = rows_lib.Rows(POOLS, ROWS)
    self.labels = {
      kind: [[None] * S for _ in range(pool.pages)]
      for kind, pool in POOLS.items()
    }

  def copy(self, kind, source, target):
    self.labels[kind][target] = list(self.labels[kind][source])

  def close(self, row):
    self.open.remove(row)
    frees, before = self.rows.frees(row.number), self.rows.free_pages()
    self.rows.close(row.number)
    after = self.rows.free_pages()
    assert frees == {kind: after[kind] - before[kind] for kind in after}

  def extend(self, rows):
    """Runs a few more tokens of several rows' texts in one call."""
    ends = {
      row: min(row.length + self.rng.randrange(14), len(row.text.tokens))
      for row in rows
    }
    growth = self.rows.grow({row.number: end for row, end in ends.items()})
    if self.rng.random() < 0.1:
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

  def text(self):
    """A text over two tokens, so that many begin alike."""
    if self.open and self.rng.random() < 0.6:
      other = self.rng.choice(self.open).text
      tokens = other.tokens[: self.rng.randrange(1, len(other.tokens) + 1)]
    else:
      tokens = np.array([1, 1, 2, 1, 2, 2, 1], np.int32)
    tail = [self.rng.randrange(1, 3) for _ in range(self.rng.randrange(1, 30))]
    tokens = np.array([*tokens, *tail][:LENGTH], np.int32)
    owner = self.rng.choice([b'', b'a', b'b'])
    return prefix_tree.Text(tokens, min(7, len(tokens)), owner)

  def step(self):
    """Returns how many tokens were resumed."""
    rng, choice = self.rng, self.rng.random()
    row = rng.choice(self.open) if self.open else None
    if choice < 0.2 or row is None:
      text = self.text()
      try:
        self.open.append(Row(self, text, len(text.tokens)))
        return self.open[-1].resumed
      except pages_lib.Full:
        if row is not None:
          self.close(row)
    elif choice < 0.6:
      self.extend(rng.sample(self.open, rng.randrange(1, 1 + len(self.open))))
    elif choice < 0.8:
      if row.length:
        row.record()
    elif choice < 0.85:
      row.lend(rng.random() < 0.5)  # What it needs was set aside.
    elif choice < 0.93:
      self.close(row)
    elif choice < 0.96 and len(self.rows.tree):
      self.rows.tree.drop(rng.choice(list(self.rows.tree.points())))
    else:
      self.rows.tree.evict()
    return 0


def lived(seed, steps):
  world, resumed = World(random.Random(seed)), 0
  for _ in range(steps):
    resumed += world.step()
    for row in world.open:
      row.check()
  assert resumed > 0
  while world.open:
    world.close(world.open[0])
  for point in list(world.rows.tree.points()):
    world.rows.tree.drop(point)
  for kind, pool in POOLS.items():
    assert world.rows.pages.free(kind) == pool.pages


@pytest.mark.parametrize('seed', range(10))
def test_whatever_happens_rows_read_their_own_text(seed):
  lived(seed, 500)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(100, 300))
def test_whatever_happens_in_many_lives_rows_read_their_own_text(seed):
  lived(seed, 500)

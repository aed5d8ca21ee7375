"""The prefix tree over pages of labels: which text's token each slot holds.

No model runs. A row writes into every slot what it claims to hold there, a
label of the whole text up to that token; whatever is resumed, recorded or
evicted, each row and each point must find the labels of its own text in its
pages.
"""

import dataclasses
import itertools
import random

import numpy as np
import pytest

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree

S, WINDOW = 4, 10
SIZES = {'global': 60, 'local': 40}
KINDS = tuple(SIZES)


class Row:
  """A row of an engine, with labels for keys and values."""

  def __init__(self, world, text, match):
    self.world, self.text = world, text
    self.length = 0 if match is None else match.length
    self.tables = {kind: {} for kind in KINDS}
    if match is not None:
      try:
        self._resume(match)
      except pages_lib.Full:
        self.close()
        raise

  def _resume(self, match):
    pages = self.world.pages
    self.tables = self.world.tree.pages(match)
    for kind, table in self.tables.items():
      pages.hold(kind, table.values())
    if match.length % S:
      last = match.length // S
      for kind, table in self.tables.items():
        self.world.tree.make_room({kind: 1})
        (copy,) = pages.take(kind, 1)
        labels = self.world.labels[kind]
        labels[copy] = list(labels[table[last]])
        pages.release(kind, [table[last]])
        table[last] = copy

  def extend(self, count):
    """Runs up to `count` more tokens of the row's text."""
    end = min(self.length + count, len(self.text.tokens))
    lowest = max(0, self.length - (WINDOW - 1)) // S
    pages = self.world.pages
    for kind in KINDS:
      first = lowest if kind == 'local' else 0
      table = self.tables[kind]
      for index in range(first, -(-end // S)):
        if index not in table:
          self.world.tree.make_room({kind: 1})
          (table[index],) = pages.take(kind, 1)
          self.world.labels[kind][table[index]] = [None] * S
      for position in range(self.length, end):
        page = table[position // S]
        self.world.labels[kind][page][position % S] = self.label(position)
    self.length = end
    ring = self.tables['local']
    lowest = max(0, end - (WINDOW - 1)) // S
    for index in [index for index in ring if index < lowest]:
      pages.release('local', [ring.pop(index)])

  def label(self, position):
    return position, hash(self.text.tokens[: position + 1].tobytes())

  def check(self):
    for kind in KINDS:
      lowest = self.length - (WINDOW - 1) if kind == 'local' else 0
      for position in range(max(0, lowest), self.length):
        page = self.tables[kind][position // S]
        held = self.world.labels[kind][page][position % S]
        assert held == self.label(position), (kind, position)

  def close(self):
    for kind, table in self.tables.items():
      self.world.pages.release(kind, table.values())


class World:
  def __init__(self, sizes=SIZES, policy=None):
    self.pages = pages_lib.Pages(sizes)
    self.policy = policy or eviction.LeastWorth(self.pages, S)
    self.tree = prefix_tree.PrefixTree(self.pages, S, WINDOW, self.policy)
    self.labels = {k: [[None] * S for _ in range(n)] for k, n in sizes.items()}
    self.sizes = sizes
    self.rows, self.texts = [], {}

  def open(self, text):
    match = self.tree.match(text)
    if match is not None:
      self.check_match(text, match)
    row = Row(self, text, match)
    if match is not None and match.point in self.tree:
      self.tree.touch(match, text.owner)
    self.rows.append(row)
    return row

  def check_match(self, text, match):
    assert 0 < match.length < len(text.tokens)
    theirs = self.texts[match.point]
    assert theirs.cache_salt == text.cache_salt
    np.testing.assert_array_equal(
      theirs.tokens[: match.length], text.tokens[: match.length]
    )
    if theirs.owner != text.owner:
      # Nobody finds out what another has kept to itself.
      assert match.length <= theirs.shared

  def record(self, row):
    if not row.length:
      return None
    text = row.text._replace(tokens=row.text.tokens[: row.length])
    point = self.tree.record(text, row.tables)
    self.texts.setdefault(point, text)
    return point

  def close(self, row):
    self.rows.remove(row)
    row.close()

  def check(self):
    for row in self.rows:
      row.check()
    held = {kind: set() for kind in KINDS}
    for row in self.rows:
      for kind, table in row.tables.items():
        held[kind] |= set(table.values())
    for point in self.tree.points():
      text = self.texts[point]
      match = prefix_tree.Match(point, point.length)
      tables = self.tree.pages(match)
      for kind, table in tables.items():
        held[kind] |= set(table.values())
        lowest = point.length - (WINDOW - 1) if kind == 'local' else 0
        for position in range(max(0, lowest), point.length):
          held_label = self.labels[kind][table[position // S]][position % S]
          wanted = position, hash(text.tokens[: position + 1].tobytes())
          assert held_label == wanted, (kind, position)
    self.check_order()
    for kind in KINDS:
      assert (
        self.pages.count_held(kind) + self.pages.free(kind) == self.sizes[kind]
      )
      assert held[kind] <= {
        page
        for page in range(self.sizes[kind])
        if self.pages.holders(kind, page)
      }

  def check_order(self):
    """Whatever a point goes on from is evicted after it."""
    later = set()
    for point in reversed(list(self.tree.points())):
      tokens = self.texts[point].tokens[: point.length].tobytes()
      node, above = point.node, set()
      while node is not None:
        above |= {
          other
          for other in node.points
          if other.salt in (b'', point.salt)
          and other.length < point.length
          and tokens.startswith(
            self.texts[other].tokens[: other.length].tobytes()
          )
        }
        node = node.parent
      assert above <= later
      later.add(point)


def text_of(tokens, shared=0, owner=b''):
  return prefix_tree.Text(np.array(tokens, np.int32), shared, owner)


def drawn(rng):
  """A text over few tokens, so that many begin alike."""
  prefix = [[1, 1, 2, 1, 2, 2, 1], [2, 1, 1, 2]][rng.randrange(2)]
  size = rng.randrange(2, 40)
  tokens = prefix + [rng.randrange(1, 3) for _ in range(size)]
  owner = rng.choice([b'', b'a', b'b'])
  # What each says may be shared is its own to say.
  shared = rng.choice([0, len(prefix), len(tokens)])
  salt = b's' if rng.random() < 0.1 else b''
  return text_of(tokens, shared, owner)._replace(cache_salt=salt)


@pytest.mark.parametrize('seed', range(20))
def test_whatever_happens_every_slot_holds_its_text(seed):
  rng, world = random.Random(seed), World()
  hits = 0
  for _ in range(500):
    choice = rng.random()
    try:
      if choice < 0.25 and len(world.rows) < 4:
        text = drawn(rng)
        if world.rows and rng.random() < 0.5:  # Goes on from another's text.
          other = rng.choice(world.rows).text
          tail = [rng.randrange(1, 3) for _ in range(rng.randrange(1, 20))]
          kept = other.tokens[: rng.randrange(1, len(other.tokens) + 1)]
          tokens = [*kept[:40].tolist(), *tail]
          text = other._replace(tokens=np.array(tokens, np.int32))
        hits += world.open(text).length > 0
      elif choice < 0.6 and world.rows:
        rng.choice(world.rows).extend(rng.randrange(1, 9))
      elif choice < 0.8 and world.rows:
        world.record(rng.choice(world.rows))
      elif choice < 0.87 and world.rows:
        world.close(rng.choice(world.rows))
      elif choice < 0.95 and len(world.tree):
        world.tree.drop(rng.choice(list(world.tree.points())))
      else:
        world.tree.evict()
    except pages_lib.Full:
      world.close(rng.choice(world.rows))
    world.check()
  assert hits > 2
  while world.rows:
    world.close(world.rows[0])
  while world.tree.evict():
    pass
  assert not len(world.tree)
  for kind in KINDS:
    assert world.pages.count_held(kind) == 0


def test_an_owner_neither_finds_nor_gets_anothers_private_tail():
  """Tails of equal texts, behind the prefix and within its last page."""
  world, tokens = World(), list(range(1, 12))
  found = {}
  for owner in (b'a', b'b'):
    row = world.open(text_of(tokens, shared=9, owner=owner))
    row.extend(11 - row.length)
    found[owner] = world.record(row)
    world.close(row)
    world.check()
  assert found[b'a'] is not found[b'b']
  assert found[b'a'].last['global'] != found[b'b'].last['global']
  other = text_of([*tokens, 1], 9, b'c')
  assert world.tree.match(other).length == 9
  # Whoever comes back uses his own, and keeps no other's.
  (first, second) = world.tree.points()
  assert (first, second) == (found[b'a'], found[b'b'])
  match = world.tree.match(text_of([*tokens, 1], 9, b'a'))
  assert match == (found[b'a'], 11)
  before = dataclasses.replace(world.policy._uses[found[b'b']])
  world.tree.touch(match, b'a')
  assert list(world.tree.points()) == [found[b'b'], found[b'a']]
  after = world.policy._uses[found[b'b']]
  assert dataclasses.asdict(after) == dataclasses.asdict(before)


def test_a_conversation_resumes_where_it_ended_and_a_swipe_before_its_answer():
  world = World()
  turn = list(range(1, 22))
  row = world.open(text_of(turn))
  row.extend(15)
  world.record(row)
  row.extend(99)
  world.record(row)
  world.close(row)
  again = world.open(text_of([*turn[:15], 50]))
  assert again.length == 15
  further = world.open(text_of([*turn, 60, 61]))
  assert further.length == 21
  world.check()
  assert world.tree.match(text_of([9, 9, 9])) is None


def test_a_point_serves_what_its_window_still_holds_and_no_less():
  world = World()
  tokens = list(range(1, 31))
  row = world.open(text_of(tokens))
  row.extend(30)
  world.record(row)
  lengths = {
    length: match.length if (match := world.tree.match(
      text_of([*tokens[:length], 99]))) else 0
    for length in range(1, 31)
  }  # fmt: skip
  # The ring begins at position 20: 29 or 30 tokens see 9 before them.
  assert lengths == {n: n if n >= 29 else 0 for n in range(1, 31)}
  short = world.open(text_of([7] * 9))
  short.extend(9)
  world.record(short)
  for length in range(1, 9):
    match = world.tree.match(text_of([7] * length + [99]))
    assert match.length == length


def test_the_last_token_of_a_prompt_always_runs():
  world = World()
  row = world.open(text_of([1, 2, 3, 4, 5, 6, 7, 8]))
  row.extend(8)
  world.record(row)
  assert world.tree.match(text_of([1, 2, 3, 4, 5, 6, 7, 8])).length == 7
  assert world.tree.match(text_of([1])) is None


def test_owners_see_of_each_other_the_shared_prefix_alone():
  world = World()
  tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
  row = world.open(text_of(tokens, shared=6, owner=b'a'))
  row.extend(6)
  world.record(row)
  row.extend(9)
  world.record(row)
  assert world.tree.match(text_of([*tokens, 1], 6, b'a')).length == 9
  assert world.tree.match(text_of([*tokens, 1], 6, b'b')).length == 6
  assert world.tree.match(text_of([*tokens, 1], 4, b'b')).length == 4


def test_texts_of_different_salts_share_nothing():
  """Neither the shared prefix, nor an owner's own texts, nor part of a page."""
  world, tokens = World(), [1, 2, 3, 4, 5, 6, 7, 8, 9]
  salted = text_of(tokens, 6, b'a')._replace(cache_salt=b'b')
  row = world.open(salted)
  for length in (6, 9):
    row.extend(length - row.length)
    world.record(row)
  longer = np.array([*tokens, 1], np.int32)
  assert world.tree.match(salted._replace(tokens=longer)).length == 9
  assert (
    world.tree.match(salted._replace(tokens=longer, owner=b'c')).length == 6
  )
  for salt, owner, shared in itertools.product(
    (b'', b'a', b'ba', b'c'), (b'', b'a', b'b', b'ba'), (0, 3, 6, 9)
  ):
    other = prefix_tree.Text(longer, shared, owner, salt)
    assert world.tree.match(other) is None
  # The same owner without the prefix: the salt alone says whose it was.
  assert world.tree.match(prefix_tree.Text(longer, 0, b'a', b'')) is None
  world.check()


def test_many_texts_of_other_salts_hide_no_branch():
  world = World()
  row = world.open(text_of([1, 2, 3, 4, 5, 6], owner=b'a'))
  row.extend(6)
  world.record(row)
  world.close(row)
  for number in range(9):
    text = text_of([1, 2, 9, 9, 9], owner=b'a')
    row = world.open(text._replace(cache_salt=bytes([number])))
    row.extend(5)
    world.record(row)
    world.close(row)
  assert world.tree.match(text_of([1, 2, 3, 9, 9], owner=b'a')).length == 3


def test_owners_of_equal_texts_share_the_prefixs_pages_alone():
  world = World()
  tables = {}
  for owner in (b'a', b'b'):
    row = world.open(text_of(range(1, 14), shared=9, owner=owner))
    row.extend(9)
    world.record(row)
    row.extend(4)
    match = prefix_tree.Match(world.record(row), 13)
    tables[owner] = world.tree.pages(match)['global']
  assert [tables[b'a'][i] == tables[b'b'][i] for i in range(4)] == [
    True, True, False, False,
  ]  # fmt: skip
  world.check()


def test_eviction_takes_the_least_recently_used_and_never_rows_pages():
  world = World(policy=eviction.LeastRecentlyUsed())
  points = []
  for number in range(3):
    row = world.open(text_of([10 + number] * 6))
    row.extend(6)
    points.append(world.record(row))
    world.close(row)
  world.tree.use(points[0])
  assert world.tree.evict()
  assert [point in world.tree for point in points] == [True, False, True]
  row = world.open(text_of([20] * 6))
  row.extend(6)
  with pytest.raises(pages_lib.Full, match='rows hold all others'):
    world.tree.make_room({'global': SIZES['global'] - 1})
  assert not len(world.tree) and world.pages.count_held('global') == 2
  world.check()


def test_what_is_shared_is_used_with_what_goes_on_from_it():
  world, points = World(), {}
  for owner in (b'a', b'b'):
    row = world.open(text_of(range(1, 16), shared=6, owner=owner))
    for length in (6, 11, 15):
      row.extend(length - row.length)
      points[owner, length] = world.record(row)
    world.close(row)
  assert points[b'a', 6] is points[b'b', 6]
  alone = world.open(text_of([7] * 9))
  alone.extend(9)
  points[b'', 9] = world.record(alone)
  world.close(alone)
  world.tree.use(points[b'a', 15])
  # All of b's, the one between, a's, and the prefix of both.
  lengths = [point.length for point in world.tree.points()]
  assert lengths == [15, 11, 9, 15, 11, 6]
  while world.tree.evict():
    world.check()
  assert not len(world.tree)


def test_owners_do_not_keep_each_others_points():
  world = World()
  rows = [
    world.open(text_of(tokens, shared=6, owner=owner))
    for owner, tokens in (
      (b'a', range(1, 8)),
      (b'', [50] * 6),
      (b'b', range(1, 10)),
    )
  ]
  for row in rows:
    row.extend(9)
  points = [world.record(row) for row in rows]
  assert list(world.tree.points()) == points


class Coarse(bytes):
  """A page whose hash is that of half of all others."""

  def __hash__(self):
    return len(self) + super().__hash__() % 2


def test_pages_of_equal_hashes_are_neither_found_nor_recorded_as_one(
  monkeypatch,
):
  split = prefix_tree.PrefixTree._split
  monkeypatch.setattr(
    prefix_tree.PrefixTree,
    '_split',
    lambda *x: [(Coarse(page), salt) for page, salt in split(*x)],
  )
  rng, world = random.Random(0), World()
  for _ in range(200):
    row = world.open(drawn(rng))
    row.extend(99)
    world.record(row)
    world.check()
    world.close(row)


def test_pages_are_counted():
  pages = pages_lib.Pages({'global': 3})
  taken = pages.take('global', 2)
  pages.hold('global', taken[:1])
  pages.release('global', taken)
  assert pages.free('global') == 2 and pages.holders('global', taken[0]) == 1
  with pytest.raises(pages_lib.Full, match='3 global pages are needed'):
    pages.take('global', 3)
  for change in (pages.hold, pages.release):
    with pytest.raises(ValueError, match='nobody holds it'):
      change('global', taken[1:])

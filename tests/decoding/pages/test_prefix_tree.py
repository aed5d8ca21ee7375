"""The prefix tree over pages of labels: which text's token each slot holds.

No model runs. A row writes into every slot what it claims to hold there, a
label of the whole text up to that token; whatever is resumed, recorded or
evicted, each row and each point must find the labels of its own text in its
pages.
"""

import dataclasses
import random

from hypothesis import stateful
from hypothesis import strategies
import numpy as np
import pytest

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from tests.decoding import machines

S = 4
SIZES = {'global': 60, 'local': 40}
# By kind, the window and the sinks.
LOCAL = {'local': (10, 0)}
SINKS = {'local10': (10, 0), 'local3+6': (3, 6)}


class Row:
  """A row of an engine, with labels for keys and values."""

  def __init__(self, world, text, match):
    self.world, self.text = world, text
    self.length = 0 if match is None else match.length
    self.tables = {kind: {} for kind in world.sizes}
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
    pages = self.world.pages
    for kind, table in self.tables.items():
      # What is read, and what is written.
      needed = {*self.world.read(kind, self.length), *range(self.length, end)}
      for index in sorted({position // S for position in needed}):
        if index not in table:
          self.world.tree.make_room({kind: 1})
          (table[index],) = pages.take(kind, 1)
          self.world.labels[kind][table[index]] = [None] * S
      for position in range(self.length, end):
        page = table[position // S]
        self.world.labels[kind][page][position % S] = self.label(position)
    self.length = end
    for kind, table in self.tables.items():
      kept = {position // S for position in self.world.read(kind, end)}
      # Whole pages stay, those with sinks too.
      kept |= {*range(-(-self.world.rings.get(kind, (0, 0))[1] // S))}
      for index in table.keys() - kept:
        pages.release(kind, [table.pop(index)])

  def label(self, position):
    return position, hash(self.text.tokens[: position + 1].tobytes())

  def check(self):
    for kind in self.tables:
      for position in self.world.read(kind, self.length):
        page = self.tables[kind][position // S]
        held = self.world.labels[kind][page][position % S]
        assert held == self.label(position), (kind, position)

  def close(self):
    for kind, table in self.tables.items():
      self.world.pages.release(kind, table.values())


class World:
  def __init__(self, rings=LOCAL, policy=None):
    self.sizes = {'global': SIZES['global']}
    self.sizes |= dict.fromkeys(rings, SIZES['local'])
    self.pages = pages_lib.Pages(self.sizes)
    self.policy = policy or eviction.LeastWorth(self.pages)
    read = {
      kind: prefix_tree.Ring(window, -(-sinks // S))
      for kind, (window, sinks) in rings.items()
    }
    self.tree = prefix_tree.PrefixTree(self.pages, S, read, self.policy)
    self.labels = {
      k: [[None] * S for _ in range(n)] for k, n in self.sizes.items()
    }
    self.rings, self.rows, self.texts = rings, [], {}

  def read(self, kind, length):
    """Returns the positions that the layers of a text's next token read."""
    window, sinks = self.rings.get(kind, (length + 1, 0))
    return [x for x in range(length) if x > length - window or x < sinks]

  def open(self, text):
    match = self.tree.match(text)
    least, most = resumable(self, text)
    assert least <= (0 if match is None else match.length) <= most
    row = Row(self, text, match)
    if match is not None and match.point in self.tree:
      self.tree.touch(match, text.owner)
    self.rows.append(row)
    return row

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
    held = {kind: set() for kind in self.sizes}
    for row in self.rows:
      for kind, table in row.tables.items():
        held[kind] |= set(table.values())
    for point in self.tree.points():
      text = self.texts[point]
      match = prefix_tree.Match(point, point.length)
      tables = self.tree.pages(match)
      for kind, table in tables.items():
        held[kind] |= set(table.values())
        for position in self.read(kind, point.length):
          held_label = self.labels[kind][table[position // S]][position % S]
          wanted = position, hash(text.tokens[: position + 1].tobytes())
          assert held_label == wanted, (kind, position)
    self.check_order()
    for kind in self.sizes:
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


def resumable(world, text):
  """Returns how many tokens of a text can be resumed, at least and at most.

  Of points that stand beside the text's own pages, a lookup tries a few.
  """
  least = most = 0
  for point in world.tree.points():
    theirs = world.texts[point]
    if theirs.cache_salt != text.cache_salt:
      continue
    count = min(point.length, len(text.tokens) - 1)
    differs = theirs.tokens[:count] != text.tokens[:count]
    length = int(differs.argmax()) if differs.any() else count
    if theirs.salt(point.length) != text.owner:
      # Nobody finds out what another has kept to itself.
      length = min(length, theirs.shared, text.shared)
    held = world.tree.held_pages(point)
    if all(
      position // S in held[kind]
      for kind in held
      for position in world.read(kind, length)
    ):
      most = max(most, length)
      # Its full pages are the text's own: of the same tokens and owners.
      whole = point.length // S * S
      if length >= whole and all(
        theirs.salt(end) == text.salt(end) for end in range(S, whole + 1, S)
      ):
        least = max(least, length)
  return least, most


numbers = strategies.integers(0, 99)
tails = strategies.lists(strategies.integers(1, 2), max_size=20)
PREFIXES = [1, 1, 2, 1, 2, 2, 1], [2, 1, 1, 2]


class Tree(stateful.RuleBasedStateMachine):
  """The points of a tree, and rows that resume, record and close."""

  rings = LOCAL

  def __init__(self):
    super().__init__()
    self.world = World(self.rings)

  def row(self, number):
    return self.world.rows[number % len(self.world.rows)]

  def has_rows(self):
    return bool(self.world.rows)

  def has_points(self):
    return len(self.world.tree) > 0

  @stateful.precondition(lambda self: len(self.world.rows) < 4)
  @stateful.rule(
    prefix=strategies.sampled_from(PREFIXES),
    tail=tails,
    owner=strategies.sampled_from([b'', b'a', b'b']),
    salt=strategies.sampled_from([b'', b'', b'', b's']),
    other=numbers,
    kept=numbers,
  )
  def open_row(self, prefix, tail, owner, salt, other, kept):
    """Opens a row for a text over few tokens, so that many begin alike."""
    begin = prefix
    if self.world.rows and other % 2:  # Goes on from another's text.
      theirs = self.row(other).text
      begin = theirs.tokens[: 1 + kept % len(theirs.tokens)].tolist()[:28]
      owner = theirs.owner if other % 3 else owner
    tokens = [*begin, *tail]
    # What is a character's, and no more, all owners may share.
    shared = max((len(x) for x in PREFIXES if tokens[: len(x)] == x), default=0)
    text = text_of(tokens, shared, owner)._replace(cache_salt=salt)
    try:
      self.world.open(text)
    except pages_lib.Full:
      self.close(other)

  @stateful.precondition(has_rows)
  @stateful.rule(number=numbers, count=strategies.integers(1, 9))
  def extend(self, number, count):
    try:
      self.row(number).extend(count)
    except pages_lib.Full:
      self.close(number)

  @stateful.precondition(has_rows)
  @stateful.rule(number=numbers)
  def record(self, number):
    self.world.record(self.row(number))

  @stateful.precondition(has_rows)
  @stateful.rule(number=numbers)
  def close(self, number):
    self.world.close(self.row(number))

  @stateful.precondition(has_points)
  @stateful.rule(number=numbers)
  def drop(self, number):
    points = list(self.world.tree.points())
    self.world.tree.drop(points[number % len(points)])

  @stateful.rule()
  def evict(self):
    self.world.tree.evict()

  @stateful.rule(seed=strategies.integers(0, 2**32 - 1))
  def live(self, seed):
    """Does many of these, as rules alone make few points and short texts."""
    rng = random.Random(seed)
    for _ in range(rng.randint(10, 60)):
      if len(self.world.rows) < 4:
        self.open_row(
          rng.choice(PREFIXES),
          rng.choices([1, 2], k=rng.randrange(20)),
          rng.choice([b'', b'a']),
          rng.choice([b'', b'', b's']),
          *(rng.randrange(99), rng.randrange(99)),
        )
      for rule, chance in (self.record, 0.5), (self.close, 0.1):
        if self.world.rows:
          self.extend(rng.randrange(99), rng.randint(1, 9))
        if self.world.rows and rng.random() < chance:
          rule(rng.randrange(99))
      if self.has_points() and rng.random() < 0.1:
        self.drop(rng.randrange(99))
      self.world.check()

  @stateful.invariant()
  def slots_hold_their_text(self):
    self.world.check()

  def teardown(self):
    while self.world.rows:
      self.close(0)
    while self.world.tree.evict():
      pass
    assert not len(self.world.tree)
    for kind in self.world.sizes:
      assert self.world.pages.count_held(kind) == 0


class Sinks(Tree):
  """The same, with layers of two windows, of which one has sinks."""

  rings = SINKS


TestTree = machines.quick(Tree, 60, 12)
TestTreeOfSinks = machines.quick(Sinks, 60, 12)
TestManyTrees = pytest.mark.slow(machines.quick(Tree, 500, 30))
TestManyTreesOfSinks = pytest.mark.slow(machines.quick(Sinks, 500, 30))


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
  rng, world = np.random.default_rng(0), World()
  for _ in range(200):
    tokens = [*PREFIXES[rng.integers(2)], *rng.integers(1, 3, 20)]
    row = world.open(text_of(tokens, 4, b'ab'[: rng.integers(2)]))
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

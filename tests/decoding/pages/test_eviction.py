"""Which points are evicted, and what a point is worth."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree

S, WINDOW = 4, 8
RINGS = {'local': prefix_tree.Ring(WINDOW)}
SINKS = RINGS | {'local5+5': prefix_tree.Ring(5, pinned=2)}


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


def test_a_lookup_leaves_no_trace(clock):
  """Who waits, or is refused, looks up again and again."""
  world = World(clock)
  world.record([1] * 40, [20, 40], 20, b'a')
  world.record([2] * 40, [40], owner=b'b')

  def traces():
    points = list(world.tree.points())
    uses = [dataclasses.asdict(world.policy._uses[point]) for point in points]
    return list(map(id, points)), uses

  clock.now, before = 70.0, traces()
  text = prefix_tree.Text(np.array([1] * 40 + [3]), 20, b'a')
  for _ in range(3):
    match = world.tree.match(text)
  assert match.length == 40 and traces() == before
  world.tree.touch(match, b'a')
  assert world.policy._uses[match.point].used == 70.0
  assert next(iter(world.tree.points())) is not match.point


def test_draws_are_of_what_is_there():
  drawn = eviction.RandomSet()
  for number in range(40):
    drawn.add(number)
  for number in range(0, 40, 3):
    drawn.remove(number)
  there = {number for number in range(40) if number % 3}
  assert set(drawn.draw(len(there))) == there
  assert len(set(drawn.draw(9))) == 9


class World:
  """A tree of conversations, recorded as a row would."""

  def __init__(self, clock, rings=RINGS):
    self.pages = pages_lib.Pages(dict.fromkeys(('global', *rings), 400))
    self.policy = eviction.LeastWorth(self.pages, clock)
    self.rings = rings
    self.tree = prefix_tree.PrefixTree(self.pages, S, rings, self.policy)

  def record(self, tokens, lengths, shared=0, owner=b''):
    tokens = np.array(tokens, np.int32)
    count = -(-len(tokens) // S)
    taken = {kind: self.pages.take(kind, count) for kind in self.pages.kinds}
    points = []
    for length in lengths:
      own = -(-length // S)
      tables = {kind: dict(enumerate(x[:own])) for kind, x in taken.items()}
      for kind, (window, pinned) in self.rings.items():
        for index in range(pinned, max(0, length - (window - 1)) // S):
          tables[kind].pop(index, None)
      text = prefix_tree.Text(tokens[:length], shared, owner)
      points.append(self.tree.record(text, tables))
    for kind, pages in taken.items():
      self.pages.release(kind, pages)
    return points


def test_a_policy_is_told_of_each_point_from_its_beginning_to_its_end(clock):
  world, told = World(clock), []
  note = world.policy.note
  world.policy.note = lambda *event: told.append(event) or note(*event)
  first, second = world.record([1] * 40, [20, 40], 20, b'a')
  recorded = eviction.Event.RECORDED
  assert told == [(recorded, first, b'a'), (recorded, second, b'a')]
  uses = [world.policy._uses[one] for one in (first, second)]
  assert [use.begun for use in uses] == [1, 0]
  # The same text again is the same point.
  assert world.record([1] * 40, [40], 20, b'a') == [second]
  assert told.pop() == (recorded, second, b'a') and len(told) == 2
  text = prefix_tree.Text(np.array([1] * 40 + [3]), 20, b'b')
  world.tree.touch(world.tree.match(text), b'b')
  assert told.pop() == (eviction.Event.RESUMED, first, b'b')
  while world.tree.evict():
    pass
  world.record([2] * 40, [40])
  world.tree.drop(*world.tree.points())
  gone = [one for event, one, *_ in told if event is eviction.Event.DROPPED]
  assert {first, second} < set(gone) and len(gone) == 3
  # It keeps nothing of what is gone.
  assert not world.policy._uses and not world.policy._set.draw(0)
  with pytest.raises(ValueError):
    world.policy._set.draw(1)


def test_who_has_been_away_for_long_goes_before_who_was_just_here(clock):
  world = World(clock)
  (away,) = world.record([1] * 40, [40], owner=b'a')
  clock.now = 4_000.0
  (here,) = world.record([2] * 40, [40], owner=b'b')
  world.tree.use(away)
  assert world.tree.evict()
  assert here in world.tree and away not in world.tree


def test_a_prefix_of_many_outlives_one_that_nobody_asks_for(clock):
  world = World(clock)
  (rare,) = world.record([1] * 40, [40], 40)
  (popular,) = world.record([2] * 40, [40], 40)
  for number in range(6):
    owner = bytes([number])
    text = prefix_tree.Text(np.array([2] * 40 + [number]), 40, owner)
    match = world.tree.match(text)
    assert match.point is popular
    world.tree.touch(match, owner)
  clock.now = 600.0
  assert world.tree.evict()
  assert popular in world.tree and rare not in world.tree


def test_points_that_share_all_pages_do_not_keep_each_other(clock):
  """Either alone frees nothing: what it shares is charged to it all the same.

  Counted by what it frees, such a pair would never go.
  """
  world = World(clock)
  pair = world.record([1] * 40, [39, 40])
  clock.now = 4_000.0
  (here,) = world.record([2] * 400, [400], owner=b'b')
  for _ in pair:
    assert world.tree.evict()
  assert list(world.tree.points()) == [here]


def test_worth_is_rate_times_tokens_over_cost(clock):
  world = World(clock)
  prefix, answer = world.record([1] * 48, [24, 48], 24, b'a')
  clock.now = 100.0
  text = prefix_tree.Text(np.array([1] * 24 + [2] * 8), 24, b'b')
  world.tree.touch(world.tree.match(text), b'b')
  clock.now = 400.0
  cost = {
    point: nodes.share_of_pools(point, world.pages)
    for point in (prefix, answer)
  }
  # Used at 100 s by the second conversation that began there.
  rate = 1 / (2 * 300) + 2 / (400 + 3600)
  assert world.policy.worth(prefix) == pytest.approx(rate * 24 / cost[prefix])
  # It saves what it has beyond the prefix.
  rate = 1 / (2 * 400)
  assert world.policy.worth(answer) == pytest.approx(rate * 24 / cost[answer])
  # A point that goes on from both uses them.
  text = prefix_tree.Text(np.array([1] * 48 + [2]), 24, b'a')
  world.tree.touch(world.tree.match(text), b'a')
  uses = world.policy._uses
  assert uses[prefix].used == uses[answer].used == 400.0
  assert uses[prefix].begun == 2


def test_pages_are_charged_to_the_points_that_need_them(clock):
  world = World(clock, SINKS)
  # Full pages end at 36 and 40; windows begin in pages 7 and 8, or 8 and 9.
  inner, outer = world.record([1] * 40, [36, 40])
  sizes = {kind: world.pages.size(kind) for kind in world.pages.kinds}
  found = {
    point: nodes.share_of_pools(point, world.pages) for point in (inner, outer)
  }
  wanted = {
    inner: (9 / 2) / sizes['global'] + (1 + 1 / 2) / sizes['local'],
    outer: (9 / 2 + 1) / sizes['global'] + (1 + 1 / 2) / sizes['local'],
  }
  # Two pinned pages that both need, and one of its own for each.
  wanted = {x: y + (2 / 2 + 1) / sizes['local5+5'] for x, y in wanted.items()}
  assert found == pytest.approx(wanted)
  # Together they are charged what is held.
  held = sum(world.pages.count_held(kind) / sizes[kind] for kind in sizes)
  assert sum(found.values()) == pytest.approx(held)
  world.tree.drop(outer)
  held = sum(world.pages.count_held(kind) / sizes[kind] for kind in sizes)
  assert nodes.share_of_pools(inner, world.pages) == pytest.approx(held)

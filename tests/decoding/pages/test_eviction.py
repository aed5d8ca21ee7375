"""Who is expected back, and which points go for want of anybody."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree

S, WINDOW = 4, 8
KINDS = 'global', 'local'


def best_rate(gaps, age):
  """The most returns per second waited, over the gaps themselves.

  Waits are no shorter than ages are told apart: a few returns close together
  are chance.
  """
  left = np.sort(gaps[gaps > age]) - age
  waited = np.array([np.minimum(left, wait).mean() for wait in left])
  rates = np.arange(1, len(left) + 1) / len(left) / waited
  return np.max(rates[left > max(8, 0.41 * age)])


@pytest.mark.parametrize('law', ['thought', 'pauses'])
def test_rates_are_those_of_the_best_wait(law):
  rng = np.random.default_rng(5)
  gaps = 50 * rng.lognormal(0, 0.5, 3_000)
  if law == 'pauses':
    gaps += 3600 * rng.uniform(1, 3, 3_000) * (rng.random(3_000) < 0.3)
  returns = eviction.Returns()
  for gap in gaps:
    returns.note_return(gap)
  returns.read([])
  ages = [0, 30, 60] + ([1_000, 3_000, 6_000] if law == 'pauses' else [])
  for age in ages:
    # Ages are known to a factor of √2.
    assert returns.rate(age) == pytest.approx(best_rate(gaps, age), rel=0.35)


def test_who_is_still_away_counts_as_well():
  returns, others = eviction.Returns(), eviction.Returns()
  for one in returns, others:
    for _ in range(100):
      one.note_return(50.0)
  returns.read([])
  others.read([5_000.0] * 300)
  assert others.rate(1_000) < 0.1 * returns.rate(1_000)
  assert others.rate(5_000) > others.rate(1_000)


def test_nothing_known_is_one_over_the_age():
  returns = eviction.Returns()
  for age in 10.0, 100.0, 1_000.0, 10_000.0:
    assert 0.5 < returns.rate(age) * age < 2.5


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


def test_owners_are_expected_where_their_conversation_goes_on(clock):
  demand = eviction.Demand(clock)
  prefix, prompt, answer = (
    demand.begin_use(one) for one in (True, False, False)
  )
  assert demand.rate(prefix) == pytest.approx(1 / 3600)
  demand.move_owner(prompt, b'a', [prefix])
  demand.move_owner(answer, b'a', [prompt, prefix])
  assert not prompt.owners and not prefix.owners
  clock.now = 100.0
  whole = demand.rate(answer)
  # A swipe may go on from the prompt.
  assert demand.rate(prompt) == pytest.approx(0.15 * whole)
  demand.inherit(answer, prompt)
  assert demand.rate(prompt) == pytest.approx(whole)
  demand.inherit(prompt, prefix)
  assert demand.rate(prefix) == pytest.approx(whole + 1 / 3700)
  # Once it has gone on, it is expected at its own point again.
  other = demand.begin_use(False)
  demand.resume(prefix, b'a')
  demand.move_owner(other, b'a', [prefix])
  assert demand.rate(prefix) == pytest.approx(1 / 3700)
  assert prefix.begun == 1
  demand.resume(prefix, b'b')
  assert prefix.begun == 2


def test_a_lookup_leaves_no_trace(clock, monkeypatch):
  """Who waits, or is refused, looks up again and again."""
  world = World(clock)
  world.record([1] * 40, [20, 40], 20, b'a')
  world.record([2] * 40, [40], owner=b'b')
  ages = []
  monkeypatch.setattr(world.policy._demand.returns, 'note_return', ages.append)

  def traces():
    points = list(world.tree.points())
    uses = [dataclasses.asdict(world.policy._uses[point]) for point in points]
    return list(map(id, points)), uses, list(ages)

  clock.now, before = 70.0, traces()
  text = prefix_tree.Text(np.array([1] * 40 + [3]), 20, b'a')
  for _ in range(3):
    match = world.tree.match(text)
  assert match.length == 40 and traces() == before
  world.tree.touch(match, b'a')
  assert ages == [70.0]
  assert next(iter(world.tree.points())) is not match.point


def test_a_point_knows_its_latest_owners_alone(clock):
  demand = eviction.Demand(clock)
  use = demand.begin_use(True)
  for number in range(200):
    clock.now = float(number)
    demand.move_owner(use, number.to_bytes(2, 'little'), [])
  assert sorted(use.owners.values()) == list(range(136, 200))


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

  def __init__(self, clock):
    self.pages = pages_lib.Pages(dict.fromkeys(KINDS, 400))
    self.policy = eviction.Learned(self.pages, S, clock)
    self.tree = prefix_tree.PrefixTree(self.pages, S, WINDOW, self.policy)

  def record(self, tokens, lengths, shared=0, owner=b''):
    tokens = np.array(tokens, np.int32)
    count = -(-len(tokens) // S)
    taken = {kind: self.pages.take(kind, count) for kind in KINDS}
    points = []
    for length in lengths:
      lowest = max(0, length - (WINDOW - 1)) // S
      own = -(-length // S)
      tables = {
        'global': dict(enumerate(taken['global'][:own])),
        'local': dict(list(enumerate(taken['local'][:own]))[lowest:]),
      }
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
  assert [use.is_prefix for use in uses] == [True, False]
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


def test_rates_are_learned_from_the_returns_to_points(clock):
  world = World(clock)
  world.record([1] * 40, [40], owner=b'a')
  text = prefix_tree.Text(np.array([1] * 40 + [3]), 0, b'a')
  returns = world.policy._demand.returns
  before = returns.rate(30.0)
  for _ in range(64):
    clock.now += 60.0
    world.tree.touch(world.tree.match(text), b'a')
  assert not returns.is_stale and returns.rate(30.0) != before


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


def test_what_is_evicted_leaves_its_owner_to_what_it_went_on_from(
  clock, monkeypatch
):
  world = World(clock)
  prefix, answer = world.record([1] * 48, [24, 48], 24, b'a')
  world.record([2] * 24, [24], 24)
  clock.now = 300.0
  before = world.policy._worth(prefix)
  with monkeypatch.context() as patched:
    patched.setattr(world.policy, '_worth', lambda point: point is not answer)
    assert world.tree.evict()
  assert answer not in world.tree
  assert list(world.policy._uses[prefix].owners) == [b'a']
  assert world.policy._worth(prefix) > 2 * before


def test_pages_are_charged_to_the_points_that_need_them(clock):
  world = World(clock)
  # Full pages end at 36 and 40; windows begin in pages 7 and 8.
  inner, outer = world.record([1] * 40, [36, 40])
  sizes = {kind: world.pages.size(kind) for kind in KINDS}
  found = {
    point: nodes.share_of_pools(point, S, world.pages)
    for point in (inner, outer)
  }
  wanted = {
    inner: (9 / 2) / sizes['global'] + (1 + 1 / 2) / sizes['local'],
    outer: (9 / 2 + 1) / sizes['global'] + (1 + 1 / 2) / sizes['local'],
  }
  assert found == pytest.approx(wanted)
  # Together they are charged what is held.
  held = sum(world.pages.count_held(kind) / sizes[kind] for kind in KINDS)
  assert sum(found.values()) == pytest.approx(held)
  world.tree.drop(outer)
  held = sum(world.pages.count_held(kind) / sizes[kind] for kind in KINDS)
  assert nodes.share_of_pools(inner, S, world.pages) == pytest.approx(held)

"""Traffic is what it says, and no cache has more of it than was ever seen."""

import collections
import itertools
import operator

import numpy as np
import pytest

from kaiju_jax.fleet import caches
from kaiju_jax.fleet import foresight
from kaiju_jax.fleet import replay
from kaiju_jax.fleet import traffic
from kaiju_jax.model import presets
from tests.fleet import small_fleet

SMALL = traffic.Traffic(
  seed=3,
  requests=400,
  characters=8,
  prefix=(60, 200),
  live=4,
  turns=12.0,
  message=12,
  answer=24,
  longest=60,
  context=500,
  edits=0.1,
)
SIZES = caches.CacheSizes(8, 40, {'local': 400, 'global': 100}, 500)


def tally(requests, cache):
  """Returns how many prompt tokens a cache had."""
  return sum(map(cache.serve, requests))


@pytest.fixture(scope='module')
def requests():
  return list(traffic.trace(SMALL))


def test_a_trace_is_frozen_by_its_seed(requests):
  again = list(traffic.trace(SMALL))
  assert [one._replace(prompt=(), answer=0) for one in again] == [
    one._replace(prompt=(), answer=0) for one in requests
  ]
  for one, other in zip(requests, again):
    np.testing.assert_array_equal(one.tokens(), other.tokens())
  shorter = traffic.Traffic(requests=5, seed=4)
  assert next(traffic.trace(shorter)).character != requests[0].character


def test_requests_come_in_time_and_fit_the_context(requests):
  assert len(requests) == SMALL.requests
  seconds = [one.seconds for one in requests]
  assert seconds == sorted(seconds) and seconds[0] >= 0
  for one in requests:
    size = len(one.tokens()) + len(one.answer.tokens)
    assert 60 <= one.shared <= 200 and size <= SMALL.context
  kinds = collections.Counter(one.kind for one in requests)
  assert 0.1 < kinds['swipe'] / 400 < 0.2 and 0.05 < kinds['edit'] / 400 < 0.15
  popular = collections.Counter(one.character for one in requests)
  assert popular[0] > popular[7]


def test_turns_swipes_and_edits_continue_what_was_said(requests):
  small_fleet.check_continuations(requests)
  firsts = {one.session: one for one in reversed(requests)}.values()
  assert all(one.kind == 'turn' and len(one.prompt) == 3 for one in firsts)


def test_the_oracle_has_all_that_was_seen(requests):
  oracle, seen = caches.Oracle(), [[]]
  for one in requests[:120]:
    tokens = one.tokens().tolist()
    common = (
      sum(itertools.takewhile(bool, map(operator.eq, tokens, other)))
      for other in seen
    )
    wanted = min(max(common), len(tokens) - 1)
    # Unrelated tokens may be equal by chance.
    assert 0 <= wanted - oracle.serve(one) <= 1
    seen.append(tokens + one.answer.tokens.tolist())


@pytest.mark.parametrize('memory', [3e3, 60e3, 200e3, 1e9])
def test_no_cache_has_more_than_the_oracle(requests, memory):
  oracle = caches.Oracle()
  points, blocks = caches.Points(SIZES, memory), caches.Blocks(SIZES, memory)
  knowing = foresight.Foresight(requests, SIZES, memory)
  for one in requests:
    most = oracle.serve(one)
    for cache in points, blocks, knowing:
      # A token more, by chance.
      assert 0 <= cache.serve(one) <= most + 1
  for cache in points, knowing:
    tree, pages = cache.tree, cache.pages
    while tree.evict():
      pass
    assert all(pages.count_held(kind) == 0 for kind in pages.kinds)


def test_points_have_nearly_all_where_nothing_is_evicted(requests):
  most = tally(requests, caches.Oracle())
  points = tally(requests, caches.Points(SIZES, 1e9))
  blocks = tally(requests, caches.Blocks(SIZES, 1e9))
  # A page of 8 tokens is lost where blocks end; an edit, where points do.
  assert 0.97 * most < points <= most
  assert 0.9 * most < blocks < points


def test_more_memory_is_no_worse(requests):
  result = replay.replay(requests, SIZES, [0.5, 0.1, 0.03], 0.5)
  for one, less in itertools.pairwise(result.rows):
    assert one.memory > less.memory
    for name in 'points', 'lru', 'blocks':
      assert one.rates[name] >= less.rates[name]
  assert result.rows[-1].rates['points'] < result.oracle
  rates = result.rows[1].rates
  assert rates['points'] < rates['foresight']
  assert rates['points'] != rates['lru']
  for row in result.rows:
    shares = replay.share(row, result)
    assert list(shares) == list(replay.CACHES)
    for name, rate in row.rates.items():
      assert shares[name] == pytest.approx(rate / result.oracle)
      # What it lacks of the oracle's hits has one cause each.
      lost = sum(row.missing[name].values())
      assert lost == pytest.approx(1 - shares[name], abs=1e-9)
  assert sum(result.causes.values()) == len(requests)


def test_requests_miss_for_what_they_are_or_how_long_they_were_left():
  def one(seconds, session, kind='turn', size=3):
    pieces = tuple(piece(number, 4) for number in range(size))
    return traffic.Request(seconds, 0, session, kind, pieces, piece(9, 4))

  requests = [
    one(0.0, 1),
    one(1.0, 2, size=6),
    one(600.0, 1),
    one(602.0, 2),
    one(610.0, 3, 'fork', 6),
    one(15_002.0, 1, 'swipe'),
    one(15_002.0, 2),
  ]
  assert replay.find_causes(requests) == [
    'first turn',
    'first seen',
    'within 10 minutes',
    'after 10 minutes',
    'fork',
    'after 4 hours',
    'after 10 minutes',
  ]


def piece(number, size):
  return traffic.Piece(number, np.full(size, number, np.int32))


def in_turn(sessions, turns):
  """Yields the requests of conversations that speak one after another."""
  numbers = itertools.count()
  histories = [[piece(next(numbers), 100)] for _ in range(sessions)]
  for turn, (session, history) in itertools.product(
    range(turns), enumerate(histories)
  ):
    history.append(piece(next(numbers), 12))
    answer = piece(next(numbers), 24)
    yield traffic.Request(
      float(turn), session, session, 'turn', tuple(history), answer
    )
    history.append(answer)


def test_sessions_in_turn_find_all_in_a_pool_that_they_nearly_fill():
  """Where a cache of the least recently used pages would find nothing."""
  requests = list(in_turn(20, 8))
  kinds = SIZES.page_bytes
  large, held = caches.Points(SIZES, 1e7), dict.fromkeys(kinds, 0)
  for request in requests:
    large.serve(request)
    held = {
      kind: max(held[kind], large.pages.count_held(kind)) for kind in kinds
    }
  room = {kind: held[kind] * kinds[kind] / 0.9 for kind in kinds}
  memory = sum(room.values())
  points = caches.Points(SIZES, memory, local=room['local'] / memory)
  found = tally(requests, points)
  most = tally(requests, caches.Oracle())
  assert found >= 0.99 * most
  # And with half of it they lose most of their turns.
  fewer = caches.Points(SIZES, memory / 2, local=room['local'] / memory)
  assert tally(requests, fewer) < 0.7 * most


def test_foresight_loses_little_where_one_of_three_in_turn_has_no_room():
  # Three conversations in turns, and room for two: the one to be asked next is
  # always the one that was used least recently.
  histories = [[piece(10 + number, 64)] for number in range(3)]
  requests = []
  for turn in range(30):
    history = histories[turn % 3]
    answer = piece(100 + turn, 1)
    prompt = (piece(turn % 3, 64), *history, piece(50 + turn, 1))
    requests.append(
      traffic.Request(turn, turn % 3, turn % 3, 'turn', prompt, answer)
    )
    history += [prompt[-1], answer]
  memory, local = 18_000, 0.7
  policy = caches.least_recently_used
  lru = caches.Points(SIZES, memory, local, make_policy=policy)
  hits = {
    name: tally(requests, cache)
    for name, cache in (
      ('foresight', foresight.Foresight(requests, SIZES, memory, local)),
      ('lru', lru),
      ('enough', caches.Points(SIZES, 3 * memory, local)),
    )
  }
  # The least recently used has the prefixes alone, half of a prompt.
  assert hits['lru'] < 0.6 * hits['enough']
  assert 0.7 * hits['enough'] < hits['foresight'] < hits['enough']


def test_foresight_knows_which_characters_are_asked_for():
  requests = [
    traffic.Request(
      turn,
      turn % 3,
      turn,
      'turn',
      (piece(turn % 3, 128), piece(10 + turn, 1)),
      piece(50 + turn, 1),
    )
    for turn in range(30)
  ]
  memory, local = 10_000, 0.6
  knowing = foresight.Foresight(requests, SIZES, memory, local)
  lru = caches.Points(SIZES, memory, local)
  hits = [tally(requests, cache) for cache in (lru, knowing)]
  assert hits[0] == 0 and 10 * 128 <= hits[1] <= 20 * 128


def test_source_003_is_reproduced_where_prefixes_alone_are_kept():
  sizes = replay.sizes_of(presets.preset('13b'))
  assert sizes.page_bytes == {'global': 50_688, 'local': 202_752}
  rates = replay.prefix_hit_rates(sizes, 6_144, (4_096, 10_240, 64))
  assert rates == pytest.approx([0.6, 0.375, 0.99], abs=0.002)

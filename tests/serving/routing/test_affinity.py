"""The router's table: the latest use counts, whoever tells of it."""

import random
import time

import numpy as np
import pytest

from kaiju_jax.serving.routing import affinity as affinity_lib
from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib
from tests.serving import trivial
from tests.serving.routing import uses


@pytest.mark.parametrize('slots', [1, 8, 9, 1000, 2**20])
def test_sessions_stand_where_the_policies_look(slots):
  draws = random.Random(slots)
  sessions = [0, 1, 2**63 - 1, *(draws.randrange(2**63) for _ in range(200))]
  table = policies.make_table(slots)
  found = affinity_lib._ways(np.array(sessions, np.int64), len(table))
  for session, ways in zip(sessions, found.tolist()):
    first = policies.mix(session, 1) % (len(table) // policies.WAYS)
    assert ways == [first * policies.WAYS + n for n in range(policies.WAYS)]


def draw_uses(draws):
  return [
    (
      draws.randrange(40),
      draws.choice(uses.NAMES),
      uses.NOW - draws.randint(1, 50),
    )
    for _ in range(draws.randrange(60))
  ]


@pytest.mark.parametrize('slots', [8, 16, 1024])
@pytest.mark.parametrize('seed', range(20))
def test_merging_keeps_the_latest_of_each_session_and_set(seed, slots):
  """Whatever is told first; checked beside a table of plain dicts."""
  draws = random.Random(seed)
  one, two = draw_uses(draws), draw_uses(draws)
  affinity = uses.make(slots)
  for told in one, two:
    affinity.merge(
      [
        uses.rows(
          name, *((x, when) for x, replica, when in told if replica == name)
        )
        for name in uses.NAMES
      ]
    )
  latest = {}
  for session, name, when in [*one, *two]:
    latest[session] = max(latest.get(session, (0, '')), (when, name))
  sets = {}
  for session, (when, _) in latest.items():
    place = policies.mix(session, 1) % (slots // policies.WAYS)
    sets.setdefault(place, []).append((when, session))
  found = uses.uses_of(affinity)
  for held in sets.values():
    kept = [when for when, session in held if session in found]
    assert sorted(kept) == sorted(when for when, _ in held)[-policies.WAYS :]
  assert found.keys() <= latest.keys()
  times = {(s, n, w) for s, n, w in [*one, *two]}
  for session, (name, when) in found.items():
    assert when == latest[session][0]
    assert (session, name, when) in times
    assert affinity.find(session) == name


def test_noting_and_merging_fill_alike():
  clock = trivial.Clock()
  noted, merged = uses.make(16, clock), uses.make(16)
  for n in range(200):
    clock.now = uses.NOW - 1000 + n
    noted.note(n % 61, uses.NAMES[n % 3])
    merged.index_of(uses.NAMES[n % 3])
    merged.merge([uses.rows(uses.NAMES[n % 3], (n % 61, clock.now))])
  assert uses.uses_of(noted) == uses.uses_of(merged) and len(noted) == 16


def test_an_older_use_changes_nothing():
  affinity = uses.make()
  affinity.note(7, 'a')
  assert affinity.merge([uses.rows('b', (7, uses.NOW - 1))]) == 0
  assert affinity.find(7) == 'a'
  assert (
    affinity.merge([uses.rows('b', (7, uses.NOW))]) == 0
  )  # Nor one of equal time.
  assert affinity.find(7) == 'a'


def test_a_clock_that_is_ahead_does_not_keep_a_session():
  clock = trivial.Clock()
  affinity = uses.make(clock=clock)
  affinity.merge([uses.rows('a', (7, uses.NOW + 10_000))])
  clock.now += 1
  affinity.note(7, 'b')
  assert affinity.find(7) == 'b'
  affinity.merge([uses.rows('a', (7, uses.NOW + 0.5))])
  assert affinity.find(7) == 'b'
  # Nor against what another router tells.
  affinity.merge([uses.rows('a', (8, uses.NOW + 10_000))])
  clock.now += 1
  affinity.merge([uses.rows('b', (8, uses.NOW + 2))])
  assert affinity.find(8) == 'b'


def test_a_use_from_a_clock_ahead_expires_like_any_other():
  """Another router's clock, or one's own before it was set back."""
  clock = trivial.Clock()
  affinity = uses.make(clock=clock, seconds=100)
  affinity.merge([uses.rows('a', (1, uses.NOW + 10_000))])
  clock.now += 10_000
  affinity.note(2, 'a')
  clock.now -= 10_000
  affinity.note(3, 'a')
  affinity.expire()
  assert uses.uses_of(affinity).keys() == {1, 2, 3}
  clock.now += 99
  affinity.expire()
  assert uses.uses_of(affinity).keys() == {1, 2, 3}
  clock.now += 2
  affinity.expire()
  assert not uses.uses_of(affinity)


def test_what_was_not_used_for_long_is_forgotten():
  clock = trivial.Clock()
  affinity = uses.make(clock=clock, seconds=100)
  assert (
    affinity.merge([uses.rows('a', (1, uses.NOW - 101), (2, uses.NOW - 99))])
    == 1
  )
  clock.now += 5
  affinity.note(3, 'a')
  affinity.expire()
  assert uses.uses_of(affinity).keys() == {3}


def test_a_removed_replica_has_its_sessions_until_its_place_is_taken():
  affinity = uses.make()
  affinity.merge([uses.rows('a', (1, uses.NOW)), uses.rows('b', (2, uses.NOW))])
  place = affinity.index_of('a')
  affinity.remove('a')
  assert affinity.names == ['b'] and affinity.find(1) == 'a'
  assert affinity.index_of('a') == place and affinity.find(1) == 'a'
  affinity.remove('a')
  assert affinity.index_of('c') == place and affinity.names == ['c', 'b']
  assert affinity.find(1) is None and affinity.find(2) == 'b'
  assert affinity.index_of('a') == 2
  affinity.remove('nobody')


def test_a_forgotten_session_is_not_told_of():
  affinity = uses.make()
  affinity.take()
  affinity.note(1, 'a')
  affinity.note(2, 'a')
  affinity.forget(1)
  (taken,) = affinity.take()
  assert taken.sessions.tolist() == [2] and affinity.find(1) is None
  affinity.table[:] = -1  # Lost.
  assert affinity.find(2) is None and len(affinity) == 0


def test_moves_are_counted():
  affinity = uses.make()
  for name in 'a', 'a', 'b', 'b', 'a':
    affinity.note(1, name)
  affinity.note(2, 'c')
  assert affinity.moved == 2


def test_what_was_noted_is_taken_once(monkeypatch):
  affinity = uses.make(1024)
  affinity.merge([uses.rows('a', (9, uses.NOW))])
  assert [one.sessions.tolist() for one in affinity.take()] == [[9]]
  assert affinity.take() == []
  for session in 1, 2, 1:
    affinity.note(session, 'b')
  (one,) = affinity.take()
  assert one.name == 'b' and sorted(one.sessions.tolist()) == [1, 2]
  assert affinity.take() == []
  # More than can be remembered: all are told.
  monkeypatch.setattr(affinity_lib, '_QUEUED', 2)
  for session in 1, 2, 3:
    affinity.note(session, 'b')
  assert sum(len(one.sessions) for one in affinity.take()) == 4
  assert affinity.take() == []


def test_pick_goes_where_the_table_says():
  affinity = uses.make()
  for name in uses.NAMES:
    affinity.index_of(name)
  affinity.note(5, 'c')
  place = policies.pick(0, 5, np.ones(3), np.array([0, 0, 9.0]), affinity.table)
  assert place == affinity.index_of('c')


def test_a_replicas_texts_tell_of_its_sessions():
  held = [
    replica_lib.CachedText('ab', 'f' * 64, 5, 0.0),
    replica_lib.CachedText('ab', '', 900, 0.0),
    replica_lib.CachedText('cd', '0' * 15 + '2' * 17, 5, 3.0),
  ]
  found = affinity_lib.rows_of_cached('a', held, uses.NOW)
  assert found.sessions.tolist() == [2**60 - 1, 0]
  assert found.times.tolist() == [1000 * uses.NOW, 1000 * (uses.NOW - 3)]


def test_a_million_sessions_are_merged_in_time():
  """By the processor, of the five seconds that a rebuild may take."""
  rng = np.random.default_rng(0)
  affinity = affinity_lib.Affinity(clock=trivial.Clock())
  told = [
    affinity_lib.Rows(
      f'r{n}',
      rng.integers(0, 2**62, 2**20 // 16),
      rng.integers(1000 * uses.NOW - 10_000, 1000 * uses.NOW, 2**20 // 16),
    )
    for n in range(16)
  ]
  begun = time.process_time()
  affinity.merge(told)
  assert time.process_time() - begun < 4
  assert len(affinity) > 0.8 * 2**20

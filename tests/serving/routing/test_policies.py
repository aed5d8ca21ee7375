"""The router's function: what each policy picks, and the same once compiled."""

import numpy as np
import pytest

from kaiju_jax.fleet import compiling
from kaiju_jax.serving.routing import policies

NONE = policies.make_table(8)
HASHES = [51983842, 211735659, 211735659, 70043451]
OWNERS = [1, 1, 0, 0, 3, 1, 0, 1]
POLICIES = {name: n for n, name in enumerate(policies.NAMES)}


def pick(name, digest=1, session=0, loads=(0, 0, 0, 0), table=NONE, **others):
  shares = np.array(others.pop('shares', np.ones(len(loads))), float)
  return policies.pick(
    digest,
    session,
    shares,
    np.array(loads, float),
    table,
    POLICIES[name],
    others.pop('count', 0),
  )


def states(count):
  """Yields arguments of `pick`, many of them with ties and closed replicas."""
  rng = np.random.default_rng(0)
  for _ in range(count):
    size = int(rng.integers(1, 9))
    table = policies.make_table(16)
    for use in range(int(rng.integers(12))):
      session, replica = int(rng.integers(12)), int(rng.integers(size))
      policies.note(table, session, replica, use)
    yield (
      int(rng.integers(2**40)),
      int(rng.integers(12)),
      rng.choice([0, 0.1, 0.5, 1, 1, 1], size),
      rng.integers(0, 4, size) * rng.choice([1.0, 1 / 3, 1e5]),
      table,
      int(rng.integers(len(policies.NAMES))),
      int(rng.integers(1000)),
    )


def test_compiled_it_picks_the_same_in_10_000_states():
  pytest.importorskip('numba')
  (compiled,) = compiling.compile_modules([policies])
  assert compiled.pick is not policies.pick
  found = [
    (policies.pick(*state), compiled.pick(*state)) for state in states(10_000)
  ]
  assert all(one == other for one, other in found)
  assert {one for one, _ in found} == set(range(-1, 8))


def test_hashes_are_frozen():
  """A router of another build finds the same owners."""
  assert [policies.mix(n, 5) for n in (0, 1, 2**40 + 1, -1)] == HASHES
  owners = [pick('character', digest=n) for n in range(8)]
  assert owners == OWNERS


def test_closed_replicas_get_nothing_and_open_ones_all():
  rng = np.random.default_rng(1)
  for name in policies.NAMES:
    picked = {
      pick(
        name,
        digest=int(rng.integers(2**31)),
        session=n,
        loads=[9, 0, 8, 0],
        shares=[1, 0, 1, 0],
        count=n,
      )
      for n in range(64)
    }
    assert picked <= {0, 2} and (picked == {0, 2} or name == 'least_loaded')
    assert pick(name, shares=[0, 0, 0, 0]) == -1


@pytest.mark.parametrize('name', policies.NAMES)
def test_a_share_is_the_fraction_of_the_sessions(name):
  found = np.array(
    [
      pick(name, digest=n, session=n, loads=[0, 1], shares=[0.25, 1], count=n)
      for n in range(1_000)
    ]
  )
  open_to = (found == 0).mean()
  least = {'least_loaded': 0.25, 'bounded': 0.25}.get(name, 0.125)
  assert least - 0.05 < open_to < 0.3
  # The same sessions stay open to it while its share grows.
  more = [
    pick(name, digest=n, session=n, loads=[0, 1], shares=[0.5, 1], count=n)
    for n in range(1_000)
  ]
  assert (np.array(more)[found == 0] == 0).all()


def test_random_spreads_and_least_loaded_finds_the_least():
  drawn = [pick('random', session=n, count=n) for n in range(4_000)]
  assert np.abs(np.bincount(drawn) - 1_000).max() < 150
  assert pick('least_loaded', loads=[3, 2, 1, 2]) == 2
  ties = {pick('least_loaded', session=n, count=n) for n in range(40)}
  assert ties == {0, 1, 2, 3}


def test_a_characters_owner_ignores_load_until_it_is_bounded():
  owner = pick('character', digest=77)
  loads = np.ones(4)
  loads[owner] = 1.3 / 0.9
  assert pick('character', digest=77, loads=loads) == owner
  others = {pick('character', digest=77, session=n, count=n) for n in range(20)}
  assert others == {owner}
  # 1.25 × the mean is the most that an owner has.
  loads[owner] = 1.25 * 3 / (4 - 1.25) * 0.999
  assert pick('bounded', digest=77, loads=loads) == owner
  loads[owner] = 1.25 * 3 / (4 - 1.25) * 1.001
  successor = pick('bounded', digest=77, loads=loads)
  closed = [float(place != owner) for place in range(4)]
  assert successor == pick('character', digest=77, shares=closed) != owner


def test_a_new_replica_takes_its_part_of_the_characters_alone():
  before = np.array(
    [pick('character', digest=n, loads=[0] * 4) for n in range(1_000)]
  )
  after = np.array(
    [pick('character', digest=n, loads=[0] * 5) for n in range(1_000)]
  )
  moved = before != after
  assert (after[moved] == 4).all()
  assert 0.15 < moved.mean() < 0.25


def test_a_session_sticks_unless_its_replica_is_closed():
  table = policies.make_table(64)
  policies.note(table, 5, 2, 1)
  assert pick('sticky', session=5, table=table, loads=[0, 0, 9, 0]) == 2
  closed = pick('sticky', session=5, table=table, shares=[1, 1, 0, 1])
  assert closed != 2
  policies.note(table, 5, closed, 2)
  assert policies.find(table, 5) == closed
  assert policies.find(table, 6) == -1


def test_two_choices_take_the_less_loaded():
  loads = [4.0, 3.0, 2.0, 1.0]
  drawn = [
    pick('sticky', session=n, loads=loads, count=n) for n in range(4_000)
  ]
  # Of two draws the k-th best of four is taken with (2k + 1)/16 the other way.
  shares = np.bincount(drawn) / 4_000
  assert np.abs(shares - np.array([1, 3, 5, 7]) / 16).max() < 0.03


def test_a_full_set_of_the_table_forgets_its_oldest():
  table = policies.make_table(policies.WAYS)
  for session in range(policies.WAYS):
    policies.note(table, session, session, session)
  policies.note(table, 0, 3, 100)
  policies.note(table, 99, 1, 101)
  kept = [n for n in range(policies.WAYS) if policies.find(table, n) >= 0]
  assert kept == [0, *range(2, policies.WAYS)]
  assert policies.find(table, 0) == 3 and policies.find(table, 99) == 1


def test_without_the_compiler_the_extra_is_named(monkeypatch):
  monkeypatch.delenv('NUMBA_DISABLE_JIT', raising=False)
  monkeypatch.setitem(__import__('sys').modules, 'numba', None)
  with pytest.raises(compiling.MissingExtra, match=r'kaiju_jax\[fleet\]'):
    compiling.compile_modules([policies])
  monkeypatch.setenv('NUMBA_DISABLE_JIT', '1')
  assert compiling.compile_modules([policies]) == [policies]

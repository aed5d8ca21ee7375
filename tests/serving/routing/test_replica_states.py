"""Places: who serves a conversation, and what shares and builds change."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import replica_states

NAMES = replica_lib.Pseudonyms(b'a secret of many bytes')
STICKY = policies.NAMES.index('sticky')


@dataclasses.dataclass
class Replica:
  name: str
  build: str = 'b1'
  is_alive: bool = True


def make(*builds, policy=STICKY, sessions=1024, share=1.0):
  made = replica_states.ReplicaStates(NAMES, policy, sessions)
  for number, build in enumerate(builds):
    made.add(Replica(f'r{number}', build), share)
  return made


def talk(number, owner='ann', salt=''):
  return request_lib.Request(
    [1], 4, owner=owner, conversation=f'talk {number}', cache_salt=salt
  )


def serve(states, requests):
  """Returns the names of the replicas that serve requests, one by one."""
  found = []
  for one in requests:
    state = states.pick(one)
    states.note(one, state)
    found.append(state.replica.name)
  return found


TALKS = [talk(n) for n in range(60)]


def test_a_conversation_stays_where_it_began():
  states = make('b1', 'b1', 'b1')
  first = serve(states, TALKS)
  assert set(first) == {'r0', 'r1', 'r2'}
  next(iter(states)).charge(1e6)
  assert serve(states, TALKS[::-1]) == first[::-1]
  # Another owner's conversation of that name is another one.
  others = serve(states, [talk(n, 'ben') for n in range(60)])
  # Both of two choices are the loaded one in a ninth of the cases.
  assert others != first and others.count('r0') < 15


def test_the_load_chooses_for_one_that_is_new():
  states = make('b1', 'b1', policy=policies.NAMES.index('least_loaded'))
  one, other = states
  one.charge(5)
  assert {states.pick(talk(n)) for n in range(9)} == {other}
  # What it tells counts, and what was charged after it was asked.
  charged = other.charged
  other.charge(3)
  state = replica_lib.Status(4.0, 1, 0, 0, None)
  other.update(state, charged)
  assert other.load == 7
  other.update(state, charged)
  assert other.load == 7
  other.charge(-50)
  assert other.load == 0


def test_a_share_opens_a_replica_to_so_many_new_conversations():
  states = make('b1', 'b2', sessions=2**14)
  states.set_share('r1', 0.1)
  requests = [talk(n) for n in range(2000)]
  found = serve(states, requests)
  count = found.count('r1')
  # A tenth may be drawn, of which two choices take about half.
  assert 40 < count < 200
  states.set_share('r1', 0)
  assert serve(states, requests) == found
  assert set(serve(states, [talk(n, 'ben') for n in range(99)])) == {'r0'}


def test_a_request_without_a_conversation_is_known_to_nobody():
  states = make('b1', 'b1')
  table = states.affinity.table.copy()
  serve(states, [dataclasses.replace(TALKS[0], conversation=None)] * 20)
  np.testing.assert_array_equal(states.affinity.table, table)


def test_a_dead_replica_runs_nothing_whatever_it_told_last():
  (state,) = made = make('b1')
  assert state.running == 0
  state.update(replica_lib.Status(9.0, 3, 0, 0, None), state.charged)
  assert (state.running, state.load) == (3, 9.0)
  state.replica.is_alive = False
  assert state.running == 0
  made.remove('r0')
  assert state.running == 0


def test_a_place_is_given_again():
  states = make('b1', 'b1')
  with pytest.raises(ValueError, match="name='r1': another replica has it"):
    states.add(Replica('r1'), 1.0)
  with pytest.raises(ValueError, match=r'share=1.5: must be 0…1'):
    states.add(Replica('r2'), 1.5)
  with pytest.raises(ValueError, match=r'share=-0.1: must be 0…1'):
    states.set_share('r1', -0.1)
  with pytest.raises(ValueError, match=r"name='r7': .* a replica: r0, r1"):
    states.find('r7')
  states.find('r0').replica.is_alive = False
  made = states.add(Replica('r0', 'b2'), 0.5)
  assert (made.index, made.build, made.share) == (0, 'b2', 0.5)
  states.remove('r1')
  assert states.add(Replica('r9'), 1.0).index == 1
  assert states.add(Replica('r10'), 1.0).index == 2
  assert [x.replica.name for x in states] == ['r0', 'r9', 'r10']


def test_the_table_is_bounded_and_holds_numbers_alone():
  states = make('b1', 'b1', sessions=64)
  size = states.affinity.table.nbytes
  serve(states, [talk(n, 'an owner', 'a salt') for n in range(2000)])
  assert states.affinity.table.nbytes == size == 64 * 24
  kept = set(vars(states)) - {'_pseudonyms', '_policy', '_states', '_table'}
  assert kept == {'_count', 'affinity'} and isinstance(states._count, int)
  # Beside the table: replicas' names, and what is to be told to other routers.
  affinity = states.affinity
  assert affinity._names == ['r0', 'r1'] and affinity._noted is None
  # What it takes where nobody says how much: a megabyte and a half.
  assert (
    replica_states.ReplicaStates(NAMES, STICKY).affinity.table.nbytes
    == 24 * 65_536
  )


def test_what_caches_hold_fills_the_table_where_it_is_empty():
  states, other = make('b1', 'b1', 'b1'), make('b1', 'b1', 'b1')
  found = serve(states, TALKS)
  for state in other:
    held = [
      replica_lib.CachedText('s', NAMES.conversation('ann', f'talk {n}'), 9)
      for n, name in enumerate(found)
      if name == state.replica.name
    ]
    other.learn(state, [replica_lib.CachedText('s', '', 4), *held])
  assert serve(other, TALKS) == found
  # What the router knows is newer than what a cache still holds.
  moved = next(x for x in other if x.replica.name != found[0])
  name = NAMES.conversation('ann', 'talk 0')
  other.learn(moved, [replica_lib.CachedText('s', name, 9, idle=60.0)])
  assert serve(other, TALKS[:1]) == found[:1]
  other.forget('ann', 'talk 0')
  assert policies.find(other._table, replica_lib.number(name)) == -1
  assert serve(other, TALKS[1:]) == found[1:]


def test_characters_have_owners_by_their_salts():
  states = make('b1', 'b1', 'b1', policy=policies.NAMES.index('character'))
  by_salt = {
    salt: set(serve(states, [talk(n, salt=salt) for n in range(8)]))
    for salt in map(str, range(12))
  }
  assert all(len(found) == 1 for found in by_salt.values())
  assert len(set.union(*by_salt.values())) == 3


def test_pseudonyms_tell_nothing_and_are_the_fleets():
  same, other = (
    replica_lib.Pseudonyms(b'a secret of many bytes'),
    replica_lib.Pseudonyms(b'x'),
  )
  assert NAMES.salt('ab') == same.salt('ab') != other.salt('ab')
  pairs = [('a', 'b c'), ('a b', 'c'), ('a', "b', 'c"), ("a', 'b", 'c')]
  found = {NAMES.conversation(*pair) for pair in pairs}
  assert len(found) == 4 and NAMES.salt('a') not in found
  assert all(0 <= replica_lib.number(x) < 2**60 for x in found)


def test_one_that_is_removed_while_it_accepts_keeps_no_conversation():
  states = make('b1', 'b1')
  table = states.affinity.table.copy()
  picked = states.pick(TALKS[0])
  states.remove(picked.replica.name)
  states.note(TALKS[0], picked)
  np.testing.assert_array_equal(states.affinity.table, table)

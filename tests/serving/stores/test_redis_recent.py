"""What is remembered while a store is away, and what is forgotten first."""

import dataclasses

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import redis_recent

LEAST = redis_recent._LEAST
SESSION = characters.Session(
  'a', 'ann', 'nemo', 1, 0, 0, 'Nemo', 10.0, 10.0, 1, 5
)
MESSAGES = tuple(
  characters.Message(number, None, 'user', 'x') for number in range(5)
)


def session(name, **changes):
  return dataclasses.replace(SESSION, id=name, **changes)


def version(number, tokens=1):
  return characters.Version(
    'nemo',
    number,
    'digest',
    np.zeros(tokens, np.int32),
    'bytes',
    card_fields.Fields('Nemo'),
    1.0,
  )


def test_the_least_recently_used_go_first():
  recent = redis_recent.Recent(sessions=3 * LEAST)
  for name in 'abc':
    recent.keep_session(session(name))
  recent.session('a')
  recent.keep_session(session('d'))
  held = [name for name in 'abcd' if recent.session(name)]
  assert held == ['a', 'c', 'd']
  # A session that grows takes the room of others.
  recent.keep_session(session('d', count=2, size=2 * LEAST))
  assert [name for name in 'abcd' if recent.session(name)] == ['c', 'd']
  recent.keep_session(session('d', count=3, size=9 * LEAST))
  # One that alone is larger than all room is not remembered at all.
  assert [name for name in 'abcd' if recent.session(name)] == ['c']


def test_versions_are_bounded_by_their_tokens():
  recent = redis_recent.Recent(versions=8 * LEAST)
  for number in 1, 2, 3:
    recent.keep_version(version(number, tokens=LEAST // 2))
  for number in range(4, 8):
    recent.keep_version(version(number))
  held = [n for n in range(1, 8) if recent.version('nemo', n)]
  assert held == [2, 3, 4, 5, 6, 7]
  recent.keep_version(version(2, tokens=LEAST // 2))
  recent.forget_version('nemo', 3)
  held = [n for n in range(1, 8) if recent.version('nemo', n)]
  assert held == [2, 4, 5, 6, 7]


def test_a_later_state_of_a_session_stays():
  recent = redis_recent.Recent()
  late = session('a', updated=20.0, count=3)
  recent.keep_session(late)
  for early in (
    session('a', updated=10.0, count=4),
    session('a', updated=20.0, count=2),
  ):
    recent.keep_session(early)
    assert recent.session('a') == late
  same = session('a', updated=20.0, count=3, title='new')
  recent.keep_session(same)
  assert recent.session('a') == same


def test_messages_join_what_is_remembered():
  recent = redis_recent.Recent()
  recent.keep_messages('a', MESSAGES)
  assert recent.messages('a') == ()
  recent.keep_session(session('a'))
  recent.keep_messages('a', MESSAGES[1:2])
  assert recent.messages('a') == ()
  recent.keep_messages('a', MESSAGES[:2])
  recent.keep_messages('a', MESSAGES[1:4])
  assert recent.messages('a') == MESSAGES[:4]
  recent.keep_session(session('a', count=5))
  assert recent.messages('a') == MESSAGES[:4]
  recent.forget('a')
  assert recent.session('a') is None
  assert recent.messages('a') == ()

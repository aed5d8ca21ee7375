"""What both stores promise, one property at a time."""

import collections
import concurrent.futures
import dataclasses
import re

import numpy as np
import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters

FIELDS = card_fields.Fields(
  name='Captain Nemo', greeting='Aye.', alternate_greetings=('', 'Ahoy.')
)
PREFIX = [1, 2, 3]


def publish(store, owner='ann', fields=FIELDS, **named):
  return store.publish(owner, fields, PREFIX, 'bytes', **named)


def edited(number):
  return dataclasses.replace(FIELDS, description=f'edit {number}')


def together(count, work):
  """Returns what `work` of 0, 1, … returned or raised, all at once."""
  with concurrent.futures.ThreadPoolExecutor(count) as pool:
    futures = [pool.submit(work, number) for number in range(count)]
  return [future.exception() or future.result() for future in futures]


def test_a_digest_is_of_tokens_and_tokenizer_alone():
  digests = [
    rules.digest(np.array(tokens, np.int32), tokenizer)
    for tokens, tokenizer in (
      (PREFIX, 'bytes'),
      (PREFIX, 'byte'),
      (PREFIX, 'sytes'),
      # Where the tokenizer's name ends is part of it.
      (PREFIX[1:], 'bytes\1\0\0\0'),
      (PREFIX[:2], 'bytes'),
      ([], 'bytes'),
      ([1, 2, 3 + 2**8], 'bytes'),
    )
  ]
  assert len({*digests}) == 7
  assert all(re.fullmatch('[0-9a-f]{64}', one) for one in digests)


def test_a_version_is_a_copy_that_nobody_changes(make_store):
  tokens = np.array([5, 2**31 - 1, 0], np.int64)
  store = make_store()
  version = store.publish('ann', FIELDS, tokens, 'bytes')
  tokens[:] = 9
  for one in store, make_store():
    held = one.version(version.character, 1)
    assert held == version
    assert held.tokens.dtype == np.int32
    assert held.tokens.tolist() == [5, 2**31 - 1, 0]
    with pytest.raises(ValueError):
      held.tokens[0] = 1


def test_a_rollback_is_refused_where_another_audience_would_see_it(make_store):
  store = make_store()
  character = publish(store).character
  publish(store, fields=edited(1), character=character, is_public=True)
  with pytest.raises(characters.Conflict, match='made public meanwhile'):
    store.rollback('ann', character, 1, if_public=False)
  assert store.live('bob', character).number == 2
  assert store.rollback('ann', character, 1, if_public=True).number == 1
  publish(store, fields=FIELDS, character=character, is_public=False)
  with pytest.raises(characters.Conflict, match='made private meanwhile'):
    store.rollback('ann', character, 2, if_public=True)
  assert store.rollback('ann', character, 2).number == 2


def private(store):
  """Returns calls of what is Bob's, by the name of each."""
  character = publish(store, 'bob').character
  session = store.open_session('bob', character).id
  return calls(store, character, session)


def calls(store, character, session, owner='ann'):
  return {
    'character': lambda: store.character(owner, character),
    'live': lambda: store.live(owner, character),
    'versions': lambda: store.versions(owner, character),
    'publish': lambda: publish(store, owner, character=character),
    'rollback': lambda: store.rollback(owner, character, 1),
    'rollback to none': lambda: store.rollback(owner, character, 7),
    'remove': lambda: store.remove(owner, character),
    'open': lambda: store.open_session(owner, character),
    'session': lambda: store.session(owner, session),
    'messages': lambda: store.messages(owner, session),
    'append': lambda: store.append(owner, session, 0, 'user', 'x'),
    'no parent': lambda: store.append(owner, session, 9, 'user', 'x'),
    'stale': lambda: store.append(owner, session, 0, 'user', 'x', if_head=9),
    'head': lambda: store.set_head(owner, session, 0),
    'rename': lambda: store.rename(owner, session, 'x'),
    'end': lambda: store.remove_session(owner, session),
    'rate': lambda: store.rate(owner, session, 1, 'good'),
    'ratings': lambda: store.ratings(owner, session),
  }


def test_what_is_somebody_elses_is_as_if_it_were_not(make_store):
  store = make_store()
  theirs = private(store)
  nothing = calls(store, 'nemo-0123456789ab', 'abcdefghijklmnopqrstuvwx')
  for name, call in theirs.items():
    errors = []
    for one in call, nothing[name]:
      with pytest.raises(LookupError) as error:
        one()
      assert error.type is characters.Missing, name
      errors.append(re.sub(r"'[\w-]+'", 'ID', str(error.value)))
    assert errors[0] == errors[1], name
  assert store.characters('ann') == store.sessions('ann') == ()
  assert store.count_sessions('ann') == 0


@pytest.mark.parametrize('wrong', ['', 'a b', 'x' * 65, '\ud800', 'é', 7, b'a'])
def test_what_can_be_no_id_is_missing(make_store, wrong):
  for name, call in calls(make_store(), wrong, wrong).items():
    with pytest.raises(characters.Missing):
      call()
      raise AssertionError(name)


@pytest.mark.parametrize('what', ['remove', 'hide'])
def test_what_goes_while_a_session_opens_is_missing(make_store, what):
  store = make_store()
  character = publish(store, 'bob', is_public=True).character

  def greetings(fields):
    if what == 'remove':
      store.remove('bob', character)
    else:
      publish(store, 'bob', character=character, is_public=False)
    return (fields.greeting,)

  with pytest.raises(characters.Missing):
    store.open_session('ann', character, greetings=greetings)
  assert store.sessions('ann') == ()


def test_of_those_who_expect_the_same_head_one_wins(make_store):
  store = make_store()
  session = store.open_session('ann', publish(store).character).id
  for turn in range(5):
    head = store.session('ann', session).head
    results = together(
      6,
      lambda number, head=head: store.append(
        'ann', session, head, 'user', str(number), if_head=head
      ),
    )
    won = [one for one in results if isinstance(one, characters.Message)]
    lost = [one for one in results if isinstance(one, characters.Conflict)]
    assert (len(won), len(lost)) == (1, 5)
    assert store.messages('ann', session)[2 + turn :] == tuple(won)


def test_messages_at_once_are_all_stored(make_store):
  store, other = make_store(), make_store()
  session = store.open_session('ann', publish(store).character).id
  results = together(
    8,
    lambda number: [
      (store, other)[number % 2].append(
        'ann', session, 0, 'user', f'{number} {turn}'
      )
      for turn in range(5)
    ],
  )
  expected = sorted((m for one in results for m in one), key=lambda m: m.id)
  assert [one.id for one in expected] == list(range(2, 42))
  for one in store, other:
    assert list(one.messages('ann', session)[2:]) == expected
    assert one.session('ann', session).count == 42


def test_versions_at_once_have_their_own_numbers(make_store):
  store, other = make_store(), make_store()
  character = publish(store).character
  versions = together(
    8,
    lambda number: publish(
      (store, other)[number % 2], fields=edited(number), character=character
    ),
  )
  assert sorted(one.number for one in versions) == list(range(2, 10))
  for one in versions:
    assert other.version(character, one.number) == one
  assert store.character('ann', character).live == 9


def test_ratings_at_once_each_see_what_another_left(make_store):
  store, other = make_store(), make_store()
  session = store.open_session('ann', publish(store).character).id
  store.append('ann', session, 0, 'assistant', 'x', finish='stop')
  message = store.session('ann', session).head
  words = [None, *characters.RATINGS * 2]
  former = together(
    len(words) - 1,
    lambda number: (store, other)[number % 2].rate(
      'ann', session, message, words[1 + number]
    ),
  )
  (left,) = store.ratings('ann', session).values()
  assert collections.Counter([*former, left]) == collections.Counter(words)


LIMITS = rules.Limits(
  owner=8,
  prefix=4,
  title=3,
  text=6,
  tokens=2,
  messages=4,
  size=20,
  characters=2,
  versions=2,
  sessions=2,
  page=5,
)


def say(text='', parent=0, role='user', **named):
  return lambda store, _, session: store.append(
    'ann', session, parent, role, text, **named
  )


def put(tokens=PREFIX, fields=FIELDS, owner='ann'):
  return lambda store, *_: store.publish(owner, fields, tokens, 'bytes')


def greet(text):
  return lambda store, character, _: store.open_session(
    'ann', character, greetings=lambda _: [text]
  )


def edit(store, character):
  for number in range(2):
    publish(store, fields=edited(number), character=character)


def all_of(*calls):
  return lambda *where: [call(*where) for call in calls]


@pytest.mark.parametrize(
  ('match', 'call'),
  [
    ('owner has 9 bytes: at most 8', lambda store, *_: store.sessions('x' * 9)),
    ('owner has 9 bytes: at most 8', put(owner='x' * 9)),
    ('prefix_tokens has 5 tokens: at most 4', put([1] * 5)),
    (
      'title has 4 characters: at most 3',
      lambda store, _, session: store.rename('ann', session, 'four'),
    ),
    ('text has 8 bytes: at most 6', say('東é東')),
    ('tokens has 3 tokens: at most 2', say(tokens=[1, 2, 3])),
    ('limit=6: must be at most 5', lambda at, *_: at.sessions('ann', limit=6)),
    ('session .*: 5 messages; a session has at most 4', all_of(*[say()] * 3)),
    (
      'session .*: 21 bytes; a session has at most 20',
      all_of(say('123456'), say('12', tokens=[1])),
    ),
    ('2 characters are as many', lambda store, *_: edit(store, None)),
    ('2 versions are as many', lambda store, one, _: edit(store, one)),
    ('2 sessions are as many', all_of(greet(''), greet(''))),
    ('text has 7 bytes', greet('1234567')),
  ],
)
def test_limits_name_what_is_too_much(make_store, match, call):
  store = make_store(LIMITS)
  character = publish(store).character
  session = store.open_session('ann', character).id
  with pytest.raises(characters.OverLimit, match=match):
    call(store, character, session)


@pytest.mark.parametrize(
  ('match', 'call'),
  [
    ("owner=''", lambda store, *_: store.sessions('')),
    ('owner holds the surrogate', lambda store, *_: store.sessions('\ud800')),
    ('owner=7: must be a string', lambda store, *_: store.sessions(7)),
    ('after=', lambda store, *_: store.sessions('ann', after='x')),
    ('after=', lambda store, *_: store.sessions('ann', after='nan:a')),
    ('after=', lambda store, *_: store.characters('ann', after='1.0:é')),
    ('limit=0', lambda store, *_: store.characters('ann', limit=0)),
    ('limit=True', lambda store, *_: store.characters('ann', limit=True)),
    ('number=0', lambda store, one, _: store.version(one, 0)),
    ('number=1000', lambda store, one, _: store.rollback('ann', one, 10**30)),
    ('role=', say(role='system')),
    ('parent=-1', say(parent=-1)),
    ('parent=True', say(parent=True)),
    ('text holds the surrogate', say('a\udc00')),
    ('tokens: each must be within', say(tokens=[-1])),
    ('tokens: must be integers, not float64', say(tokens=[0.5])),
    ('prefix_tokens has 2 dimensions', put([[1]])),
    ('prefix_tokens: each must be within', put([2**31])),
    ('a character needs a name', put(fields=card_fields.Fields(''))),
    ('message=-1', lambda store, _, it: store.set_head('ann', it, -1)),
    ('greeting=-1', lambda store, one, _: store.open_session('ann', one, -1)),
    ('A–Z', lambda store, *_: publish(store, '', character='not an id')),
    ('agrees=1', lambda store, *_: store.agree('ann', 1)),
    ("owner=''", lambda store, *_: store.agree('', True)),
    ('message=True', lambda store, _, it: store.rate('ann', it, True, 'good')),
    ('a person', lambda store, _, it: store.rate('ann', it, 0, 'good')),
    *(
      (
        'wrongly_refused, or null',
        lambda store, _, it, rating=rating: store.rate('ann', it, 1, rating),
      )
      for rating in ('great', 1, [], True)
    ),
  ],
)
def test_wrong_arguments_are_named(make_store, match, call):
  store = make_store()
  character = publish(store).character
  session = store.open_session('ann', character).id
  store.append('ann', session, 0, 'assistant', 'x', finish='stop')
  before = store.session('ann', session), store.ratings('ann', session)
  with pytest.raises((TypeError, ValueError), match=match):
    call(store, character, session)
  after = store.session('ann', session), store.ratings('ann', session)
  assert after == before and store.agreements() == {}
  assert len(store.characters('ann')) == 1


def test_a_closed_store_is_unavailable(make_store):
  store = make_store()
  store.check()
  store.close()
  store.close()
  for call in (
    store.check,
    lambda: store.characters('ann'),
    lambda: publish(store),
  ):
    with pytest.raises(characters.Unavailable, match='closed'):
      call()


def test_ids_are_readable_or_unguessable():
  assert re.fullmatch(
    'captain-nemo-[0-9a-f]{12}', rules.character_id(' Captain  Nemo! ')
  )
  assert re.fullmatch('elise-[0-9a-f]{12}', rules.character_id('Élise'))
  assert re.fullmatch('character-[0-9a-f]{12}', rules.character_id('東京'))
  assert len(rules.character_id('x' * 200)) <= 64
  ids = [rules.session_id() for _ in range(100)]
  assert len(set(ids)) == 100
  assert all(rules.is_id(one) and len(one) >= 22 for one in ids)

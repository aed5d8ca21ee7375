"""Ratings and agreements over HTTP: whose they are, and what is told."""

import urllib.error

import pytest

import kaiju_jax
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.stores import characters
from tests.serving import running


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


@pytest.fixture
def talk(server):
  """Returns the path of a conversation of ann's; message 4 is a reply."""
  opened = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  server.post(
    '/v1/chat/completions',
    'ann',
    model=running.MODEL,
    messages=[{'role': 'user', 'content': 'Hello'}],
    session=opened['id'],
    max_tokens=4,
    seed=3,
  )
  return f'/v1/sessions/{opened["id"]}'


def rated(server, talk, rating, message=4, owner='ann'):
  return server.post(f'{talk}/messages/{message}/rating', owner, rating=rating)


def ratings(server, talk):
  shown = server.get(talk, owner='ann')['messages']
  return [one['rating'] for one in shown]


def test_a_rating_is_set_changed_shown_and_withdrawn(server, talk):
  assert ratings(server, talk) == [None] * 5
  for rating in 'good', 'bad', 'wrongly_refused', None:
    assert rated(server, talk, rating) == {
      'object': 'rating',
      'session': talk.rpartition('/')[2],
      'message': 4,
      'rating': rating,
    }
    assert ratings(server, talk) == [None] * 4 + [rating]


def test_ratings_are_counted_by_kind_and_once(server, talk):
  def counts():
    text = server.get('/metrics', owner='ann').decode()
    return {
      line.split('"')[1]: float(line.split()[-1])
      for line in text.splitlines()
      if line.startswith('kaiju_ratings_total')
    }

  before = counts()
  for rating in 'good', 'good', 'wrongly_refused', 'bad', None, None:
    rated(server, talk, rating)
  server.refused('POST', f'{talk}/messages/4/rating', {'rating': 'good'}, 'ben')
  after = counts()
  assert {kind: after[kind] - before.get(kind, 0) for kind in after} == {
    'good': 1,
    'wrongly_refused': 1,
    'bad': 1,
    'withdrawn': 1,
  }


@pytest.mark.parametrize(
  'body, match',
  [
    ({}, 'rating'),
    ({'rating': 'great'}, "'great' is not supported"),
    ({'rating': True}, 'rating'),
    ({'rating': ['good']}, 'rating'),
    ({'rating': 'good', 'message': 4}, 'message: is not supported'),
    (b'{"rating": "good", "rating": "bad"}', 'rating'),
    (b'["good"]', ''),
  ],
)
def test_a_body_says_one_rating_and_no_more(server, talk, body, match):
  status, error = server.refused(
    'POST', f'{talk}/messages/4/rating', body, 'ann'
  )
  assert status == 400 and match in error['message']
  assert ratings(server, talk) == [None] * 5


def test_what_somebody_else_said_is_as_if_it_were_not_there(server, talk):
  nobody = '/v1/sessions/nobody'
  for message in 0, 4, 99, 2**60:
    end = f'/messages/{message}/rating'
    for body in {'rating': 'good'}, {'rating': None}, {'rating': 'x'}:
      theirs, error = server.refused('POST', talk + end, body, 'ben')
      status, of_none = server.refused('POST', nobody + end, body, 'ben')
      said = of_none['message'].replace('nobody', talk.rpartition('/')[2])
      assert (theirs, error['message']) == (status, said)
      is_sound = body['rating'] != 'x' and message < 2**53
      assert theirs == (404 if is_sound else 400)
  assert ratings(server, talk) == [None] * 5


def test_only_a_reply_has_a_rating(server, talk):
  for message in 0, 3:
    path = f'{talk}/messages/{message}/rating'
    assert server.refused('POST', path, {'rating': 'bad'}, 'ann')[0] == 400
  path = f'{talk}/messages/5/rating'
  assert server.refused('POST', path, {'rating': None}, 'ann')[0] == 404
  for odd in '-1', '4.0', 'x', '4%2F':
    with pytest.raises(urllib.error.HTTPError, match='404'):
      server.ask('POST', f'{talk}/messages/{odd}/rating', {'rating': None})


@pytest.mark.parametrize('stream', [False, True])
def test_a_reply_s_message_says_how_it_was_drawn(server, talk, stream):
  store, session = server.store, talk.rpartition('/')[2]
  asked = {
    'model': running.MODEL,
    'messages': [],
    'session': session,
    'swipe': True,
    'max_tokens': 4,
    'n': 2,
    'seed': 2**32 - 1,
    'temperature': 0.5,
    'top_k': -1,
    'top_p': 0.9,
    'min_p': 0.1,
    'repetition_penalty': 1.1,
    'stream': stream,
  }
  server.ask('POST', '/v1/chat/completions', asked, 'ann')
  *greetings, said, _, one, two = store.messages('ann', session)
  assert {one.drawn.seed, two.drawn.seed} == {2**32 - 1, 0}
  for reply in one, two:
    assert reply.drawn == characters.Drawn(
      'w1', kaiju_jax.__version__, reply.drawn.seed, 0.5, 0, 0.9, 0.1, 1.1
    )
  assert not any(written.drawn for written in (*greetings, said))
  # The same request draws the same reply again.
  asked |= {'n': 1, 'seed': one.drawn.seed}
  server.ask('POST', '/v1/chat/completions', asked, 'ann')
  assert store.messages('ann', session)[-1].text == one.text


# Agreement to the export.


def agreed(server, owner, agrees=None):
  if agrees is None:
    return server.get('/v1/feedback', owner=owner)['agrees']
  body = {'agrees': agrees}
  return server.ask('PUT', '/v1/feedback', body, owner)['agrees']


def test_nobody_agrees_who_did_not_say_so(server):
  assert not agreed(server, 'ann') and not agreed(server, 'ben')
  assert agreed(server, 'ann', True) and agreed(server, 'ann')
  assert not agreed(server, 'ben')
  assert agreed(server, 'ann', True)
  assert not agreed(server, 'ann', False) and not agreed(server, 'ann')


@pytest.mark.parametrize(
  'body',
  [{}, {'agrees': 1}, {'agrees': None}, {'agrees': True, 'owner': 'ann'}],
)
def test_an_agreement_is_yes_or_no(server, body):
  with pytest.raises(urllib.error.HTTPError, match='400'):
    server.ask('PUT', '/v1/feedback', body, 'ben')
  assert not agreed(server, 'ben')


@pytest.mark.parametrize('age', ['minor', 'unknown'])
def test_who_is_no_adult_cannot_agree_and_can_withdraw(server, age):
  tokens = auth.Tokens(server.context.access._tokens._path)
  server.tokens[age] = tokens.add(age, age)
  shown = server.get('/v1/feedback', owner=age)
  assert shown == {'object': 'feedback', 'agrees': False, 'may_agree': False}
  with pytest.raises(urllib.error.HTTPError, match='403') as caught:
    agreed(server, age, True)
  assert b'under 18' in caught.value.read()
  assert server.store.agreement(age) is None
  # Another token said that this owner is an adult.
  server.store.agree(age, True)
  assert not agreed(server, age)
  assert not agreed(server, age, False)
  assert server.store.agreement(age) is False


def test_a_token_may_say_it_and_its_owner_takes_it_back(server):
  tokens = auth.Tokens(server.context.access._tokens._path)
  server.tokens['eve'] = tokens.add('eve', 'adult', feedback=True)
  assert agreed(server, 'eve')
  assert not agreed(server, 'eve', False) and not agreed(server, 'eve')

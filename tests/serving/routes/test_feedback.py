"""Ratings and agreements over HTTP: whose they are, and what is told.

What is refused of both stands in the table of refusals.
"""

import pytest

import kaiju_jax
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.stores import characters

KINDS = 'good', 'bad', 'wrongly_refused'


@pytest.fixture
def session(server):
  """A conversation of ann's; its message 4 is a reply."""
  name = server.open_session()
  server.chat(session=name, max_tokens=4)
  return name


def rate(server, session, rating):
  path = f'/v1/sessions/{session}/messages/4/rating'
  return server.post(path, 'ann', rating=rating)


def ratings(server, session):
  return [one['rating'] for one in server.session(session)['messages']]


def test_a_rating_is_set_changed_shown_and_withdrawn(server, session):
  assert ratings(server, session) == [None] * 5
  for rating in *KINDS, None:
    assert rate(server, session, rating) == {
      'object': 'rating',
      'session': session,
      'message': 4,
      'rating': rating,
    }
    assert ratings(server, session) == [None] * 4 + [rating]


def test_ratings_are_counted_by_kind_and_once(server, session):
  def counts():
    kinds = *KINDS, 'withdrawn'
    return [server.count('ratings_total', kind=kind) for kind in kinds]

  before = counts()
  for rating in 'good', 'good', 'wrongly_refused', 'bad', None, None:
    rate(server, session, rating)
  path = f'/v1/sessions/{session}/messages/4/rating'
  server.refused('POST', path, {'rating': 'good'}, 'ben')
  assert counts() == [count + 1 for count in before]


def test_what_somebody_else_said_is_as_if_it_were_not_there(server, session):
  for message in 0, 4, 99, 2**60:
    for rating in 'good', None, 'x':
      found = []
      for name in session, 'nobody':
        path = f'/v1/sessions/{name}/messages/{message}/rating'
        status, error = server.refused('POST', path, {'rating': rating}, 'ben')
        found.append((status, error['message'].replace(name, 'nobody')))
      assert found[0] == found[1]
      is_sound = rating != 'x' and message < 2**53
      assert status == (404 if is_sound else 400)
  assert ratings(server, session) == [None] * 5


@pytest.mark.parametrize('is_streamed', [False, True])
def test_a_reply_s_message_says_how_it_was_drawn(server, session, is_streamed):
  ask = server.stream if is_streamed else server.chat
  options = {
    'session': session,
    'swipe': True,
    'temperature': 0.5,
    'top_k': -1,
    'top_p': 0.9,
    'min_p': 0.1,
    'repetition_penalty': 1.1,
    'frequency_penalty': 0.5,
    'dry_base': 1.75,
    'logit_bias': {'98': -3},
    'dry_sequence_breakers': ['a'],
  }
  others = {
    'frequency_penalty': 0.5,
    'logit_bias': [[98, -3]],
    'dry_sequence_breakers': ['a'],
  }
  ask(None, n=2, seed=2**32 - 1, **options)
  *greetings, said, _, one, two = server.store.messages('ann', session)
  assert {one.drawn.seed, two.drawn.seed} == {2**32 - 1, 0}
  for reply in one, two:
    assert reply.drawn == characters.Drawn(
      *('w1', kaiju_jax.__version__, reply.drawn.seed, 0.5, 0, 0.9, 0.1, 1.1),
      others=others,
    )
  assert not any(written.drawn for written in (*greetings, said))
  # The same request draws the same reply again.
  ask(None, seed=one.drawn.seed, **options)
  assert server.store.messages('ann', session)[-1].text == one.text


# Agreement to the export.


def agreed(server, owner, agrees=None):
  if agrees is None:
    return server.get('/v1/feedback', owner=owner)['agrees']
  body = {'agrees': agrees}
  return server.ask('PUT', '/v1/feedback', body, owner)['agrees']


def add_owner(server, owner, age, **options):
  tokens = auth.Tokens(server.context.access._tokens._path)
  server.tokens[owner] = tokens.add(owner, age, **options)


def test_nobody_agrees_who_did_not_say_so(server):
  assert not agreed(server, 'ann') and not agreed(server, 'ben')
  assert agreed(server, 'ann', True) and agreed(server, 'ann')
  assert not agreed(server, 'ben')
  assert agreed(server, 'ann', True)
  assert not agreed(server, 'ann', False) and not agreed(server, 'ann')
  # A token may say it, and its owner takes it back.
  add_owner(server, 'eve', 'adult', feedback=True)
  assert agreed(server, 'eve')
  assert not agreed(server, 'eve', False) and not agreed(server, 'eve')


@pytest.mark.parametrize('age', ['minor', 'unknown'])
def test_who_is_no_adult_cannot_agree_and_can_withdraw(server, age):
  add_owner(server, age, age)
  shown = server.get('/v1/feedback', owner=age)
  assert shown == {'object': 'feedback', 'agrees': False, 'may_agree': False}
  body = {'agrees': True}
  assert server.refused('PUT', '/v1/feedback', body, age)[0] == 403
  assert server.store.agreement(age) is None
  # Another token said that this owner is an adult.
  server.store.agree(age, True)
  assert not agreed(server, age)
  assert not agreed(server, age, False)
  assert server.store.agreement(age) is False

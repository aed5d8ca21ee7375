"""The table of refusals: each by its status, field and code."""

import pytest

from tests.serving import running

CHAT, TEXT, CARDS = running.CHAT, running.TEXT, running.CARDS
SESSIONS = running.SESSIONS
MINE = {'character': running.CHARACTER}
TOO_LONG = 'context_length_exceeded'
LONG = 'x' * 5000
# A reply, and a message of the session of the tests.
REPLY, MESSAGE = (f'{SESSIONS}/TALK/messages/{n}/rating' for n in (4, 3))
GO_ON = {'continue_final_message': True}
BEGUN = [*running.said('Hello'), *running.said('Once', role='assistant')]
# In a session, which has one message more at its end.
HERE = {'session': 'TALK'}


def row(path, body, param, code=None, status=400, method='POST'):
  return method, path, body, status, param, code


def chat(param, code=None, text='Hello', status=400, **fields):
  return row(CHAT, running.chat(text, **fields), param, code, status)


def complete(param, code=None, status=400, **fields):
  return row(TEXT, running.complete(**fields), param, code, status)


def part(**content):
  return [{'role': 'user', 'content': [content]}]


ROWS = [
  chat('top_logprobs', top_logprobs=3),
  chat('top_logprobs', logprobs=True, top_logprobs=3),
  chat('temperature', temperature=2.5),
  chat('top_p', top_p=0.0),
  chat('top_k', top_k=-2),
  chat('min_p', min_p=1.0),
  chat('repetition_penalty', repetition_penalty=0),
  chat('repetition_penalty', repetition_penalty=10.5),
  chat('frequency_penalty', frequency_penalty=2.1),
  chat('dry_sequence_breakers', dry_sequence_breakers=['']),
  chat('logit_bias', logit_bias={'a': 1}),
  chat('logit_bias', logit_bias={'256': 1}),  # Of 256 tokens.
  chat('n', n=0),
  chat('n', n=1000),
  chat('stop', stop=['']),
  chat('max_tokens', max_tokens=0),
  chat('max_tokens', TOO_LONG, max_tokens=10**9),
  chat('max_completion_tokens', TOO_LONG, max_completion_tokens=1024),
  chat('messages', text=None),
  chat('messages', text=running.said('x', role='tool')),
  chat('messages', text=part(type='image_url')),
  chat('messages', TOO_LONG, LONG),
  chat('messages', TOO_LONG, LONG, **MINE),
  chat('stream_options', stream_options={'include_usage': True}),
  chat('character', model=f'{running.MODEL}/mira', character='another'),
  chat('model', 'not_found', status=404, model='gpt-4'),
  chat(None, 'not_found', status=404, model=f'{running.MODEL}/nobody'),
  # What is searched is not drawn, and not here.
  chat('guided', guided=True),
  chat('guided', guided=True, n=2),
  chat('guided', guided=True, logit_bias={}, temperature=0),
  chat('logit_bias', guided=True, logit_bias={'97': 1}),
  chat('temperature', guided=True, temperature=0.7),
  chat('top_p', guided=True, top_p=0.9),
  chat('top_k', guided=True, top_k=4),
  chat('min_p', guided=True, min_p=0.1),
  chat('dry_multiplier', guided=True, dry_multiplier=0.8),
  chat('top_logprobs', guided=True, logprobs=True, top_logprobs=1),
  # What cannot go on.
  chat('continue_final_message', **GO_ON),
  chat('add_generation_prompt', add_generation_prompt=False),
  *(
    chat(
      'continue_final_message',
      text=BEGUN,
      continue_final_message=value,
      add_generation_prompt=value,
    )
    for value in (True, False)
  ),
  chat('messages', TOO_LONG, [BEGUN[0], BEGUN[1] | {'content': LONG}]),
  chat('continue_final_message', text=None, **GO_ON, **HERE),
  chat('swipe', text=None, swipe=True, **GO_ON, **HERE),
  *(
    chat('messages', text=several, **HERE)
    for several in (BEGUN[::-1], BEGUN[:1] * 2, BEGUN[1:] * 2)
  ),
  complete('suffix', suffix='x'),
  complete('best_of', best_of=3),
  complete('max_tokens', max_tokens=0),
  complete('max_tokens', TOO_LONG, max_tokens=running.LENGTH),
  complete('logprobs', logprobs=5),
  complete('logprobs', logprobs=21),
  complete('prompt', TOO_LONG, prompt=LONG),
  complete('prompt', prompt=[1, 10**6]),
  complete('model', model=f'{running.MODEL}/{running.CHARACTER}'),
  complete('model', 'not_found', 404, model='toyx'),
  row('/tokenize', {'prompt': 5}, 'prompt'),
  row('/tokenize', {'messages': []}, 'messages'),
  *(row('/detokenize', {'tokens': [x]}, 'tokens') for x in (256, -1, 'a')),
  row(CARDS, {'fields': {'name': ''}}, 'fields'),
  row(CARDS, {'fields': {'name': 'x', 'colour': 'red'}}, 'fields'),
  row(CARDS, {'fields': {'name': 'x'}, 'public': 3}, 'public'),
  row(
    CARDS,
    {'fields': {'name': 'x', 'description': 'x' * 600}},
    'fields',
    TOO_LONG,
  ),
  row(CARDS, b'[]', 'card', 'type'),
  row(SESSIONS, MINE | {'greeting': 7}, None),
  # Ratings and agreements.
  row(REPLY, {}, 'rating'),
  *(row(REPLY, {'rating': x}, 'rating') for x in ('great', True, ['good'], 5)),
  row(REPLY, {'rating': 'good', 'message': 4}, 'message'),
  row(REPLY, b'{"rating": "good", "rating": "bad"}', None),
  row(REPLY, b'["good"]', None),
  row(MESSAGE, {'rating': 'bad'}, None),
  row(MESSAGE.replace('3', '0'), {'rating': 'bad'}, None),
  row(
    MESSAGE.replace('3', '6'), {'rating': None}, None, 'not_found', status=404
  ),
  *(
    row(MESSAGE.replace('3', x), {'rating': None}, None, 'not_found', 404)
    for x in ('-1', '4.0', 'x', '4%2F')
  ),
  *(
    row('/v1/feedback', body, param, method='PUT')
    for body, param in (
      ({}, 'agrees'),
      ({'agrees': 1}, 'agrees'),
      ({'agrees': None}, 'agrees'),
      ({'agrees': True, 'owner': 'ann'}, 'owner'),
    )
  ),
]


@pytest.fixture(scope='module')
def talk(server):
  """A session: three greetings, a message, a reply, and a message."""
  name = server.open_session()
  server.chat(session=name)
  path, head = f'{SESSIONS}/{name}/messages', server.session(name)['head']
  server.post(path, 'ann', parent=head, role='user', text='x')
  return name


@pytest.mark.parametrize(
  'method, path, body, status, param, code',
  ROWS,
  ids=[f'{row[1]} {row[4]} {n}' for n, row in enumerate(ROWS)],
)
def test_a_refusal_names_its_field(
  server, talk, method, path, body, status, param, code
):
  if isinstance(body, dict) and 'session' in body:
    body = body | {'session': talk}
  before = server.session(talk), server.get('/v1/feedback', owner='ann')
  found, error = server.refused(method, path.replace('TALK', talk), body, 'ann')
  assert (found, error['param'], error['code']) == (status, param, code)
  # LiteLLM knows it by these words.
  limit = "This model's maximum context length is 1024 tokens."
  assert code != TOO_LONG or path == CARDS or limit in error['message']
  assert before == (
    server.session(talk),
    server.get('/v1/feedback', owner='ann'),
  )


@pytest.mark.parametrize(
  'body, kind, status',
  [
    (b'\x89PNG\r\n\x1a\nxxxx', 'image/png', 400),
    (b'GIF89a', 'image/gif', 415),
  ],
)
def test_a_card_of_another_kind_is_refused(server, body, kind, status):
  assert server.refused('POST', CARDS, body, 'ann', kind)[0] == status

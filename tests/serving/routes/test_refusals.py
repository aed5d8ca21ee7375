"""The table of refusals: each by its status, field and code."""

import pytest

from tests.serving import running

CHAT, TEXT = '/v1/chat/completions', '/v1/completions'
CARDS = '/v1/characters'
HELLO = [{'role': 'user', 'content': 'Hello'}]
LONG = [{'role': 'user', 'content': 'x' * 5000}]
MINE = {'character': running.CHARACTER}
TOO_LONG = 'context_length_exceeded'


def chat(param, code=None, /, **fields):
  body = {'model': running.MODEL, 'messages': HELLO} | fields
  return CHAT, body, 400, param, code


def complete(param, code=None, /, **fields):
  body = {'model': running.MODEL, 'prompt': 'Once'} | fields
  return TEXT, body, 400, param, code


def guided(param, **fields):
  return chat(param, guided=True, **fields)


def part(**content):
  return [{'role': 'user', 'content': [content]}]


ROWS = [
  chat('top_logprobs', top_logprobs=3),
  chat('top_logprobs', logprobs=True, top_logprobs=3),
  chat('response_format', response_format={'type': 'json_object'}),
  chat('temperature', temperature=2.5),
  chat('top_p', top_p=0.0),
  chat('n', n=0),
  chat('n', n=1000),
  chat('stop', stop=['']),
  chat('max_tokens', max_tokens=0),
  chat('max_tokens', TOO_LONG, max_tokens=10**9),
  chat('max_completion_tokens', TOO_LONG, max_completion_tokens=1024),
  chat('messages', messages=[]),
  chat('messages', messages=[{'role': 'tool', 'content': 'x'}]),
  chat('messages', messages=part(type='image_url')),
  chat('messages', TOO_LONG, messages=LONG),
  chat('messages', TOO_LONG, messages=LONG, **MINE),
  chat('tools', tools=[{'type': 'function'}]),
  chat('logit_bias', logit_bias={'50256': -100}),
  chat('stream_options', stream_options={'include_usage': True}),
  chat('character', model=f'{running.MODEL}/mira', character='another'),
  guided('guided'),
  guided('guided', n=2),
  guided('temperature', temperature=0.7),
  guided('top_p', top_p=0.9),
  guided('top_k', top_k=4),
  guided('min_p', min_p=0.1),
  guided('top_logprobs', logprobs=True, top_logprobs=1),
  complete('suffix', suffix='x'),
  complete('best_of', best_of=3),
  complete('max_tokens', max_tokens=0),
  complete('max_tokens', TOO_LONG, max_tokens=running.LENGTH),
  complete('logprobs', logprobs=5),
  complete('logprobs', logprobs=21),
  complete('prompt', TOO_LONG, prompt='x' * 5000),
  complete('prompt', prompt=[1, 10**6]),
  complete('model', model=f'{running.MODEL}/{running.CHARACTER}'),
  (CHAT, {'model': 'gpt-4', 'messages': HELLO}, 404, 'model', 'not_found'),
  (TEXT, {'model': 'toyx', 'prompt': 'a'}, 404, 'model', 'not_found'),
  (
    CHAT,
    {'model': f'{running.MODEL}/nobody', 'messages': HELLO},
    404,
    None,
    'not_found',
  ),
  ('/tokenize', {'prompt': 5}, 400, 'prompt', None),
  ('/tokenize', {'messages': []}, 400, 'messages', None),
  ('/detokenize', {'tokens': [256]}, 400, 'tokens', None),
  ('/detokenize', {'tokens': [-1]}, 400, 'tokens', None),
  ('/detokenize', {'tokens': ['a']}, 400, 'tokens', None),
  (CARDS, {'fields': {'name': ''}}, 400, 'fields', None),
  (CARDS, {'fields': {'name': 'x', 'colour': 'red'}}, 400, 'fields', None),
  (CARDS, {'fields': {'name': 'x'}, 'public': 3}, 400, 'public', None),
  (
    CARDS,
    {'fields': {'name': 'x', 'description': 'x' * 600}},
    400,
    'fields',
    TOO_LONG,
  ),
  (CARDS, b'[]', 400, 'card', 'type'),
  ('/v1/sessions', MINE | {'greeting': 7}, 400, None, None),
]


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


@pytest.mark.parametrize(
  'path, body, status, param, code',
  ROWS,
  ids=[f'{row[0]} {row[3]} {n}' for n, row in enumerate(ROWS)],
)
def test_a_refusal_names_its_field(server, path, body, status, param, code):
  found, error = server.refused('POST', path, body, 'ann')
  assert (found, error['param'], error['code']) == (status, param, code)


@pytest.mark.parametrize(
  'body, kind, status',
  [
    (b'\x89PNG\r\n\x1a\nxxxx', 'image/png', 400),
    (b'GIF89a', 'image/gif', 415),
  ],
)
def test_a_card_of_another_kind_is_refused(server, body, kind, status):
  assert server.refused('POST', CARDS, body, 'ann', kind)[0] == status

"""Every field that openai-python knows, and every JSON type in every field."""

import copy
import itertools
import json
import re
import typing
import urllib.error

import httpx
from openai import types as openai_types
from openai.types import chat as openai_chat
from openai.types.chat import completion_create_params as chat_params
import pytest

from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import parse
from tests import pages
from tests.serving import running
from tests.serving.routes import addresses

CHAT, TEXT = running.CHAT, running.TEXT
(USER,) = running.said('Hello')
BODIES = {
  CHAT: {'model': running.MODEL, 'messages': [USER], 'max_tokens': 3},
  TEXT: {'model': running.MODEL, 'prompt': 'Hello', 'max_tokens': 3},
}
EMPTY = None, [], {}, ''


@pytest.fixture(autouse=True)
def unlimited(server, monkeypatch):
  monkeypatch.setattr(server.context.limits, 'request', lambda *_: None)


def asked(server, path, body, method='POST'):
  """Returns an answer's status and its JSON."""
  try:
    data = json.dumps(body).encode()
    return 200, server.ask(method, path, data, 'ann')
  except urllib.error.HTTPError as error:
    return error.code, json.loads(error.read())


def names(kind) -> set[str]:
  """Returns the fields of a TypedDict, or of each of a union."""
  several = typing.get_args(kind) or (kind,)
  return set().union(*(typing.get_type_hints(one) for one in several))


# What openai-python sends: its fields by the class that takes them here.
SENT = {
  fields.Chat: names(chat_params.CompletionCreateParamsStreaming),
  fields.Completion: names(
    openai_types.completion_create_params.CompletionCreateParamsStreaming
  ),
  fields.StreamOptions: names(openai_chat.ChatCompletionStreamOptionsParam),
  # A message that the server sent comes back as the client dumps it.
  fields.ChatMessage: names(openai_chat.ChatCompletionMessageParam)
  | {*openai_chat.ChatCompletionMessage.model_fields}
  | {*openai_chat.ParsedChatCompletionMessage.model_fields},
}


@pytest.mark.parametrize('kind', SENT, ids=lambda kind: kind.__name__)
def test_each_field_of_the_openai_client_is_known(kind):
  found = SENT[kind] - {*kind.model_fields} - {*kind.UNSUPPORTED}
  assert not found, f'openai-python has new fields: {found}'
  # Nothing is both used and refused.
  assert not {*kind.model_fields} & {*kind.UNSUPPORTED}
  parts = (
    openai_chat.ChatCompletionContentPartTextParam,
    openai_chat.ChatCompletionContentPartRefusalParam,
  )
  found = set().union(*map(names, parts))
  assert found - {'type', 'text', 'refusal'} <= parse.PART_LABELS


def placed(field, value):
  """Yields bodies with a value in a field, or without it for `...`."""
  given = {} if value is ... else {field: value}
  for kind, path in (fields.Chat, CHAT), (fields.Completion, TEXT):
    if field in SENT[kind]:
      kept = {x: y for x, y in BODIES[path].items() if x != field}
      yield path, kept | given
  if field in SENT[fields.ChatMessage]:
    said = [USER, {'role': 'assistant', 'content': 'Hi'} | given, USER]
    yield CHAT, BODIES[CHAT] | {'messages': said}
  if field in SENT[fields.StreamOptions]:
    yield CHAT, BODIES[CHAT] | {'stream_options': given}


FIELDS = sorted(set().union(*SENT.values()))
NEEDED = 'messages', 'model', 'prompt', 'role', 'content'
TYPED = {  # Used or labels: an empty value of another type is a wrong one.
  name
  for kind in SENT
  for name, one in kind.model_fields.items()
  if name in SENT[kind]
}


@pytest.mark.parametrize('field', [x for x in FIELDS if x not in NEEDED])
def test_null_and_empty_values_of_known_fields_change_nothing(server, field):
  several = [None]
  if field not in TYPED:
    several = [*EMPTY, *([x] for x in EMPTY)]
    several += [{'a': {'b': x}} for x in EMPTY]
  plain = [*placed(field, ...)]
  seed = {} if field == 'seed' else {'seed': 7}
  wanted = [asked(server, path, body | seed)[1] for path, body in plain]
  for value in several:
    for (path, body), one in zip(placed(field, value), wanted, strict=True):
      status, answer = asked(server, path, body | seed)
      assert status == 200, (body, answer)
      assert not seed or answer['choices'] == one['choices'], body


def test_a_value_that_would_change_the_answer_is_refused_by_name(server):
  for field, value in {
    'length_penalty': 0.5,
    'use_beam_search': True,
    'bad_words': ['a'],
    'response_format': {'type': 'json_schema', 'json_schema': None},
    'tools': [{'type': 'function', 'function': {'name': 'f'}}],
    'tool_choice': 'required',
    'functions': [{'name': 'f'}],
    'verbosity': 'low',
    'web_search_options': {'search_context_size': 'low'},
    'skip_special_tokens': False,
    'min_tokens': 1,
    'colour': 'red',
    'Temperature': '',
  }.items():
    for path, body in BODIES.items():
      status, answer = asked(server, path, body | {field: value})
      assert (status, answer['error']['param']) == (400, field), answer
      said = answer['error']['message']
      # The message has values as JSON has them.
      assert 'None' not in said and 'False' not in said and "'" not in said
  said = USER | {'tool_calls': [{'id': '1'}]}
  status, answer = asked(server, CHAT, BODIES[CHAT] | {'messages': [said]})
  assert (status, answer['error']['param']) == (400, 'messages')
  assert 'messages.0.tool_calls' in answer['error']['message']


def test_what_asks_for_what_is_done_anyway_is_accepted(server):
  for field, idle in parse.REQUEST.items():
    for value in idle:
      for path, body in BODIES.items():
        assert asked(server, path, body | {field: value})[0] == 200, field


# Every JSON type in every field.

WRONG = (
  *(None, True, 0, 5, 1.5, 2**63 - 1, '', 'x'),
  *([], [None], ['x'], [[]], [{}], {}, {'a': None}),
)
# Several types are right here, or what a label holds is nobody's business.
MIXED = 'prompt', 'stop', 'content', 'metadata', 'prediction'
LABELS = 'annotations', 'prompt_cache_options'
WRONG_PROMPTS = (
  *(None, 5, True, {}, [], [None], [True], [1.0], ['x', 1], [1, True], [{}]),
  *([[]], [['x']], [[1], [True]], [[1], 1], [[1], ['x']], [[None]], [[[1]]]),
)
WRONG_STOPS = 5, True, {'a': 1}, [5], [''], [None], [['x']], ['x', True]
WRONG_CONTENTS = (
  *(5, True, {}, {'type': 'text'}, ['x'], [5], [None], [{}], [[]]),
  *([{'type': 5}], [{'type': 'text', 'text': 5}], [{'type': 'image_url'}]),
)


def test_fields_of_several_types_refuse_all_others(server):
  for path, name, several in (
    (TEXT, 'prompt', WRONG_PROMPTS),
    (TEXT, 'stop', WRONG_STOPS),
    (CHAT, 'messages', ([USER | {'content': x}] for x in WRONG_CONTENTS)),
  ):
    for value in several:
      status, answer = asked(server, path, BODIES[path] | {name: value})
      assert status == 400, (name, value)
      assert answer['error']['param'] == name, (value, answer)


# Labels, which are ignored.
IGNORED = {
  'user': 'u',
  'metadata': {'a': 'b'},
  'store': False,
  'prediction': {},
  'service_tier': 'auto',
  'safety_identifier': 's',
  'prompt_cache_key': 'k',
  'prompt_cache_retention': '24h',
  'prompt_cache_options': {'mode': 'x'},
  'parallel_tool_calls': True,
}
SHARED = IGNORED | {
  'n': 1,
  'stop': ['zz'],
  'seed': 1,
  'temperature': 0.5,
  'top_p': 0.9,
  'top_k': 3,
  'min_p': 0.1,
  'repetition_penalty': 1.1,
  'repeat_last_n': 64,
  'frequency_penalty': 0.5,
  'presence_penalty': -0.5,
  'logit_bias': {'97': -100},
  'dry_multiplier': 0.8,
  'dry_base': 1.75,
  'dry_allowed_length': 2,
  'dry_penalty_last_n': 512,
  'dry_sequence_breakers': ['\n'],
  'ignore_eos': False,
  'stream': True,
  'stream_options': {
    'include_usage': True,
    'continuous_usage_stats': True,
    'include_obfuscation': True,
  },
}
TALK = [
  {'role': 'system', 'content': [{'type': 'text', 'text': 'Be brief.'}]},
  USER | {'name': 'Bo'},
  {'role': 'assistant', 'content': 'Hm', 'refusal': 'r', 'reasoning': 'w'}
  | {'reasoning_content': 'w', 'annotations': [], 'prefix': True},
]
GO_ON = {'continue_final_message': True, 'add_generation_prompt': False}
# Bodies of all routes that take one, by the method and the path.
ROUTES = {
  ('POST', CHAT): BODIES[CHAT]
  | GO_ON
  | {
    'messages': TALK,
    'max_completion_tokens': 3,
    'echo': True,
    'chat_template_kwargs': {'enable_thinking': False},
    'character': running.CHARACTER,
    'logprobs': True,
    'guided': False,
  },
  ('POST', TEXT): BODIES[TEXT]
  | SHARED
  | {'echo': True, 'logprobs': 0, 'best_of': 1},
  ('POST', '/tokenize'): {'prompt': 'a', 'add_special_tokens': True},
  ('POST', '/detokenize'): {'tokens': [97], 'model': running.MODEL},
  ('POST', '/v1/characters'): {
    'fields': {'name': 'Bo', 'tags': ['a']},
    'public': False,
  },
  ('PUT', '/v1/characters/{id}'): {
    'fields': {'name': 'Bo', 'lore': [{'keys': ['a'], 'content': 'b'}]}
  },
  ('POST', '/v1/characters/{id}/rollback'): {'version': 1},
  ('POST', '/v1/sessions'): {
    'character': running.CHARACTER,
    'greeting': 0,
    'title': 'x',
  },
  ('POST', '/v1/sessions/{id}/messages'): {
    'parent': 0,
    'role': 'assistant',
    'text': 'x',
  },
  ('PUT', '/v1/sessions/{id}/head'): {'message': 0},
  ('POST', '/v1/sessions/{id}/messages/{message:int}/rating'): {
    'rating': 'good'
  },
  ('PUT', '/v1/feedback'): {'agrees': True},
}


def leaves(value, path=()):
  """Yields the places of all values within a value."""
  several = ()
  if isinstance(value, dict):
    several = value.items()
  elif isinstance(value, list):
    several = enumerate(value)
  for name, one in several:
    yield (*path, name), one
    yield from leaves(one, (*path, name))


def replaced(body, path, value):
  """Returns a copy of a body with another value in a place."""
  made = copy.deepcopy(body)
  inner = made
  for name in path[:-1]:
    inner = inner[name]
  inner[path[-1]] = value
  return made


def kind(value):
  """Returns the JSON type of a value."""
  if isinstance(value, int | float) and not isinstance(value, bool):
    return 'number'
  return type(value).__name__


def test_every_route_with_a_body_is_tried(server):
  found = {
    (method, path)
    for method, path in addresses.routes(server)
    if method in ('POST', 'PUT')
  }
  assert found == ROUTES.keys() | {('POST', '/v1/key')}  # Which has no body.
  for path, own in (CHAT, fields.Chat), (TEXT, fields.Completion):
    # What both endpoints have is tried on one of them.
    missing = {*own.model_fields} - {*ROUTES['POST', path]} - {*SHARED}
    assert missing <= {'top_logprobs', 'session', 'swipe'}, missing


@pytest.mark.parametrize('method, path', ROUTES)
def test_a_wrong_type_is_refused_by_name_and_no_value_breaks_a_route(
  server, method, path
):
  body = ROUTES[method, path]
  name = server.publish({'name': 'Bo'})['id']
  if 'sessions' in path:
    name = server.open_session()
  place = path.replace('{id}', name).replace('{message:int}', '0')
  status, answer = asked(server, place, body, method)
  # Only a reply of the model has a rating.
  assert status == (400 if 'rating' in path else 200), answer
  for (where, right), value in itertools.product(leaves(body), WRONG):
    given = replaced(body, where, value)
    status, answer = asked(server, place, given, method)
    is_free = value is None or not {*where}.isdisjoint((*MIXED, *LABELS))
    is_wrong = not is_free and kind(value) != kind(right)
    assert status == 400 if is_wrong else status < 500, (where, value, answer)
    if status < 400:
      continue
    assert status in (400, 404, 409), (given, answer)
    error = answer['error']
    assert error['message'] and error['type'] == 'invalid_request_error'
    if is_wrong:
      assert error['param'] == where[0], (where, value, answer)
      name = [one for one in where if isinstance(one, str)][-1]
      assert name in error['message'], (where, value, answer)
    elif status == 400:
      # What is wrong may be two fields together.
      assert error['param'] in {*body, None, 'card'}, answer


# The page that lists them.


def named(text):
  """Yields the names in code of a text, and the values in brackets behind."""
  for name, values in re.findall(r'`([a-z_]+)`(?: \(([^)]*)\))?', text):
    yield name, [json.loads(one) for one in re.findall('`([^`]+)`', values)]


def test_the_page_lists_what_is_ignored_and_what_is_refused(server):
  page = pages.pages()['docs/serving.md'].split('Labels, which')[1]
  labels, rows = page.split('| refused |')
  rows = rows.split('\n\n')[0].splitlines()[2:]
  told = dict(one for row in rows for one in named(row.split('|')[1]))
  used = {*fields.Chat.model_fields, *fields.Completion.model_fields}
  for name, idle in (parse.MESSAGE | parse.REQUEST).items():
    assert [*map(repr, told.pop(name))] == [*map(repr, idle)], name
  # What else is refused are roles, and some values of fields that are used.
  assert {*told} <= {'tool', 'function', *used}
  ignored = {name for name, _ in named(labels)}
  in_messages = {*fields.ChatMessage.model_fields}
  in_messages -= {'role', 'content', 'refusal'}
  assert ignored - used == parse.PART_LABELS | in_messages
  for path, body in BODIES.items():
    wanted = asked(server, path, body | {'seed': 7})[1]['choices']
    for name in ignored & used:
      given = body | {'seed': 7, name: SHARED[name]}
      assert asked(server, path, given)[1]['choices'] == wanted, name


def test_no_answer_has_a_header_for_other_origins(server):
  for path, headers, status in (
    ('/v1/models', {}, 200),
    ('/', {}, 200),
    ('/v1/models', {'Origin': 'http://evil.example'}, 403),
  ):
    answer = httpx.get(server.address + path, headers=headers)
    assert answer.status_code == status
    assert not [x for x in answer.headers if 'access-control' in x.lower()]

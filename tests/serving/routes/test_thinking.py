"""Replies that begin with their reasoning: what is sent, stored and kept.

The marks around reasoning are two of the tokens that the toy draws by itself.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from tests.serving import running
from tests.serving import world

BODY = {
  'model': running.MODEL,
  'max_tokens': 40,
  'seed': 3,
  'logprobs': True,
}
ON = {'chat_template_kwargs': {'enable_thinking': True}}
SAID = [{'role': 'user', 'content': 'Who are you?'}]


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


@pytest.fixture
def drawn(server, monkeypatch):
  """Has the server cut what it draws for SAID; returns its parts."""
  context = server.context
  answer = server.post('/v1/chat/completions', messages=SAID, **BODY)
  scored = answer['choices'][0]['logprobs']['content']
  tokens = [int(-one['logprob']) for one in scored]
  letters = [one['token'] for one in scored]
  once = [n for n, one in enumerate(tokens) if tokens.count(one) == 1]
  begin, end = next(
    (i, j)
    for i, j in itertools.combinations(once, 2)
    if j - i > 4 and len(tokens) - j > 4 and not letters[j + 1].isspace()
  )
  thought = chat.Thought(tokens[begin], tokens[end])
  plain = context.format._format
  for keeps in False, True:
    written = dataclasses.replace(plain, thought=thought, keeps_thoughts=keeps)
    name = 'thinking' if not keeps else 'format'
    monkeypatch.setattr(context, name, prompt.Encoded(written))
  plain = dataclasses.replace(plain, thought=thought)
  monkeypatch.setattr(context, 'format', prompt.Encoded(plain))
  return {
    'reasoning': ''.join(letters[begin + 1 : end]).strip(),
    'answer': ''.join(letters[:begin] + letters[end + 1 :]),
    'kept': tokens[:begin] + tokens[end + 1 :],
    'all': tokens,
    'count': end + 1 - begin,
    'used': answer['usage']['completion_tokens'],
  }


def test_reasoning_is_apart_from_the_answer(server, drawn):
  answer = server.post('/v1/chat/completions', messages=SAID, **BODY, **ON)
  (choice,) = answer['choices']
  message = choice['message']
  assert message['content'] == drawn['answer']
  assert message['reasoning'] == message['reasoning_content']
  assert message['reasoning'] == drawn['reasoning']
  told = [one['token'] for one in choice['logprobs']['content']]
  assert ''.join(told) == drawn['answer']
  used = answer['usage']
  assert used['completion_tokens'] == drawn['used']
  assert used['completion_tokens_details'] == {
    'reasoning_tokens': drawn['count']
  }


def test_reasoning_streams_under_both_names(server, drawn):
  client = server.client('ann')
  parts = {'reasoning': '', 'reasoning_content': '', 'content': ''}
  body = {name: BODY[name] for name in ('model', 'max_tokens', 'seed')}
  for chunk in client.chat.completions.create(
    messages=SAID, stream=True, extra_body=ON, **body
  ):
    for choice in chunk.choices:
      for name in parts:
        parts[name] += getattr(choice.delta, name, None) or ''
  assert parts == {
    'reasoning': drawn['reasoning'],
    'reasoning_content': drawn['reasoning'],
    'content': drawn['answer'],
  }


def send(server, monkeypatch):
  """Returns the list of the engine's requests to come."""
  found = []
  submit = server.context.engines.submit

  async def submitted(*requests):
    found.extend(requests)
    return await submit(*requests)

  monkeypatch.setattr(server.context.engines, 'submit', submitted)
  return found


@pytest.mark.parametrize('keeps', [False, True])
def test_the_next_prompt_holds_reasoning_only_where_it_is_kept(
  server, drawn, monkeypatch, keeps
):
  context = server.context
  written = dataclasses.replace(context.thinking._format, keeps_thoughts=keeps)
  monkeypatch.setattr(context, 'thinking', prompt.Encoded(written))
  found = send(server, monkeypatch)
  first = server.post('/v1/chat/completions', messages=SAID, **BODY, **ON)
  message = first['choices'][0]['message']
  del message['refusal']
  more = [*SAID, message, {'role': 'user', 'content': 'And then?'}]
  server.post('/v1/chat/completions', messages=more, **BODY, **ON)
  before_L, after_L = (one.tokens.tolist() for one in found)
  reply_L = drawn['all'] if keeps else drawn['kept']
  behind = after_L[len(before_L) :]
  assert after_L[: len(before_L)] == before_L
  ends = written.structure.tolist()
  assert behind[: len(reply_L)] == [
    one for one in reply_L if one not in ends or one in written.thought
  ]


def test_a_session_stores_reasoning_beside_the_answer(server, drawn):
  session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  path = f'/v1/sessions/{session["id"]}'
  said = BODY | ON | {'session': session['id'], 'messages': SAID}
  answer = server.post('/v1/chat/completions', 'ann', **said)
  message = answer['choices'][0]['message']
  shown = server.get(path, owner='ann')
  assert shown['messages'][-1]['text'] == message['content']
  assert shown['messages'][-1]['reasoning'] == message['reasoning']
  assert shown['messages'][0]['reasoning'] is None
  listed = server.get('/v1/sessions', owner='ann')['data']
  assert all('reasoning' not in str(one) for one in listed)


@pytest.mark.parametrize('thinks', [True, False])
def test_a_switch_that_the_model_has_not_is_refused(
  server, drawn, monkeypatch, thinks
):
  context = server.context
  assert server.get('/v1/server')['thinking'] is True
  if thinks:
    monkeypatch.setattr(context, 'thinking', None)
    assert server.get('/v1/server')['thinking'] is False
  else:
    written = context.format._format
    opening_L = np.append(written.replies[''], written.thought.begin)
    opened = {'': opening_L}
    opened = dataclasses.replace(written, replies=opened)
    monkeypatch.setattr(context, 'format', prompt.Encoded(opened))
  body = BODY | {'chat_template_kwargs': {'enable_thinking': thinks}}
  with pytest.raises(Exception, match='400') as caught:
    server.post('/v1/chat/completions', messages=SAID, **body)
  said = caught.value.read().decode()
  assert f'enable_thinking={str(thinks).lower()}: the chat template' in said
  assert '"param": "chat_template_kwargs"' in said


@pytest.mark.parametrize('kind', ['off', 'drop', 'keep'])
def test_a_second_turn_runs_little_of_what_was_run_before(
  server, drawn, monkeypatch, kind
):
  """The toy's cache has windows of 6 tokens and pages of 4."""
  context = server.context
  written = context.thinking._format
  if kind == 'off':  # The opening of a reply has an empty thought.
    opening_L = [*written.replies[''], *written.thought]
    opened = {'': np.array(opening_L, np.int32)}
    written = dataclasses.replace(context.format._format, replies=opened)
    monkeypatch.setattr(context, 'format', prompt.Encoded(written))
  else:
    written = dataclasses.replace(written, keeps_thoughts=kind == 'keep')
    monkeypatch.setattr(context, 'thinking', prompt.Encoded(written))
  session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  body = BODY | ({} if kind == 'off' else ON) | {'session': session['id']}
  found = []
  for text in 'Who are you?' + ' So?' * 50, 'And then?':
    said = [{'role': 'user', 'content': text}]
    answer = server.post('/v1/chat/completions', 'ann', messages=said, **body)
    found.append(answer['usage'])
  cached = found[1]['prompt_tokens_details']['cached_tokens']
  before = found[0]['prompt_tokens']
  if kind != 'drop':  # The answer is run again without its reasoning.
    before += found[0]['completion_tokens']
  assert cached >= before - 2 * world.PAGE


def test_a_character_s_prefix_is_that_of_the_format(server, drawn, monkeypatch):
  context = server.context
  written = context.thinking._format
  head_L = np.append(written.head_L, np.int32(7))
  written = dataclasses.replace(written, head_L=head_L)
  monkeypatch.setattr(context, 'thinking', prompt.Encoded(written))
  found = send(server, monkeypatch)
  body = BODY | {'messages': SAID, 'character': running.CHARACTER}
  server.post('/v1/chat/completions', **body, **ON)
  server.post('/v1/chat/completions', **body)
  told = [one.tokens[: len(head_L)].tolist() for one in found]
  assert told[0] == head_L.tolist() != told[1]


def test_a_reply_goes_on_within_its_reasoning_and_behind_it(server, drawn):
  session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  path, fields = f'/v1/sessions/{session["id"]}', {'session': session['id']}
  go_on = {'continue_final_message': True, 'messages': []}
  most, ended = BODY['max_tokens'], []
  for seed in range(40):
    body = BODY | ON | fields | {'seed': seed}
    said = SAID if not ended else []
    answer = server.post(
      '/v1/chat/completions', 'ann', **body, messages=said, swipe=not said
    )
    ended.append(answer['choices'][0]['finish_reason'])
    whole = server.get(path, owner='ann')['messages'][-1]
    if ended[-1] == 'length' and whole['reasoning'] and whole['text']:
      break
  else:
    raise AssertionError(ended)
  for count in range(1, most):
    body['messages'] = []
    body['max_tokens'] = count
    server.post('/v1/chat/completions', 'ann', **body, swipe=True)
    body['max_tokens'] = most - count
    server.post('/v1/chat/completions', 'ann', **body | go_on)
    found = server.get(path, owner='ann')['messages'][-1]
    for name in 'text', 'reasoning':
      assert found[name] == whole[name], (count, name)

"""Replies that begin with their reasoning: what is sent, stored and kept.

The marks around reasoning are two of the tokens that the toy draws by itself.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from tests.serving import recording
from tests.serving import running
from tests.serving import world

MOST = 40
BODY = {'max_tokens': MOST, 'seed': 3, 'logprobs': True}
ON = BODY | {'chat_template_kwargs': {'enable_thinking': True}}
SAID = 'Who are you?'


@pytest.fixture
def rewrite(server, monkeypatch):
  """Returns a function that sets a format of the server, changed."""

  def rewrite(name, written=None, **changes):
    written = written or server.context.thinking
    fields = {
      x.name: getattr(written, x.name) for x in dataclasses.fields(written)
    }
    written = chat.Format(**fields | changes)
    monkeypatch.setattr(server.context, name, prompt.Encoded(written))
    return written

  return rewrite


@pytest.fixture
def drawn(server, rewrite):
  """Has the server cut what it draws for SAID; returns its parts."""
  answer = server.chat(SAID, **BODY)
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
  plain = server.context.format
  rewrite('thinking', plain, thought=thought)
  rewrite('format', plain, thought=thought)
  return {
    'reasoning': ''.join(letters[begin + 1 : end]).strip(),
    'answer': ''.join(letters[:begin] + letters[end + 1 :]),
    'kept': tokens[:begin] + tokens[end + 1 :],
    'all': tokens,
    'count': end + 1 - begin,
    'used': answer['usage']['completion_tokens'],
  }


def test_reasoning_is_apart_from_the_answer(server, drawn):
  answer = server.chat(SAID, **ON)
  (choice,) = answer['choices']
  message = choice['message']
  assert message['content'] == drawn['answer']
  assert message['reasoning'] == message['reasoning_content']
  assert message['reasoning'] == drawn['reasoning']
  told = [one['token'] for one in choice['logprobs']['content']]
  assert ''.join(told) == drawn['answer']
  used = answer['usage']
  assert used['completion_tokens'] == drawn['used']
  details = used['completion_tokens_details']
  assert details == {'reasoning_tokens': drawn['count']}
  # A stream has both names, too.
  parts = {'reasoning': '', 'reasoning_content': '', 'content': ''}
  for chunk in server.stream(SAID, **ON):
    for choice in chunk['choices']:
      for name in parts:
        parts[name] += choice['delta'].get(name) or ''
  assert parts == {name: message[name] for name in parts}


@pytest.mark.parametrize('keeps', [False, True])
def test_the_next_prompt_holds_reasoning_only_where_it_is_kept(
  server, drawn, rewrite, monkeypatch, keeps
):
  written = rewrite('thinking', keeps_thoughts=keeps)
  found = recording.requests(server.context, monkeypatch)
  message = server.chat(SAID, **ON)['choices'][0]['message']
  del message['refusal']
  first, more = running.said(SAID, 'And then?')
  server.chat([first, message, more], **ON)
  before_L, after_L = (one.tokens.tolist() for one in found)
  reply_L = drawn['all'] if keeps else drawn['kept']
  behind = after_L[len(before_L) :]
  assert after_L[: len(before_L)] == before_L
  ends = written.structure.tolist()
  assert behind[: len(reply_L)] == [
    one for one in reply_L if one not in ends or one in written.thought
  ]


def test_a_session_stores_reasoning_beside_the_answer(server, drawn):
  session = server.open_session()
  answer = server.chat(SAID, session=session, **ON)
  message = answer['choices'][0]['message']
  greeting, *_, last = server.session(session)['messages']
  assert last['text'] == message['content']
  assert last['reasoning'] == message['reasoning']
  assert greeting['reasoning'] is None
  listed = server.get('/v1/sessions', owner='ann')['data']
  assert all('reasoning' not in str(one) for one in listed)


@pytest.mark.parametrize('thinks', [True, False])
def test_a_switch_that_the_model_has_not_is_refused(
  server, drawn, rewrite, monkeypatch, thinks
):
  assert server.get('/v1/server')['thinking'] is True
  if thinks:
    monkeypatch.setattr(server.context, 'thinking', None)
    assert server.get('/v1/server')['thinking'] is False
  else:
    written = server.context.format
    opening_L = np.append(written.replies[''], written.thought.begin)
    rewrite('format', written, replies={'': opening_L})
  switch = {'chat_template_kwargs': {'enable_thinking': thinks}}
  status, error = server.refused_chat(SAID, **BODY, **switch)
  assert (status, error['param']) == (400, 'chat_template_kwargs')
  assert f'enable_thinking={str(thinks).lower()}' in error['message']


@pytest.mark.parametrize('kind', ['off', 'drop', 'keep'])
def test_a_second_turn_runs_little_of_what_was_run_before(
  server, drawn, rewrite, kind
):
  """The toy's cache has windows of 6 tokens and pages of 4."""
  if kind == 'off':  # The opening of a reply has an empty thought.
    written = server.context.thinking
    opening_L = np.array([*written.replies[''], *written.thought], np.int32)
    rewrite('format', server.context.format, replies={'': opening_L})
  else:
    rewrite('thinking', keeps_thoughts=kind == 'keep')
  body = (BODY if kind == 'off' else ON) | {'session': server.open_session()}
  first = server.chat(SAID + ' So?' * 50, **body)['usage']
  cached = running.cached(server.chat('And then?', **body))
  before = first['prompt_tokens']
  if kind != 'drop':  # The answer is run again without its reasoning.
    before += first['completion_tokens']
  assert cached >= before - 2 * world.PAGE


def test_a_character_s_prefix_is_that_of_the_format(
  server, drawn, rewrite, monkeypatch
):
  head_L = np.append(server.context.thinking.head_L, np.int32(7))
  rewrite('thinking', head_L=head_L)
  found = recording.requests(server.context, monkeypatch)
  for body in ON, BODY:
    server.chat(SAID, character=running.CHARACTER, **body)
  told = [one.tokens[: len(head_L)].tolist() for one in found]
  assert told[0] == head_L.tolist() != told[1]


def test_a_reply_goes_on_within_its_reasoning_and_behind_it(server, drawn):
  session = server.open_session()
  for seed in range(40):
    body = ON | {'session': session, 'seed': seed}
    answer = server.chat(None if seed else SAID, swipe=bool(seed), **body)
    whole = server.session(session)['messages'][-1]
    is_long = answer['choices'][0]['finish_reason'] == 'length'
    if is_long and whole['reasoning'] and whole['text']:
      break
  else:
    raise AssertionError('none of 40 replies has both parts')
  for count in range(1, MOST):
    server.chat(None, swipe=True, **body | {'max_tokens': count})
    rest = {'max_tokens': MOST - count, 'continue_final_message': True}
    server.chat(None, **body | rest)
    found = server.session(session)['messages'][-1]
    for name in 'text', 'reasoning':
      assert found[name] == whole[name], (count, name)

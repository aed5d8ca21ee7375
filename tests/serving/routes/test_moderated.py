"""What is planted never comes out of a server, however it is cut up.

The marker 'zorbifex' stands for a violation. The device's replies are written
down (`world.Scripted`), and so are the head's scores: high at the marker's last
letter, in the middle while what is there may become the marker.
"""

import dataclasses
import json

import pytest

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat as chat_format
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters
from tests.serving import running
from tests.serving.routes import moderated


@pytest.mark.parametrize('hold', [0, 1, 7, 8, 12])
def test_a_planted_word_never_comes_out(tmp_path, hold):
  reply = b'I like the zoo. Say zorbifex and more'
  with moderated.served(tmp_path, reply, hold) as server:
    session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
    found = [
      moderated.streamed(server),
      moderated.streamed(server, session=session['id']),
      *(
        (one['message']['content'], one['finish_reason'])
        for one in moderated.send(server, n=2, logprobs=True)['choices']
      ),
    ]
    kept = server.get(f'/v1/sessions/{session["id"]}', owner='ann')
    moderator = server.context.moderator
    measured = server.get('/metrics').decode()
  assert 'kaiju_refusals_total{stage="head",tier="adult"} 4.0' in measured
  assert 'kaiju_judged_total{stage="head",tier="adult"} 4.0' in measured
  for text, reason in found:
    assert reason == 'content_filter'
    assert moderated.MARKER.decode() not in text and 'more' not in text
    assert text.startswith('I like the zoo. Say')
    if hold >= len(moderated.MARKER) - 1:
      assert text == 'I like the zoo. Say '
  assert kept['messages'][-1]['text'] == found[1][0]
  assert kept['messages'][-1]['finish'] == 'content_filter'
  assert len(moderator.stopped) == 4


def test_log_probabilities_say_nothing_of_what_is_held_back(tmp_path):
  with moderated.served(tmp_path, b'ok zorbifex') as server:
    (choice,) = moderated.send(server, logprobs=True)['choices']
  said = ''.join(one['token'] for one in choice['logprobs']['content'])
  assert said == choice['message']['content'] == 'ok '


def test_what_violates_nothing_comes_out_whole(tmp_path):
  reply = b'zo zorb zorbife zzorbifezorbi'
  with moderated.served(tmp_path, reply) as server:
    assert moderated.streamed(server) == (reply.decode(), 'stop')


def test_a_blocked_message_is_answered_without_the_model(tmp_path):
  said = {'messages': [{'role': 'user', 'content': 'A zorbifex, please'}]}
  with moderated.served(tmp_path, b'Sure') as server:
    session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
    (choice,) = moderated.send(server, **said)['choices']
    text, reason = moderated.streamed(server, **said, session=session['id'])
    kept = server.get(f'/v1/sessions/{session["id"]}', owner='ann')
    measured = server.get('/metrics').decode()
    assert server.engine.rounds.ran == 0
  assert choice['finish_reason'] == reason == 'content_filter'
  assert choice['message']['refusal'] and not choice['message']['content']
  assert not text and len(kept['messages']) == len(session['messages'])
  assert 'kaiju_refusals_total{stage="gate",tier="adult"} 2.0' in measured
  assert 'kaiju_judged_total{stage="gate",tier="adult"} 2.0' in measured
  assert 'kaiju_judged_total{stage="head",tier="adult"} 0.0' in measured


def gate_fails(monkeypatch):
  """Lets the gate pass everything, so that the head reads the prompt."""
  passed = moderation.Verdict(False, 'gate', 'adult')
  monkeypatch.setattr(moderated.Moderator, 'read', lambda *_: passed)


def said(*texts):
  roles = 'user', 'assistant'
  return {
    'messages': [
      {'role': roles[n % 2], 'content': text} for n, text in enumerate(texts)
    ]
  }


def test_all_that_is_new_passes_the_gate(tmp_path):
  with moderated.served(tmp_path, b'Sure') as server:
    for messages in (
      said('zorbifex', 'Hm?', 'Hello'),
      said('Hello', 'zorbifex', 'Hm?'),
      said('zorbifex' + ' and' * 200),
      {
        'messages': [
          {'role': 'system', 'content': 'zorbifex'},
          *moderated.SAID['messages'],
        ]
      },
    ):
      assert moderated.streamed(server, **messages) == ('', 'content_filter')
    assert server.engine.rounds.ran == 0
    # What was answered was judged before.
    first = moderated.streamed(server)[0]
    read = []
    server.context.moderator.read = lambda text: (
      read.append(text) or moderation.Verdict(False, 'gate', 'adult')
    )
    moderated.streamed(server, **said('Hello', first, 'And now?'))
    assert read == ['And now?']


def begun_in(server, session, text):
  """Returns the messages by which a reply begins with a text."""
  if session is None:
    return said('Hello', text)
  # The person writes it beside the reply, and has it continued.
  session = server.get(f'/v1/sessions/{session}', owner='ann')
  path = f'/v1/sessions/{session["id"]}/messages'
  parent = session['messages'][-1]['parent']
  edit = {'parent': parent, 'role': 'assistant', 'text': text}
  server.post(path, 'ann', **edit)
  go_on = {'session': session['id'], 'continue_final_message': True}
  return {'messages': []} | go_on


@pytest.mark.parametrize('is_kept', [False, True])
def test_a_continued_reply_is_judged_as_a_whole(tmp_path, monkeypatch, is_kept):
  with moderated.served(tmp_path, b'ifex and more') as server:
    session, moderator = None, server.context.moderator
    if is_kept:
      session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
      session = session['id']
      moderated.send(server, session=session)
    body = begun_in(server, session, 'I say zorb')
    read = []
    passed = moderation.Verdict(False, 'gate', 'adult')
    with monkeypatch.context() as patch:
      patch.setattr(moderator, 'read', lambda x: read.append(x) or passed)
      # The head ends it where both parts together are the marker.
      assert moderated.streamed(server, **body) == ('', 'content_filter')
      (choice,) = moderated.send(server, **body, echo=True, logprobs=True)[
        'choices'
      ]
    assert choice['message']['content'] == 'I say zorb'
    assert not choice['logprobs']
    assert [one.text for one in moderator.stopped] == ['I say zorbifex'] * 2
    # The gate reads the message and the reply so far.
    assert read == ['Hello\nI say zorb'] * 2
    ran = server.engine.rounds.ran
    if session is None:
      body = said('Hello', 'I say zorbifex')
      assert moderated.streamed(server, **body) == ('', 'content_filter')
      assert server.engine.rounds.ran == ran


@pytest.mark.parametrize('stage', ['gate', 'prompt'])
def test_a_refused_beginning_is_not_echoed(tmp_path, monkeypatch, stage):
  if stage == 'prompt':
    gate_fails(monkeypatch)
  with moderated.served(tmp_path, b'Sure') as server:
    body = said('Hello', 'I say zorbifex') | {'echo': True}
    assert moderated.streamed(server, **body) == ('', 'content_filter')
    (choice,) = moderated.send(server, **body)['choices']
    assert choice['message']['content'] == ''
    assert server.context.moderator.stopped == []


def test_all_of_a_long_text_passes_the_gate(tmp_path, monkeypatch):
  with moderated.served(tmp_path, b'Sure') as server:
    long = 'good day ' * 100  # Three make two of the gate's parts.
    for texts in (
      ['zorbifex ' + long, long, long],
      [long, long, long + 'zorbifex'],
    ):
      body = {'model': running.MODEL, 'prompt': texts, 'max_tokens': 4}
      choices = server.post('/v1/completions', 'ann', **body)['choices']
      assert {x['finish_reason'] for x in choices} == {'content_filter'}
    read = []
    server.context.moderator.read = lambda text: (
      read.append(text) or moderation.Verdict(False, 'gate', 'adult')
    )
    monkeypatch.setattr(gate, 'MOST', 99)
    status, error = server.refused('POST', '/v1/completions', body, 'ann')
    assert status == 400 and not read
    assert (error['param'], error['code']) == (
      'prompt',
      'context_length_exceeded',
    )


def chunks_of(answer):
  lines = answer.decode().splitlines()
  return [json.loads(line[6:]) for line in lines if line.startswith('data: {')]


@pytest.mark.parametrize(
  'payload',
  [{}, {'echo': True}, {'echo': True, 'logprobs': 0}, {'logprobs': 0}],
)
@pytest.mark.parametrize('stage', ['gate', 'prompt'])
def test_a_refused_prompt_is_not_echoed(tmp_path, monkeypatch, stage, payload):
  """And both stages refuse it in one form."""
  if stage == 'prompt':
    gate_fails(monkeypatch)
  body = {'model': running.MODEL, 'max_tokens': 4} | payload
  with moderated.served(tmp_path, b'Sure') as server:
    whole = body | {'prompt': 'Say zorbifex'}
    (choice,) = server.post('/v1/completions', 'ann', **whole)['choices']
    body |= {'prompt': 'zorbifex, say', 'stream': True}
    answer = server.ask('POST', '/v1/completions', body, 'ann')
  assert (choice['text'], choice['logprobs']) == ('', None)
  assert choice['finish_reason'] == 'content_filter'
  (streamed,) = [one['choices'][0] for one in chunks_of(answer)]
  assert streamed == choice


def test_both_stages_refuse_a_message_in_one_form(tmp_path, monkeypatch):
  found = []
  for stage in 'gate', 'prompt':
    if stage == 'prompt':
      gate_fails(monkeypatch)
    (folder := tmp_path / stage).mkdir()
    with moderated.served(folder, b'Sure') as server:
      whole = moderated.send(server, **said('zorbifex'))['choices']
      body = {'model': running.MODEL, 'stream': True} | said('?zorbifex')
      answer = server.ask('POST', '/v1/chat/completions', body, 'ann')
    deltas = {}
    for one in chunks_of(answer):
      deltas |= one['choices'][0]['delta']
    found.append((whole, deltas))
  assert found[0] == found[1]
  assert found[0][0][0]['message'] == deltas
  assert deltas['refusal'] and not deltas['content']


def test_what_the_head_finds_in_a_prompt_ends_the_reply(tmp_path, monkeypatch):
  gate_fails(monkeypatch)
  with moderated.served(tmp_path, b'Sure') as server:
    assert moderated.streamed(server, **said('zorbifex')) == (
      '',
      'content_filter',
    )
    # The log of blocked texts gets what the user wrote.
    assert server.context.moderator.texts == ['zorbifex']
    measured = server.get('/metrics').decode()
  assert 'kaiju_refusals_total{stage="prompt",tier="adult"} 1.0' in measured


def test_a_prompt_is_refused_however_often_and_wherever_it_is_resumed(
  tmp_path, monkeypatch
):
  """What the head gave a text counts, whoever ran it, and whenever."""
  gate_fails(monkeypatch)
  said = {
    'messages': [
      {'role': 'system', 'content': 'You say zorbifex, and then some more.'},
      {'role': 'user', 'content': 'Hello'},
    ]
  }
  behind = {
    'messages': [
      *said['messages'],
      {'role': 'assistant', 'content': 'Well'},
      {'role': 'user', 'content': 'And now?'},
    ]
  }
  with moderated.served(tmp_path, b'Sure') as server:
    ran = []
    for body in (said, said, behind, said):
      (choice,) = moderated.send(server, **body)['choices']
      assert choice['finish_reason'] == 'content_filter'
      assert not choice['message']['content']
      assert moderated.streamed(server, **body) == ('', 'content_filter')
      ran.append(server.engine.rounds.ran)
    choices = moderated.send(server, n=3, **said)['choices']
    assert {one['finish_reason'] for one in choices} == {'content_filter'}
    # It is resumed all the same: a refusal costs a token.
    assert ran[1] - ran[0] == 2


def test_what_an_earlier_version_let_pass_is_judged_by_a_stricter_one(tmp_path):
  said = {'messages': [{'role': 'user', 'content': 'A zorb, please. Bye'}]}
  with moderated.served(tmp_path, b'Sure') as server:
    session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
    for body in (said, said | {'session': session['id']}):
      assert moderated.streamed(server, **body) == ('Sure', 'stop')
    server.context.moderator.high = 0.5
    assert moderated.streamed(server, **said) == ('', 'content_filter')
    swiped = {'session': session['id'], 'swipe': True, 'messages': []}
    assert moderated.streamed(server, **swiped) == ('', 'content_filter')


def test_a_refused_character_is_refused_to_everybody(tmp_path):
  """Everybody after the first goes on from the prefix that the first left."""
  fields = dataclasses.replace(running.FIELDS, personality='says zorbifex')
  with moderated.served(tmp_path, b'Sure') as server:
    written = chat_format.format_of(server.context.tokenizer)
    server.store.publish(
      characters.BUILT_IN,
      fields,
      prompt.prefix(fields, written),
      server.context.model.digest,
      'other',
      is_public=True,
    )
    for owner in ('ann', 'ben', 'ben'):
      answer = server.post(
        '/v1/chat/completions',
        owner,
        **{'model': running.MODEL, 'character': 'other', 'max_tokens': 9}
        | moderated.SAID,
      )
      assert answer['choices'][0]['finish_reason'] == 'content_filter'
      assert not answer['choices'][0]['message']['content']

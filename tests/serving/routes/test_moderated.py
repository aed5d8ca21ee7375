"""What is planted never comes out of a server, however it is cut up.

The marker 'zorbifex' stands for a violation. The device's replies are written
down (`world.Scripted`), and so are the head's scores: high at the marker's last
letter, in the middle while what is there may become the marker.
"""

import contextlib
import dataclasses

import pytest

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat as chat_format
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.stores import characters
from tests.serving import running
from tests.serving.routes import moderated

BAD = 'A zorbifex, please'
REFUSED, PASSED = moderated.REFUSED, moderated.PASSED


@pytest.fixture
def serve(tmp_path):
  """Returns a function that starts a server that says one thing."""
  with contextlib.ExitStack() as stack:

    def serve(reply=b'Sure', hold=8):
      (folder := tmp_path / reply.hex()[:20]).mkdir()
      return stack.enter_context(moderated.served(folder, reply, hold))

    yield serve


@pytest.fixture(params=['gate', 'prompt'])
def stage(request, monkeypatch):
  """The stage that refuses: the gate, or the head where the gate fails."""
  if request.param == 'prompt':
    let_gate_pass(monkeypatch)
  return request.param


def let_gate_pass(monkeypatch):
  monkeypatch.setattr(moderated.Moderator, 'read', lambda *_: PASSED)


def note_read(server, monkeypatch):
  """Lets the gate pass everything; returns the list of what it will read."""
  found, moderator = [], server.context.moderator
  monkeypatch.setattr(moderator, 'read', lambda x: found.append(x) or PASSED)
  return found


def counts(server, *stages, name='refusals_total'):
  return [server.count(name, stage=x, tier='adult') for x in stages]


def talk(*texts):
  roles = 'user', 'assistant'
  return [
    {'role': roles[n % 2], 'content': text} for n, text in enumerate(texts)
  ]


@pytest.mark.parametrize('hold', [0, 1, 7, 8, 12])
def test_a_planted_word_never_comes_out(serve, hold):
  server = serve(b'I like the zoo. Say zorbifex and more', hold)
  session = server.open_session()
  found = [
    moderated.streamed(server),
    moderated.streamed(server, session=session),
    *(
      (one['message']['content'], one['finish_reason'])
      for one in moderated.choices(server, n=2, logprobs=True)
    ),
  ]
  assert counts(server, 'head') == counts(server, 'head', name='judged_total')
  assert (
    counts(server, 'head') == [len(server.context.moderator.stopped)] == [4]
  )
  for text, reason in found:
    assert reason == 'content_filter'
    assert moderated.MARKER.decode() not in text and 'more' not in text
    assert text.startswith('I like the zoo. Say')
    if hold >= len(moderated.MARKER) - 1:
      assert text == 'I like the zoo. Say '
  kept = server.session(session)['messages'][-1]
  assert (kept['text'], kept['finish']) == found[1]


def test_what_violates_nothing_comes_out_whole(serve):
  reply = b'zo zorb zorbife zzorbifezorbi'
  assert moderated.streamed(serve(reply)) == (reply.decode(), 'stop')


def test_log_probabilities_say_nothing_of_what_is_held_back(serve):
  (choice,) = moderated.choices(serve(b'ok zorbifex'), logprobs=True)
  said = ''.join(one['token'] for one in choice['logprobs']['content'])
  assert said == choice['message']['content'] == 'ok '


def test_a_blocked_message_is_answered_without_the_model(serve):
  server = serve()
  session = server.open_session()
  before = server.session(session)
  (choice,) = moderated.choices(server, BAD)
  assert choice['finish_reason'] == 'content_filter'
  assert choice['message']['refusal'] and not choice['message']['content']
  assert moderated.streamed(server, BAD, session=session) == REFUSED
  assert server.session(session)['messages'] == before['messages']
  assert counts(server, 'gate') == [2]
  assert counts(server, 'gate', 'head', name='judged_total') == [2, 0]
  # All that is new passes the gate.
  for messages in (
    talk('zorbifex', 'Hm?', 'Hello'),
    talk('Hello', 'zorbifex', 'Hm?'),
    talk('zorbifex' + ' and' * 200),
    [*running.said('zorbifex', role='system'), *talk('Hello')],
  ):
    assert moderated.streamed(server, messages) == REFUSED
  assert server.engine.rounds.ran == 0


def test_what_was_answered_was_judged_before(serve, monkeypatch):
  server = serve()
  first, _ = moderated.streamed(server)
  read = note_read(server, monkeypatch)
  moderated.streamed(server, talk('Hello', first, 'And now?'))
  assert read == ['And now?']


@pytest.mark.parametrize('is_kept', [False, True])
def test_a_continued_reply_is_judged_as_a_whole(serve, monkeypatch, is_kept):
  server = serve(b'ifex and more')
  said, body = talk('Hello', 'I say zorb'), {}
  if is_kept:
    # The person writes it beside the reply, and has it continued.
    session = server.open_session()
    moderated.choices(server, session=session)
    parent = server.session(session)['messages'][-1]['parent']
    edit = {'parent': parent, 'role': 'assistant', 'text': 'I say zorb'}
    server.post(f'/v1/sessions/{session}/messages', 'ann', **edit)
    said, body = None, {'session': session, 'continue_final_message': True}
  with monkeypatch.context() as patch:
    read = note_read(server, patch)
    # The head ends it where both parts together are the marker.
    assert moderated.streamed(server, said, **body) == REFUSED
    (choice,) = moderated.choices(
      server, said, echo=True, logprobs=True, **body
    )
  assert choice['message']['content'] == 'I say zorb'
  assert not choice['logprobs']
  stopped = server.context.moderator.stopped
  assert [one.text for one in stopped] == ['I say zorbifex'] * 2
  # The gate reads the message and the reply so far.
  assert read == ['Hello\nI say zorb'] * 2
  ran = server.engine.rounds.ran
  assert moderated.streamed(server, talk('Hello', 'I say zorbifex')) == REFUSED
  assert server.engine.rounds.ran == ran


def test_a_refused_beginning_is_not_echoed(serve, stage):
  server, said = serve(), talk('Hello', 'I say zorbifex')
  assert moderated.streamed(server, said, echo=True) == REFUSED
  (choice,) = moderated.choices(server, said, echo=True)
  assert choice['message']['content'] == ''
  assert server.context.moderator.stopped == []


@pytest.mark.parametrize(
  'options',
  [{}, {'echo': True}, {'echo': True, 'logprobs': 0}, {'logprobs': 0}],
)
def test_a_refused_prompt_is_not_echoed(serve, stage, options):
  """And both stages refuse it in one form."""
  server, options = serve(), options | {'max_tokens': 4}
  (choice,) = server.complete('Say zorbifex', **options)['choices']
  body = running.complete('zorbifex, say', stream=True, **options)
  answer = server.ask('POST', running.TEXT, body, 'ann')
  assert (choice['text'], choice['logprobs']) == ('', None)
  assert choice['finish_reason'] == 'content_filter'
  (streamed,) = [one['choices'][0] for one in running.events(answer)]
  assert streamed == choice


def test_both_stages_refuse_a_message_in_one_form(serve, monkeypatch):
  found = []
  for reply in b'of the gate', b'of the head':
    server = serve(reply)
    whole = moderated.choices(server, 'zorbifex')
    deltas = {}
    for one in server.stream('?zorbifex'):
      deltas |= one['choices'][0]['delta']
    found.append((whole, deltas))
    let_gate_pass(monkeypatch)
  assert found[0] == found[1]
  assert whole[0]['message'] == deltas
  assert deltas['refusal'] and not deltas['content']


def test_all_of_a_long_text_passes_the_gate(serve, monkeypatch):
  server = serve()
  long = 'good day ' * 100  # Three make two of the gate's parts.
  for texts in (
    ['zorbifex ' + long, long, long],
    [long, long, long + 'zorbifex'],
  ):
    choices = server.complete(texts)['choices']
    assert {x['finish_reason'] for x in choices} == {'content_filter'}
  read = note_read(server, monkeypatch)
  monkeypatch.setattr(gate, 'MOST', 99)
  body = running.complete(texts)
  status, error = server.refused('POST', running.TEXT, body, 'ann')
  assert (status, error['param']) == (400, 'prompt') and not read
  assert error['code'] == 'context_length_exceeded'


def test_what_the_head_finds_in_a_prompt_ends_the_reply(serve, monkeypatch):
  let_gate_pass(monkeypatch)
  server = serve()
  assert moderated.streamed(server, 'zorbifex') == REFUSED
  # The log of blocked texts gets what the user wrote.
  assert server.context.moderator.texts == ['zorbifex']
  assert counts(server, 'prompt') == [1]


def test_a_prompt_is_refused_however_often_and_wherever_it_is_resumed(
  serve, monkeypatch
):
  """What the head gave a text counts, whoever ran it, and whenever."""
  let_gate_pass(monkeypatch)
  text = 'You say zorbifex, and then some more.'
  said = [*running.said(text, role='system'), *talk('Hello')]
  behind = said[:1] + talk('Hello', 'Well', 'And now?')
  server, ran = serve(), []
  for messages in said, said, behind, said:
    (choice,) = moderated.choices(server, messages)
    assert choice['finish_reason'] == 'content_filter'
    assert not choice['message']['content']
    assert moderated.streamed(server, messages) == REFUSED
    ran.append(server.engine.rounds.ran)
  choices = moderated.choices(server, said, n=3)
  assert {one['finish_reason'] for one in choices} == {'content_filter'}
  # It is resumed all the same: a refusal costs a token.
  assert ran[1] - ran[0] == 2


def test_what_an_earlier_version_let_pass_is_judged_by_a_stricter_one(serve):
  server, text = serve(), 'A zorb, please. Bye'
  session = server.open_session()
  for body in {}, {'session': session}:
    assert moderated.streamed(server, text, **body) == ('Sure', 'stop')
  server.context.moderator.high = 0.5
  assert moderated.streamed(server, text) == REFUSED
  swiped = {'session': session, 'swipe': True}
  assert moderated.streamed(server, None, **swiped) == REFUSED


def test_a_refused_character_is_refused_to_everybody(serve):
  """Everybody after the first goes on from the prefix that the first left."""
  fields = dataclasses.replace(running.FIELDS, personality='says zorbifex')
  server = serve()
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
    (choice,) = moderated.choices(server, owner=owner, character='other')
    assert choice['finish_reason'] == 'content_filter'
    assert not choice['message']['content']

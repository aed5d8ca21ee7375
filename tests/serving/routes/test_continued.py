"""A reply that goes on from a text: in a chat, in a session, by a router.

What the stand-in of the device draws follows from the text before it and the
seed alone, so that a reply drawn in two parts equals the one drawn at once.
"""

import json
import random
import urllib.error

import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from tests.decoding import fake_device
from tests.serving import recording
from tests.serving import running

CHAT, LONG = '/v1/chat/completions', 30
SAID = {'role': 'user', 'content': 'Tell me of the quiet sea.'}
GO_ON = {'continue_final_message': True}
HALF = 'Once upon a ti'


@pytest.fixture(scope='module', params=[0, 2], ids=['worker', 'router'])
def server(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, replicas=request.param) as server:
    yield server


@pytest.fixture
def one_replica(server):
  """The server, whose router sends all new texts to its first replica.

  It draws a replica for each text without a session.
  """
  others = [f'r{x}' for x in range(1, len(server.workers))]
  for name in others:
    server.context.engines.set_share(name, 0.0)
  yield server
  for name in others:
    server.context.engines.set_share(name, 1.0)


def send(server, messages=(), **options):
  """Returns a reply's choice and the answer's usage."""
  body = {'model': running.MODEL, 'seed': 3, 'max_tokens': LONG} | options
  answer = server.post(CHAT, 'ann', messages=[*messages], **body)
  return answer['choices'][0], answer['usage']


def refused(server, messages=(), **options):
  """Returns the field that a refusal names."""
  with pytest.raises(urllib.error.HTTPError) as caught:
    send(server, messages, **options)
  assert caught.value.code == 400
  return json.loads(caught.value.read())['error']['param']


def text_of(choice):
  return choice['message']['content']


def replied(text):
  return {'role': 'assistant', 'content': text}


def streamed(server, messages=(), **options):
  """Returns the text of a stream."""
  client = server.client('ann')
  body = {'model': running.MODEL, 'seed': 3, 'max_tokens': LONG}
  chunks = client.chat.completions.create(
    messages=[*messages], stream=True, extra_body=options, **body
  )
  return ''.join(
    choice.delta.content or '' for one in chunks for choice in one.choices
  )


def open_session(server):
  """Returns a session's fields in a request, and a function that reads it."""
  made = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  path = f'/v1/sessions/{made["id"]}'
  return {'session': made['id']}, lambda: server.get(path, owner='ann')


def draw_long(server, seed, **options):
  """Returns a whole reply that its length ends, and what asks for it."""
  for number in range(seed, seed + 100):
    said = [SAID | {'content': f'{SAID["content"]} {number}'}]
    whole, used = send(server, said, seed=seed, logprobs=True, **options)
    if whole['finish_reason'] == 'length':
      return whole, used, said
  raise AssertionError


@pytest.mark.parametrize('seed', range(4))
def test_a_reply_in_two_parts_is_the_reply_at_once(one_replica, seed):
  server = one_replica
  whole, used, said = draw_long(server, seed)
  first = random.Random(seed).randrange(1, LONG)
  begun, _ = send(server, said, seed=seed, max_tokens=first)
  said.append(replied(text_of(begun)))
  options = {'seed': seed, 'max_tokens': LONG - first, 'logprobs': True}
  rest, usage = send(server, said, **options)
  assert text_of(begun) + text_of(rest) == text_of(whole)
  tokens = whole['logprobs']['content'][first:]
  assert rest['logprobs']['content'] == tokens
  prompt = used['prompt_tokens'] + first
  assert usage['prompt_tokens'] == prompt
  assert usage['completion_tokens'] == LONG - first
  # All but what no page of the cache holds.
  assert usage['prompt_tokens_details']['cached_tokens'] >= prompt - 8
  echoed, _ = send(server, said, **options, echo=True)
  assert text_of(echoed) == text_of(whole)
  assert streamed(server, said, **options) == text_of(rest)
  assert streamed(server, said, **options, echo=True) == text_of(whole)
  # The whole reply is remembered by its tokens, too.
  more = [*said[:1], replied(text_of(whole)), SAID]
  _, usage = send(server, more, seed=seed)
  assert usage['prompt_tokens_details']['cached_tokens'] >= prompt


@pytest.mark.parametrize('seed', range(3))
def test_the_last_reply_of_a_session_goes_on(server, seed):
  session, read = open_session(server)
  whole, used, _ = draw_long(server, seed, **session)
  before = read()
  options = session | {'seed': seed}
  one, two = sorted(random.Random(seed).sample(range(1, LONG), 2))
  send(server, swipe=True, max_tokens=one, **options)
  _, usage = send(server, max_tokens=two - one, **options, **GO_ON)
  assert usage['prompt_tokens'] == used['prompt_tokens'] + one
  assert usage['completion_tokens'] == two - one
  cached = usage['prompt_tokens_details']['cached_tokens']
  assert cached >= usage['prompt_tokens'] - 8
  streamed(server, max_tokens=LONG - two, **options, **GO_ON)
  after = read()
  count = len(before['messages'])
  assert after['messages'][:count] == before['messages']
  replies = after['messages'][count:]
  # Each stands beside the one that it continues, whole, and is shown.
  parent = before['messages'][-1]['parent']
  assert [one['parent'] for one in replies] == 3 * [parent]
  texts = [one['text'] for one in replies]
  assert texts[1].startswith(texts[0]) and texts[2].startswith(texts[1])
  assert texts[0] != texts[1] != texts[2] == text_of(whole)
  assert after['head'] == replies[2]['id']
  # Another reply to the same message, and the next turn, are as ever.
  send(server, swipe=True, seed=77, **session)
  swiped = read()['messages'][-1]
  assert swiped['parent'] == parent
  assert not swiped['text'].startswith(texts[0])
  send(server, [SAID], **session)
  assert read()['messages'][-2]['parent'] == swiped['id']


def test_a_character_is_completed_by_the_next_part(tmp_path):
  """The device draws any bytes, of which few are whole characters."""
  with running.server(tmp_path, tokenizer=tokenizer_lib.Bytes()) as server:
    for seed in 1, 5:  # Four bytes in a row are no character.
      session, read = open_session(server)
      draw_long(server, seed, **session)
      whole = read()['messages'][-1]['text']
      options = session | {'seed': seed}
      for one in range(1, LONG, 2):
        send(server, swipe=True, max_tokens=one, **options)
        send(server, max_tokens=LONG - one, **options, **GO_ON)
        assert read()['messages'][-1]['text'] == whole, one


def tell(server, monkeypatch, messages=(), **options):
  """Returns the prompt's tokens, the reply, and what was to be drawn."""
  found = recording.requests(server.context, monkeypatch)
  choice, usage = send(server, messages, **options)
  (request,) = found
  drawn, _ = fake_device.expected(request)
  text = running.Letters().decode([x for x in drawn if x > 3])
  assert usage['prompt_tokens'] == len(request.tokens)
  return bytes(request.tokens.astype('uint8')), text_of(choice), text


@pytest.mark.parametrize('text', ['So', ' So ', 'Grüße — \n\n', 'ö', '\ufffd'])
def test_a_text_that_nobody_drew_is_continued_as_it_stands(
  server, monkeypatch, text
):
  prompt, found, wanted = tell(server, monkeypatch, [SAID, replied(text)])
  assert prompt.endswith(b'\1assistant\2' + text.encode())
  assert found == wanted
  session, read = open_session(server)
  prompt, found, wanted = tell(
    server, monkeypatch, [SAID, replied(text)], **session
  )
  assert prompt.endswith(b'\1assistant\2' + text.encode())
  assert found == wanted
  *_, said, reply = read()['messages']
  assert (said['text'], said['role']) == (SAID['content'], 'user')
  assert reply['text'] == text + found and reply['parent'] == said['id']
  # The person writes a reply of their own, and has it continued.
  path = f'/v1/sessions/{session["session"]}/messages'
  edit = {'parent': said['id'], 'role': 'assistant', 'text': text}
  edited = server.post(path, 'ann', **edit)
  prompt, found, wanted = tell(server, monkeypatch, **session, **GO_ON)
  assert prompt.endswith(b'\1assistant\2' + text.encode())
  assert found == wanted
  last = read()['messages'][-1]
  assert last['text'] == text + found and last['id'] != edited['head']
  assert last['parent'] == said['id']


def test_a_drawn_text_with_other_ends_is_another_text(server, monkeypatch):
  drawn = text_of(send(server, [SAID])[0])
  for text in drawn + ' ', ' ' + drawn:
    prompt, *_ = tell(server, monkeypatch, [SAID, replied(text)])
    assert prompt.endswith(b'\1assistant\2' + text.encode())


def test_a_greeting_goes_on_and_a_swipe_may_be_begun(server):
  session, read = open_session(server)
  send(server, **session, **GO_ON)
  greeting, *_, longer = read()['messages']
  assert longer['text'].startswith(greeting['text'])
  assert longer['parent'] is None
  send(server, [SAID], **session)
  first = read()['messages'][-1]
  send(server, [replied(HALF)], swipe=True, **session)
  second = read()['messages'][-1]
  assert second['text'].startswith(HALF)
  assert second['parent'] == first['parent']
  choice, _ = send(server, n=2, **session, **GO_ON)
  assert choice['index'] == 0
  third, fourth = read()['messages'][-2:]
  assert third['text'].startswith(second['text'])
  assert fourth['text'].startswith(second['text'])


def test_a_stop_string_is_found_in_what_is_drawn_alone(server):
  said = [SAID, replied(HALF)]
  text = text_of(send(server, said)[0])
  across = HALF[-2:] + text[:2]
  assert text_of(send(server, said, stop=[HALF[:4], across])[0]) == text
  stop = text[5:8]
  cut, _ = send(server, said, stop=[across, stop], echo=True)
  assert text_of(cut) == HALF + text[: text.index(stop)]
  assert cut['finish_reason'] == 'stop'


def test_a_reply_of_its_own_may_follow_the_assistants_message(server):
  said = [SAID, replied(HALF)]
  _, continued = send(server, said)
  own, used = send(server, said, add_generation_prompt=True)
  other, _ = send(server, said, continue_final_message=False)
  assert text_of(own) == text_of(other)
  assert used['prompt_tokens'] > continued['prompt_tokens'] + 5
  same, _ = send(server, said, add_generation_prompt=False, **GO_ON)
  assert text_of(same) == text_of(send(server, said)[0])


def test_what_cannot_go_on_is_refused_by_name(server):
  name = 'continue_final_message'
  assert refused(server, [SAID], **GO_ON) == name
  assert refused(server, [SAID], add_generation_prompt=False) == (
    'add_generation_prompt'
  )
  both = [SAID, replied(HALF)]
  for value in True, False:
    options = {name: value, 'add_generation_prompt': value}
    assert refused(server, both, **options) == name
  session, read = open_session(server)
  path = f'/v1/sessions/{session["session"]}/messages'
  added = {'parent': read()['head'], 'role': 'user', 'text': 'x'}
  server.post(path, 'ann', **added)
  before = read()
  assert refused(server, **session, **GO_ON) == name
  assert refused(server, swipe=True, **session, **GO_ON) == 'swipe'
  for messages in (
    [replied(HALF), SAID],
    [SAID, SAID],
    [replied(HALF), replied(HALF)],
  ):
    assert refused(server, messages, **session) == 'messages'
  long = [SAID, replied('x' * running.LENGTH)]
  assert refused(server, long) == 'messages'
  assert read() == before

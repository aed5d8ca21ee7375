"""A reply that goes on from a text: in a chat, in a session, by a router.

What the stand-in of the device draws follows from the text before it and the
seed alone, so that a reply drawn in two parts equals the one drawn at once.
What cannot go on stands in the table of refusals.
"""

import random

import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from tests.decoding import fake_device
from tests.serving import recording
from tests.serving import running

LONG = 30
(SAID,) = running.said('Tell me of the quiet sea.')
GO_ON = {'continue_final_message': True}
HALF = 'Once upon a ti'


@pytest.fixture(scope='module', params=[0, 2], ids=['worker', 'router'])
def server(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, replicas=request.param) as server:
    yield server


@pytest.fixture
def one_replica(server):
  """The server, whose router sends all new texts to its first replica."""
  others = [f'r{x}' for x in range(1, len(server.workers))]
  for name in others:
    server.context.engines.set_share(name, 0.0)
  yield server
  for name in others:
    server.context.engines.set_share(name, 1.0)


def send(server, messages=(), **options):
  """Returns a reply's text, its choice, and the answer's usage."""
  answer = server.chat([*messages], **{'max_tokens': LONG} | options)
  choice = answer['choices'][0]
  return choice['message']['content'], choice, answer['usage']


def replied(text):
  return {'role': 'assistant', 'content': text}


def streamed(server, messages=(), **options):
  """Returns the text of a stream."""
  return server.streamed([*messages], **{'max_tokens': LONG} | options)[0]


def open_session(server):
  """Returns a session's fields in a request, and a function that reads it."""
  name = server.open_session()
  return {'session': name}, lambda: server.session(name)


def draw_long(server, seed, **options):
  """Returns a whole reply that its length ends, and what asks for it."""
  for number in range(seed, seed + 100):
    said = [SAID | {'content': f'{SAID["content"]} {number}'}]
    text, whole, used = send(server, said, seed=seed, logprobs=True, **options)
    if whole['finish_reason'] == 'length':
      return text, whole['logprobs']['content'], used['prompt_tokens'], said
  raise AssertionError


def cached(usage):
  return usage['prompt_tokens_details']['cached_tokens']


@pytest.mark.parametrize('seed', range(4))
def test_a_reply_in_two_parts_is_the_reply_at_once(one_replica, seed):
  server = one_replica
  whole, tokens, prompt, said = draw_long(server, seed)
  first = random.Random(seed).randrange(1, LONG)
  begun, *_ = send(server, said, seed=seed, max_tokens=first)
  said.append(replied(begun))
  options = {'seed': seed, 'max_tokens': LONG - first, 'logprobs': True}
  rest, choice, usage = send(server, said, **options)
  assert begun + rest == whole
  assert choice['logprobs']['content'] == tokens[first:]
  prompt += first
  assert usage['prompt_tokens'] == prompt
  assert usage['completion_tokens'] == LONG - first
  # All but what no page of the cache holds.
  assert cached(usage) >= prompt - 8
  assert send(server, said, **options, echo=True)[0] == whole
  assert streamed(server, said, **options) == rest
  assert streamed(server, said, **options, echo=True) == whole
  # The whole reply is remembered by its tokens, too.
  *_, usage = send(server, [*said[:1], replied(whole), SAID], seed=seed)
  assert cached(usage) >= prompt


@pytest.mark.parametrize('seed', range(3))
def test_the_last_reply_of_a_session_goes_on(server, seed):
  session, read = open_session(server)
  whole, _, prompt, _ = draw_long(server, seed, **session)
  before = read()
  options = session | {'seed': seed}
  one, two = sorted(random.Random(seed).sample(range(1, LONG), 2))
  send(server, swipe=True, max_tokens=one, **options)
  *_, usage = send(server, max_tokens=two - one, **options, **GO_ON)
  assert usage['prompt_tokens'] == prompt + one
  assert usage['completion_tokens'] == two - one
  assert cached(usage) >= usage['prompt_tokens'] - 8
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
  assert texts[0] != texts[1] != texts[2] == whole
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


@pytest.fixture
def go_on(server, monkeypatch):
  """Returns what sends, and checks that a text goes on as it stands."""

  def check(text, *messages, **options):
    found = recording.requests(server.context, monkeypatch)
    reply, _, usage = send(server, messages, **options)
    (request,) = found
    drawn, _ = fake_device.expected(request)
    assert reply == running.Letters().decode([x for x in drawn if x > 3])
    assert usage['prompt_tokens'] == len(request.tokens)
    prompt = bytes(request.tokens.astype('uint8'))
    assert prompt.endswith(b'\1assistant\2' + text.encode())
    return reply

  return check


@pytest.mark.parametrize('text', ['So', ' So ', 'Grüße — \n\n', 'ö', '\ufffd'])
def test_a_text_that_nobody_drew_is_continued_as_it_stands(server, go_on, text):
  go_on(text, SAID, replied(text))
  session, read = open_session(server)
  found = go_on(text, SAID, replied(text), **session)
  *_, said, reply = read()['messages']
  assert (said['text'], said['role']) == (SAID['content'], 'user')
  assert reply['text'] == text + found and reply['parent'] == said['id']
  # The person writes a reply of their own, and has it continued.
  path = f'/v1/sessions/{session["session"]}/messages'
  edit = {'parent': said['id'], 'role': 'assistant', 'text': text}
  edited = server.post(path, 'ann', **edit)
  found = go_on(text, **session, **GO_ON)
  last = read()['messages'][-1]
  assert last['text'] == text + found and last['id'] != edited['head']
  assert last['parent'] == said['id']


def test_a_drawn_text_with_other_ends_is_another_text(server, go_on):
  drawn = send(server, [SAID])[0]
  for text in drawn + ' ', ' ' + drawn:
    go_on(text, SAID, replied(text))


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
  send(server, n=2, **session, **GO_ON)
  for one in read()['messages'][-2:]:
    assert one['text'].startswith(second['text'])


def test_a_stop_string_is_found_in_what_is_drawn_alone(server):
  said = [SAID, replied(HALF)]
  text = send(server, said)[0]
  across = HALF[-2:] + text[:2]
  assert send(server, said, stop=[HALF[:4], across])[0] == text
  stop = text[5:8]
  found, cut, _ = send(server, said, stop=[across, stop], echo=True)
  assert found == HALF + text[: text.index(stop)]
  assert cut['finish_reason'] == 'stop'


def test_a_reply_of_its_own_may_follow_the_assistants_message(server):
  said = [SAID, replied(HALF)]
  text, _, continued = send(server, said)
  own, _, used = send(server, said, add_generation_prompt=True)
  assert send(server, said, continue_final_message=False)[0] == own
  assert used['prompt_tokens'] > continued['prompt_tokens'] + 5
  assert send(server, said, add_generation_prompt=False, **GO_ON)[0] == text

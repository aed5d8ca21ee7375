"""`top_logprobs`, and the addresses that encode text, over real sockets."""

import functools
import itertools
import threading

import openai
import pytest

from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import stream
from tests.decoding import fake_device
from tests.serving import running
from tests.serving import world
from tests.serving.routes import moderated as moderated_server

MOST = 3
TALK = {'messages': moderated_server.SAID['messages'], 'max_tokens': 12}
LETTERS = running.Letters()


def serve(folder, count=MOST):
  made = functools.partial(
    world.Engine,
    length=running.LENGTH,
    pages=2000,
    limits=admission.Limits(lease=30.0),
    alternatives=count,
  )
  return running.server(folder, engine=made)


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with serve(tmp_path_factory.mktemp('server')) as server:
    yield server


@pytest.fixture(scope='module')
def client(server):
  with openai.OpenAI(
    base_url=f'{server.address}/v1', api_key='none', max_retries=0
  ) as client:
    yield client


def complete(client, prompt='Once upon', **options):
  options = {'model': running.MODEL, 'max_tokens': 9, 'seed': 1} | options
  return client.completions.create(prompt=prompt, **options)


def chat(client, **options):
  options = {'model': running.MODEL, 'seed': 1} | TALK | options
  return client.chat.completions.create(**options)


def by_text(token: int, count: int, own: bool = True) -> dict[str, float]:
  """Returns what is listed for a token; of equal texts the likeliest."""
  found = fake_device.likeliest(token, count)
  values = found[count:].view('float32').tolist()
  pairs = [*zip(found[:count].tolist(), values)]
  listed = {}
  for one, value in [*pairs, *([(token, float(-token))] if own else [])]:
    text = LETTERS.decode([one])
    listed[text] = max(value, listed.get(text, value))
  return listed


def refusal(call) -> str:
  with pytest.raises(openai.BadRequestError) as caught:
    call()
  return f'{caught.value.param}: {caught.value.message}'


def test_a_completion_lists_the_likeliest_and_the_token_itself(client):
  choice = complete(client, logprobs=MOST).choices[0]
  scored = choice.logprobs
  tokens = [int(-x) for x in scored.token_logprobs]
  assert scored.top_logprobs == [by_text(token, MOST) for token in tokens]
  assert {token % 2 for token in tokens} == {0, 1}
  for text, own, listed in zip(
    scored.tokens, scored.token_logprobs, scored.top_logprobs
  ):
    assert listed[text] >= own
  assert complete(client, logprobs=0).choices[0].logprobs.top_logprobs is None
  fewer = complete(client, logprobs=1).choices[0].logprobs
  assert fewer.top_logprobs == [by_text(token, 1) for token in tokens]
  assert fewer.tokens == scored.tokens


def test_a_prompt_has_alternatives_too(client):
  for prompt in 'Once upon', [0, *b'Once upon']:
    scored = (
      complete(client, prompt, echo=True, logprobs=2, max_tokens=1)
      .choices[0]
      .logprobs
    )
    first = prompt == 'Once upon'
    tokens = [*b'Once upon']
    listed = scored.top_logprobs[0 if first else 1 : -1]
    assert listed == [by_text(token, 2) for token in tokens]
    assert first or scored.top_logprobs[0] is None
    own = scored.token_logprobs[-1]
    assert scored.top_logprobs[-1] == by_text(int(-own), 2)


def test_a_scored_prompt_comes_with_all_that_was_drawn(client, server):
  """Also with the token that ends it: clients drop as many as they ask for."""
  drawn = complete(client, echo=True, logprobs=1, max_tokens=1).choices[0]
  token = int(-drawn.logprobs.token_logprobs[-1])
  context = server.context
  context.ends, before = (token,), context.ends
  try:
    ended = complete(client, echo=True, logprobs=1, max_tokens=1).choices[0]
    plain = complete(client, logprobs=1, max_tokens=1).choices[0]
  finally:
    context.ends = before
  assert ended.finish_reason == 'stop' and ended.text == 'Once upon'
  assert ended.logprobs.token_logprobs == drawn.logprobs.token_logprobs
  assert ended.logprobs.top_logprobs == drawn.logprobs.top_logprobs
  assert not plain.logprobs.tokens


def test_a_chat_lists_the_likeliest(client):
  choice = chat(client, logprobs=True, top_logprobs=MOST).choices[0]
  for one in choice.logprobs.content:
    listed = [(x.token, x.logprob) for x in one.top_logprobs]
    assert dict(listed) == by_text(int(-one.logprob), MOST, own=False)
    assert [x for _, x in listed] == sorted(dict(listed).values())[::-1]
  plain = chat(client, logprobs=True).choices[0].logprobs.content
  assert all(one.top_logprobs == [] for one in plain)


@pytest.mark.parametrize('kind', ['chat', 'completion'])
def test_a_stream_has_the_alternatives_of_the_whole(client, kind):
  if kind == 'chat':
    ask = functools.partial(chat, client, logprobs=True, top_logprobs=2)
    whole = ask().choices[0].logprobs.content
    parts = [
      one
      for chunk in ask(stream=True)
      for choice in chunk.choices
      if choice.logprobs
      for one in choice.logprobs.content
    ]
  else:
    ask = functools.partial(complete, client, logprobs=2)
    whole = ask().choices[0].logprobs.top_logprobs
    parts = [
      one
      for chunk in ask(stream=True)
      for choice in chunk.choices
      if choice.logprobs
      for one in choice.logprobs.top_logprobs
    ]
  assert parts == whole and len(parts) > 3


def test_more_than_there_are_is_refused(client, tmp_path):
  words = f'={MOST + 1}: must be 0…{MOST} here; the server is started with'
  named = refusal(lambda: complete(client, logprobs=MOST + 1))
  assert named.startswith('logprobs: ') and words in named
  named = refusal(lambda: chat(client, logprobs=True, top_logprobs=MOST + 1))
  assert named.startswith('top_logprobs: ') and words in named
  assert 'needs logprobs' in refusal(lambda: chat(client, top_logprobs=1))
  guided = {'extra_body': {'guided': True}, 'logprobs': True}
  named = refusal(lambda: chat(client, top_logprobs=1, **guided))
  assert named.startswith('top_logprobs: ') and 'searched' in named
  assert 'less than or equal to 20' in refusal(
    lambda: complete(client, logprobs=21)
  )


def test_alternatives_of_an_answer_are_bounded_before_it_is_encoded(
  client, monkeypatch
):
  monkeypatch.setattr(parse, 'ALTERNATIVES', 100)
  assert complete(client, logprobs=3).choices
  for options in (
    {'logprobs': 3, 'max_tokens': 34},
    {'logprobs': 3, 'max_tokens': 17, 'n': 2},
    {'logprobs': 3, 'max_tokens': 1, 'prompt': [1] * 40, 'echo': True},
  ):
    call = functools.partial(complete, client, **options)
    assert 'at most 100' in refusal(call)
  with monkeypatch.context() as patch:
    patch.setattr(LETTERS.__class__, 'encode', None)
    many = {'logprobs': 3, 'max_tokens': 1, 'prompt': 'x' * 200, 'echo': True}
    assert 'at most 100' in refusal(lambda: complete(client, **many))
  named = refusal(
    lambda: chat(client, logprobs=True, top_logprobs=3, max_tokens=34)
  )
  assert 'at most 100' in named


def moderated(folder, reply):
  def engine(tokenizer):
    return world.Scripted(
      tokenizer,
      reply,
      moderated_server.scores,
      length=running.LENGTH,
      pages=2000,
      limits=admission.Limits(lease=30),
      alternatives=MOST,
    )

  return running.server(
    folder, engine=engine, moderator=moderated_server.Moderator(8)
  )


def test_a_moderated_server_gives_none_unless_its_operator_says_so(tmp_path):
  reply = b'ok zorbifex'
  asks = {'logprobs': True, 'top_logprobs': 2}
  scored = {'prompt': 'Hi', 'logprobs': 2, 'echo': True, 'max_tokens': 11}
  scored['model'] = running.MODEL
  with moderated(tmp_path, reply) as server:
    for path, body in (
      ('chat/completions', TALK | asks),
      ('completions', scored),
    ):
      asked = {'model': running.MODEL} | body
      status, error = server.refused('POST', f'/v1/{path}', asked, 'ann')
      assert status == 400 and 'logprobs' in error['param']
    server.context.shows_unjudged = True
    (choice,) = moderated_server.send(server, **asks)['choices']
    (prompted,) = server.post('/v1/completions', 'ann', **scored)['choices']
    refused = scored | {'prompt': 'Say zorbifex'}
    (blocked,) = server.post('/v1/completions', 'ann', **refused)['choices']
  listed = choice['logprobs']['content']
  assert ''.join(one['token'] for one in listed) == 'ok '
  assert [len(one['top_logprobs']) for one in listed] == [2] * 3
  assert len(prompted['logprobs']['top_logprobs']) == len('Hi') + len('ok ')
  assert blocked['logprobs'] is None


def test_a_reply_that_the_head_stops_leaves_its_prompts_scores(tmp_path):
  """The engine is ahead of what is judged, and has not ended by itself."""
  stopped, rounds = threading.Event(), itertools.count()
  reply = b'ok zorbifex' + b' and more' * 5

  def hold():
    if next(rounds) > 30:
      stopped.wait(20)

  with moderated(tmp_path, reply) as server:
    server.context.moderator.stopped = Stopped(stopped)
    server.engine.before_round = hold
    body = {'prompt': 'Hi', 'logprobs': 0, 'echo': True, 'max_tokens': 50}
    (choice,) = server.post(
      '/v1/completions', 'ann', model=running.MODEL, **body
    )['choices']
  assert choice['text'] == 'Hi' + 'ok '
  assert choice['finish_reason'] == 'content_filter'
  assert len(choice['logprobs']['token_logprobs']) == len('Hi' + 'ok ')


class Stopped(list):
  """What a head stopped; an event tells that there is some."""

  def __init__(self, event):
    super().__init__()
    self._event = event

  def append(self, one):
    super().append(one)
    self._event.set()


def test_alternatives_of_equal_text_are_one_the_likeliest():
  first, second = 150, 150 + 26  # Neither is a character: both read as one.
  text = LETTERS.decode([first])
  assert text == LETTERS.decode([second])
  for pairs in [(first, -1.0), (second, -2.0)], [(second, -2.0), (first, -1.0)]:
    event = request_lib.Event(first, '', -1.0, None, alternatives=(*pairs,))
    speller = stream.Speller(LETTERS)
    (entry,) = stream.chat_log_probabilities(speller, [event])['content']
    (listed,) = entry['top_logprobs']
    assert (listed['token'], listed['logprob']) == (text, -1.0)
    found = stream.text_log_probabilities(
      stream.Speller(LETTERS), [second], [-2.0], alternatives=[(*pairs,)]
    )
    assert found['top_logprobs'] == [{text: -1.0}]


# The addresses of lm-eval's client.


def test_text_is_encoded_and_decoded_as_the_model_does(server):
  said = server.get('/tokenizer_info')
  assert (said['bos_token'], said['eos_token']) == ('\0', '\0')
  found = server.post('/tokenize', prompt='Hé', add_special_tokens=False)
  assert found == {
    'count': 3,
    'max_model_len': 1024,
    'tokens': [*'Hé'.encode()],
  }
  assert server.post('/tokenize', prompt='H')['tokens'] == [0, ord('H')]
  for name in 'bos_token', 'eos_token':
    asked = {'prompt': said[name], 'add_special_tokens': False}
    assert server.post('/tokenize', **asked)['tokens'] == [0]
    assert server.post('/tokenize', prompt=said[name])['tokens'] == [0]
  assert server.post('/detokenize', tokens=[0, *b'Hi']) == {'prompt': 'Hi'}
  assert server.post('/detokenize', tokens=[]) == {'prompt': ''}

"""`top_logprobs`, and the addresses that encode text, over real sockets."""

import functools
import itertools
import threading

import openai
import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import stream
from tests.decoding import fake_device
from tests.serving import running
from tests.serving import world
from tests.serving.routes import moderated

MOST = 3
LETTERS = running.Letters()


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  kind = functools.partial(world.Engine, alternatives=MOST)
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, kind=kind) as server:
    yield server


def complete(client, **options):
  body = running.complete('Once upon', max_tokens=9) | options
  return client.completions.create(**body)


def chat(client, **options):
  extra = {x: options.pop(x) for x in ('guided',) if x in options}
  body = running.chat(logprobs=True) | options
  return client.chat.completions.create(extra_body=extra, **body)


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


def test_a_completion_lists_the_likeliest_and_the_token_itself(client):
  scored = complete(client, logprobs=MOST).choices[0].logprobs
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


@pytest.mark.parametrize('prompt', ['Once upon', [0, *b'Once upon']])
def test_a_prompt_has_alternatives_too(client, prompt):
  options = {'prompt': prompt, 'echo': True, 'logprobs': 2, 'max_tokens': 1}
  scored = complete(client, **options).choices[0].logprobs
  *listed, drawn = scored.top_logprobs
  if isinstance(prompt, list):
    assert listed.pop(0) is None
  assert listed == [by_text(token, 2) for token in b'Once upon']
  assert drawn == by_text(int(-scored.token_logprobs[-1]), 2)


def test_a_scored_prompt_comes_with_all_that_was_drawn(
  client, server, monkeypatch
):
  """Also with the token that ends it: clients drop as many as they ask for."""
  ask = functools.partial(complete, client, logprobs=1, max_tokens=1)
  drawn = ask(echo=True).choices[0]
  token = int(-drawn.logprobs.token_logprobs[-1])
  monkeypatch.setattr(server.context, 'ends', (token,))
  ended = ask(echo=True).choices[0]
  assert ended.finish_reason == 'stop' and ended.text == 'Once upon'
  assert ended.logprobs.token_logprobs == drawn.logprobs.token_logprobs
  assert ended.logprobs.top_logprobs == drawn.logprobs.top_logprobs
  assert not ask().choices[0].logprobs.tokens


def test_a_chat_lists_the_likeliest(client):
  for one in chat(client, top_logprobs=MOST).choices[0].logprobs.content:
    listed = [(x.token, x.logprob) for x in one.top_logprobs]
    assert dict(listed) == by_text(int(-one.logprob), MOST, own=False)
    assert [x for _, x in listed] == sorted(dict(listed).values())[::-1]
  plain = chat(client).choices[0].logprobs.content
  assert all(one.top_logprobs == [] for one in plain)


@pytest.mark.parametrize(
  'ask, options, name',
  [
    (chat, {'top_logprobs': 2}, 'content'),
    (complete, {'logprobs': 2}, 'top_logprobs'),
  ],
)
def test_a_stream_has_the_alternatives_of_the_whole(client, ask, options, name):
  whole = getattr(ask(client, **options).choices[0].logprobs, name)
  parts = [
    one
    for chunk in ask(client, stream=True, **options)
    for choice in chunk.choices
    if choice.logprobs
    for one in getattr(choice.logprobs, name)
  ]
  assert parts == whole and len(parts) > 3


@pytest.mark.parametrize(
  'ask, param, options',
  [
    (complete, 'logprobs', {'logprobs': MOST + 1}),
    (complete, 'logprobs', {'logprobs': 21}),
    (chat, 'top_logprobs', {'top_logprobs': MOST + 1}),
    (chat, 'top_logprobs', {'top_logprobs': 1, 'logprobs': None}),
    (chat, 'top_logprobs', {'top_logprobs': 1, 'guided': True}),
    # So many of an answer, before it is encoded.
    (complete, 'logprobs', {'logprobs': 3, 'max_tokens': 34}),
    (complete, 'logprobs', {'logprobs': 3, 'max_tokens': 17, 'n': 2}),
    (complete, 'logprobs', {'logprobs': 3, 'prompt': [1] * 40, 'echo': True}),
    (complete, 'logprobs', {'logprobs': 3, 'prompt': 'x' * 200, 'echo': True}),
    (chat, 'top_logprobs', {'top_logprobs': 3, 'max_tokens': 34}),
  ],
)
def test_more_than_there_are_is_refused(
  client, monkeypatch, ask, param, options
):
  monkeypatch.setattr(parse, 'ALTERNATIVES', 100)
  assert complete(client, logprobs=3).choices
  if options.get('echo'):
    monkeypatch.setattr(running.Letters, 'encode', None)
  with pytest.raises(openai.BadRequestError) as caught:
    ask(client, **options)
  assert caught.value.param == param


def test_a_moderated_server_gives_none_unless_its_operator_says_so(tmp_path):
  asks = {'logprobs': True, 'top_logprobs': 2}
  scored = {'logprobs': 2, 'echo': True, 'max_tokens': 11}
  reply = b'ok zorbifex'
  with moderated.served(tmp_path, reply, alternatives=MOST) as server:
    for path, body in (
      (running.CHAT, running.chat(**asks)),
      (running.TEXT, running.complete(**scored)),
    ):
      status, error = server.refused('POST', path, body, 'ann')
      assert status == 400 and 'logprobs' in error['param']
    server.context.shows_unjudged = True
    (choice,) = server.chat(**asks)['choices']
    (prompted,) = server.complete('Hi', **scored)['choices']
    (blocked,) = server.complete('Say zorbifex', **scored)['choices']
  listed = choice['logprobs']['content']
  assert ''.join(one['token'] for one in listed) == 'ok '
  assert [len(one['top_logprobs']) for one in listed] == [2] * 3
  assert len(prompted['logprobs']['top_logprobs']) == len('Hi') + len('ok ')
  assert blocked['logprobs'] is None


def test_a_reply_that_the_head_stops_leaves_its_prompts_scores(
  tmp_path, monkeypatch
):
  """The engine is ahead of what is judged, and has not ended by itself."""
  stopped, rounds = threading.Event(), itertools.count()

  def hold():
    if next(rounds) > 30:
      stopped.wait(20)

  reply = b'ok zorbifex' + b' and more' * 5
  moderator = moderated.Moderator(8)
  moderator.stopped = type('', (), {'append': lambda _, one: stopped.set()})()
  with moderated.served(tmp_path, reply, moderator=moderator) as server:
    server.engine.before_round = hold
    options = {'logprobs': 0, 'echo': True, 'max_tokens': 50}
    (choice,) = server.complete('Hi', **options)['choices']
  assert choice['text'] == 'Hi' + 'ok '
  assert choice['finish_reason'] == 'content_filter'
  assert len(choice['logprobs']['token_logprobs']) == len('Hi' + 'ok ')


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

  def encoded(text, **options):
    return server.post('/tokenize', prompt=text, **options)['tokens']

  plain = {'add_special_tokens': False}
  found = server.post('/tokenize', prompt='Hé', **plain)
  tokens = [*'Hé'.encode()]
  assert found == {'count': 3, 'max_model_len': 1024, 'tokens': tokens}
  assert encoded('H') == [0, ord('H')]
  assert encoded('\0') == encoded('\0', **plain) == [0]
  assert server.post('/detokenize', tokens=[0, *b'Hi']) == {'prompt': 'Hi'}
  assert server.post('/detokenize', tokens=[]) == {'prompt': ''}

"""The openai client, unmodified, against a server over real sockets."""

import asyncio
import time

import openai
import pytest

from tests.serving import running

MODEL = running.MODEL
HELLO = running.said('Hello there')


def chat(client, messages=HELLO, **options):
  options = {'model': MODEL, 'max_tokens': 20, 'seed': 1} | options
  return client.chat.completions.create(messages=messages, **options)


def complete(client, prompt='Once upon', **options):
  options = {'model': MODEL, 'max_tokens': 20, 'seed': 1} | options
  return client.completions.create(prompt=prompt, **options)


def read(answer):
  """Returns (text, reason, scored tokens) of each choice, also of a stream."""
  found = {}
  for part in answer if isinstance(answer, openai.Stream) else [answer]:
    for one in part.choices:
      text, reason, scored = found.get(one.index, ('', None, []))
      said = getattr(one, 'message', None) or getattr(one, 'delta', None)
      text += (said.content if said else one.text) or ''
      if one.logprobs and said:
        scored = scored + [(x.token, x.logprob) for x in one.logprobs.content]
      elif one.logprobs:
        listed = one.logprobs
        scored = scored + list(
          zip(listed.tokens, listed.token_logprobs, listed.text_offset)
        )
      found[one.index] = text, one.finish_reason or reason, scored
  return found


def text_of(answer):
  return read(answer)[0][0]


def cached(usage):
  return usage.prompt_tokens_details.cached_tokens


# Models.


def test_models_list_the_model_and_it_with_each_character(client):
  names = [model.id for model in client.models.list()]
  with_character = f'{MODEL}/{running.CHARACTER}'
  assert names[0] == MODEL and with_character in names
  for name in MODEL, with_character:
    assert client.models.retrieve(name).id == name
  for name in 'gpt-4', f'{MODEL}/nobody', f'{MODEL}x':
    with pytest.raises(openai.NotFoundError):
      client.models.retrieve(name)


# Choices.


def test_a_chat_has_a_message_a_reason_and_its_usage(client):
  answer = chat(client)
  (choice,) = answer.choices
  assert choice.message.role == 'assistant' and choice.message.content
  assert choice.finish_reason in ('stop', 'length')
  used = answer.usage
  assert used.total_tokens == used.prompt_tokens + used.completion_tokens
  assert answer.model == MODEL and answer.object == 'chat.completion'


@pytest.mark.parametrize(
  'ask, options',
  [
    (chat, {}),
    (chat, {'n': 3}),
    (chat, {'logprobs': True}),
    (complete, {}),
    (complete, {'n': 2, 'prompt': ['Once', 'Later']}),
    (complete, {'echo': True}),
    (complete, {'logprobs': 0}),
  ],
)
def test_a_stream_has_what_the_whole_answer_has(client, ask, options):
  whole = read(ask(client, **options))
  assert read(ask(client, stream=True, **options)) == whole
  for text, reason, scored in whole.values():
    assert text and reason
    if 'logprobs' in options:
      assert ''.join(one[0] for one in scored) == text and len(scored) > 3
      # The stand-in of the device gives each token minus its number.
      assert all(
        running.Letters().decode([int(-one[1])]) == one[0] for one in scored
      )
  if ask is complete and 'logprobs' in options:
    offsets = [one[2] for one in scored]
    assert offsets[:2] == [0, len(scored[0][0])] and offsets == sorted(offsets)


def test_a_seed_repeats_an_answer_and_another_changes_it(client):
  found = [
    text_of(chat(client, seed=seed, max_tokens=30))
    for seed in (5, 5, 6, *[openai.omit] * 4)
  ]
  assert found[0] == found[1] != found[2]
  assert len(set(found[3:])) > 1


def test_choices_have_the_seeds_that_follow(client):
  several = chat(client, n=3)
  for index, (text, *_) in read(several).items():
    alone = chat(client, seed=1 + index)
    assert text_of(alone) == text
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens
  several = complete(client, ['Once upon', 'Later'], n=2)
  assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
  first, later = complete(client), complete(client, 'Later', seed=2)
  texts = read(several)
  assert (texts[0], texts[3]) == (read(first)[0], read(later)[0])
  used = [one.usage.prompt_tokens for one in (first, later)]
  assert several.usage.prompt_tokens == sum(used)


def test_max_tokens_ends_an_answer(client):
  for name in 'max_tokens', 'max_completion_tokens':
    limits = {'max_tokens': openai.omit, name: 4}
    for seed in range(20):
      answer = chat(client, seed=seed, **limits)
      if answer.choices[0].finish_reason == 'length':
        break
    assert answer.usage.completion_tokens == 4


@pytest.mark.parametrize('is_streamed', [False, True])
@pytest.mark.parametrize('ask, scores', [(chat, True), (complete, 0)])
def test_a_stop_string_ends_an_answer_and_is_not_shown(
  client, ask, scores, is_streamed
):
  whole = text_of(ask(client))
  stop = whole[3:6]
  for stops in stop, [stop, 'never there']:
    options = {'stop': stops, 'logprobs': scores, 'stream': is_streamed}
    ((text, reason, scored),) = read(ask(client, **options)).values()
    assert (text, reason) == (whole[: whole.index(stop)], 'stop')
    assert ''.join(one[0] for one in scored) == text


def test_usage_comes_with_a_stream_where_it_is_asked_for(client):
  whole = chat(client)
  options = {'stream': True, 'stream_options': {'include_usage': True}}
  *_, last = chat(client, **options)
  assert last.choices == []
  assert last.usage.completion_tokens == whole.usage.completion_tokens
  assert all(chunk.usage is None for chunk in chat(client, stream=True))


def test_messages_may_come_in_parts_and_from_developers(client):
  parts = [{'type': 'text', 'text': x} for x in ('Hello ', 'there')]
  whole = text_of(chat(client))
  assert text_of(chat(client, [{'role': 'user', 'content': parts}])) == whole
  system, developer = (
    text_of(chat(client, [*running.said('Be brief.', role=role), *HELLO]))
    for role in ('system', 'developer')
  )
  assert system == developer != whole


# Prompts.


def test_echo_puts_the_scored_prompt_before_the_answer(client):
  text = text_of(complete(client))
  ((echoed, _, scored),) = read(
    complete(client, echo=True, logprobs=0)
  ).values()
  assert echoed == 'Once upon' + text
  assert ''.join(one[0] for one in scored) == echoed
  scores = [one[1] for one in scored[: len('Once upon')]]
  assert scores == [-float(x) for x in b'Once upon']


def test_a_prompt_may_be_tokens(client):
  tokens = [0, *b'Once upon']
  assert complete(client, tokens).choices == complete(client).choices


def test_a_prompt_and_a_history_that_came_before_are_reused(client):
  messages = running.said('Something quite new ' * 3)
  first, second = (chat(client, messages) for _ in range(2))
  assert cached(first.usage) < 10
  assert cached(second.usage) >= 0.9 * second.usage.prompt_tokens
  messages += running.said(text_of(first), role='assistant')
  usage = chat(client, [*messages, *running.said('And then?')]).usage
  assert cached(usage) >= 0.7 * usage.prompt_tokens


def test_a_character_stands_before_a_chat(client, server):
  plain = chat(client)
  extra = {'character': running.CHARACTER}
  played = chat(client, extra_body=extra)
  assert played.usage.prompt_tokens > plain.usage.prompt_tokens + 50
  by_name = chat(client, model=f'{MODEL}/{running.CHARACTER}')
  assert by_name.choices[0].message == played.choices[0].message
  # A second user's first turn reuses the character, and nothing that the first
  # one said.
  with server.client('ben') as ben:
    assert cached(chat(ben, extra_body=extra).usage) >= server.prefix_length
    assert cached(chat(ben).usage) == 0


def test_a_session_remembers_and_a_swipe_is_another_reply(client, server):
  session = server.post('/v1/sessions', character=running.CHARACTER)['id']
  extra = {'session': session}
  first = chat(client, extra_body=extra)
  second = chat(client, running.said('Go on'), extra_body=extra)
  assert second.usage.prompt_tokens > first.usage.prompt_tokens
  swiped = chat(client, [], extra_body=extra | {'swipe': True}, seed=9)
  kept = server.get(f'/v1/sessions/{session}')
  *_, one, two, three, reply, swipe = kept['messages']
  roles = [message['role'] for message in (one, two, three, reply, swipe)]
  assert roles == ['user', 'assistant', 'user', 'assistant', 'assistant']
  assert reply['parent'] == swipe['parent'] and kept['head'] == swipe['id']
  assert reply['text'] == text_of(second) and swipe['text'] == text_of(swiped)
  assert cached(swiped.usage) >= 0.95 * swiped.usage.prompt_tokens


# Who may ask, and how much.


def test_an_engine_that_is_too_busy_says_when_to_come_again(tmp_path):
  with (
    running.server(tmp_path, queue=1, rows=1, pause=0.1) as server,
    server.client('ann') as ann,
  ):
    running_streams = []
    for waiting in 0, 1:  # One has the row, and one waits for it.
      running_streams.append(chat(ann, stream=True, max_tokens=200))
      while len(server.engine.state.waiting) != waiting:
        time.sleep(0.005)
    with pytest.raises(openai.RateLimitError) as caught:
      chat(ann)
    assert int(caught.value.response.headers['retry-after']) >= 1
    for stream in running_streams:
      stream.close()
    assert server.is_idle_soon()


async def test_eight_asynchronous_streams_each_get_their_own_text(
  client, server
):
  async def one(client, seed):
    stream = await client.chat.completions.create(
      model=MODEL, messages=HELLO, max_tokens=30, seed=seed, stream=True
    )
    texts = [
      chunk.choices[0].delta.content or ''
      async for chunk in stream
      if chunk.choices
    ]
    return ''.join(texts)

  async with openai.AsyncOpenAI(
    base_url=f'{server.address}/v1', api_key='none', max_retries=0
  ) as asynchronous:
    texts = await asyncio.gather(*(one(asynchronous, x) for x in range(8)))
  for seed, text in enumerate(texts):
    assert text_of(chat(client, seed=seed, max_tokens=30)) == text

"""The openai client, unmodified, against a server over real sockets."""

import asyncio
import time

import openai
import pytest

from tests.serving import running

MODEL = running.MODEL
HELLO = [{'role': 'user', 'content': 'Hello there'}]


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


@pytest.fixture(scope='module')
def client(server):
  with openai.OpenAI(
    base_url=f'{server.address}/v1', api_key='none', max_retries=0
  ) as client:
    yield client


def chat(client, messages=HELLO, **options):
  options = {'model': MODEL, 'max_tokens': 20, 'seed': 1} | options
  return client.chat.completions.create(messages=messages, **options)


def complete(client, prompt='Once upon', **options):
  options = {'model': MODEL, 'max_tokens': 20, 'seed': 1} | options
  return client.completions.create(prompt=prompt, **options)


def texts(stream):
  """Returns the choices' texts and reasons, and the last chunk."""
  found, reasons, last = {}, {}, None
  for chunk in stream:
    last = chunk
    for choice in chunk.choices:
      piece = choice.delta.content if hasattr(choice, 'delta') else choice.text
      found[choice.index] = found.get(choice.index, '') + (piece or '')
      reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
  return found, reasons, last


# Models.


def test_models_list_the_model_and_it_with_each_character(client):
  names = [model.id for model in client.models.list()]
  assert names[0] == MODEL
  assert f'{MODEL}/{running.CHARACTER}' in names


def test_a_model_is_found_by_its_name(client):
  assert client.models.retrieve(MODEL).id == MODEL
  name = f'{MODEL}/{running.CHARACTER}'
  assert client.models.retrieve(name).id == name


def test_an_unknown_model_or_character_is_404(client):
  for name in 'gpt-4', f'{MODEL}/nobody', f'{MODEL}x':
    with pytest.raises(openai.NotFoundError):
      client.models.retrieve(name)
    with pytest.raises(openai.NotFoundError):
      chat(client, model=name)


# Chat.


def test_a_chat_has_a_message_a_reason_and_its_usage(client):
  answer = chat(client)
  (choice,) = answer.choices
  assert choice.message.role == 'assistant' and choice.message.content
  assert choice.finish_reason in ('stop', 'length')
  used = answer.usage
  assert used.total_tokens == used.prompt_tokens + used.completion_tokens
  assert answer.model == MODEL and answer.object == 'chat.completion'


def test_a_stream_has_the_text_of_the_whole_answer(client):
  whole = chat(client).choices[0]
  found, reasons, _ = texts(chat(client, stream=True))
  assert found == {0: whole.message.content}
  assert reasons == {0: whole.finish_reason}


def test_a_seed_repeats_an_answer_and_another_changes_it(client):
  answers = [
    chat(client, seed=seed, max_tokens=30).choices[0].message.content
    for seed in (5, 5, 6)
  ]
  assert answers[0] == answers[1] != answers[2]


def test_without_a_seed_answers_differ(client):
  answers = {
    chat(client, seed=openai.omit, max_tokens=30).choices[0].message.content
    for _ in range(4)
  }
  assert len(answers) > 1


def test_n_choices_have_the_seeds_that_follow(client):
  several = chat(client, n=3)
  assert [choice.index for choice in several.choices] == [0, 1, 2]
  for index, choice in enumerate(several.choices):
    alone = chat(client, seed=1 + index)
    assert choice.message.content == alone.choices[0].message.content
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens


def test_n_choices_stream_side_by_side(client):
  whole = chat(client, n=3)
  found, reasons, _ = texts(chat(client, n=3, stream=True))
  assert found == {
    choice.index: choice.message.content for choice in whole.choices
  }
  assert all(reasons.values())


def test_max_tokens_ends_an_answer(client):
  for name in 'max_tokens', 'max_completion_tokens':
    limits = {'max_tokens': openai.omit, name: 4}
    for seed in range(20):
      answer = chat(client, seed=seed, **limits)
      if answer.choices[0].finish_reason == 'length':
        break
    assert answer.usage.completion_tokens == 4


def test_a_stop_string_ends_an_answer_and_is_not_shown(client):
  whole = chat(client).choices[0].message.content
  stop = whole[3:5]
  for strings in stop, [stop, 'never there']:
    answer = chat(client, stop=strings).choices[0]
    assert answer.message.content == whole[: whole.index(stop)]
    assert answer.finish_reason == 'stop'


@pytest.mark.parametrize('is_streamed', [False, True])
def test_log_probabilities_list_no_token_of_a_stop_string(client, is_streamed):
  whole = chat(client).choices[0].message.content
  stop = whole[3:6]
  answer = chat(client, stop=stop, logprobs=True, stream=is_streamed)
  text, tokens = '', []
  for one in answer if is_streamed else [answer]:
    choice = one.choices[0]
    text += (choice.delta if is_streamed else choice.message).content or ''
    if choice.logprobs:
      tokens += [token.token for token in choice.logprobs.content]
  assert text == whole[: whole.index(stop)] == ''.join(tokens)

  whole = complete(client).choices[0].text
  stop = whole[3:6]
  answer = complete(client, logprobs=0, stop=stop, stream=is_streamed)
  text, tokens = '', []
  for one in answer if is_streamed else [answer]:
    text += one.choices[0].text
    if one.choices[0].logprobs:
      tokens += one.choices[0].logprobs.tokens
  assert text == whole[: whole.index(stop)] == ''.join(tokens)


def test_log_probabilities_are_those_of_the_drawn_tokens(client):
  whole = chat(client, logprobs=True).choices[0]
  tokens = whole.logprobs.content
  assert ''.join(x.token for x in tokens) == whole.message.content
  # The stand-in of the device gives each token minus its number.
  for token in tokens:
    assert token.logprob == -running.number(token)


def test_a_stream_carries_the_same_log_probabilities(client):
  whole = chat(client, logprobs=True).choices[0].logprobs.content
  streamed = [
    token
    for chunk in chat(client, logprobs=True, stream=True)
    for choice in chunk.choices
    if choice.logprobs
    for token in choice.logprobs.content
  ]
  assert streamed == whole


def test_usage_comes_with_a_stream_where_it_is_asked_for(client):
  whole = chat(client)
  options = {'stream': True, 'stream_options': {'include_usage': True}}
  *_, last = chat(client, **options)
  assert last.choices == []
  assert last.usage.completion_tokens == whole.usage.completion_tokens
  assert all(chunk.usage is None for chunk in chat(client, stream=True))


def test_a_prompt_that_came_before_is_reused(client):
  messages = [{'role': 'user', 'content': 'Something quite new ' * 3}]
  first, second = (chat(client, messages).usage for _ in range(2))
  assert first.prompt_tokens_details.cached_tokens < 10
  reused = second.prompt_tokens_details.cached_tokens
  assert reused >= 0.9 * second.prompt_tokens


def test_a_history_sent_back_as_text_is_reused(client):
  messages = [{'role': 'user', 'content': 'Tell me of the quiet sea. ' * 3}]
  said = chat(client, messages).choices[0].message
  messages += [
    {'role': 'assistant', 'content': said.content},
    {'role': 'user', 'content': 'And then?'},
  ]
  usage = chat(client, messages).usage
  assert usage.prompt_tokens_details.cached_tokens >= 0.7 * usage.prompt_tokens


def test_messages_may_come_in_parts_and_from_developers(client):
  parts = [{'type': 'text', 'text': x} for x in ('Hello ', 'there')]
  whole = chat(client).choices[0].message.content
  of_parts = chat(client, [{'role': 'user', 'content': parts}])
  assert of_parts.choices[0].message.content == whole
  roles = [
    chat(client, [{'role': role, 'content': 'Be brief.'}, *HELLO])
    .choices[0]
    .message.content
    for role in ('system', 'developer')
  ]
  assert roles[0] == roles[1] != whole


def test_a_chat_that_is_too_long_is_refused_as_such(client):
  messages = [{'role': 'user', 'content': 'x' * 5000}]
  greeting = {'extra_body': {'character': running.CHARACTER}}
  for ask in (
    lambda: chat(client, messages),
    lambda: chat(client, messages, **greeting),
    lambda: chat(client, max_tokens=running.LENGTH),
    lambda: complete(client, 'x' * 5000),
    lambda: complete(client, max_tokens=running.LENGTH),
  ):
    with pytest.raises(openai.BadRequestError) as caught:
      ask()
    assert caught.value.code == 'context_length_exceeded'
    # LiteLLM knows it by these words.
    said = "This model's maximum context length is 1024 tokens."
    assert said in caught.value.message


def test_sampling_fields_of_other_servers_are_taken(client):
  extra = {'top_k': 5, 'min_p': 0.1, 'repetition_penalty': 1.2}
  assert chat(client, extra_body=extra).choices[0].message.content


# Completions.


def test_a_completion_and_its_stream_agree(client):
  whole = complete(client).choices[0]
  found, reasons, _ = texts(complete(client, stream=True))
  assert found == {0: whole.text} and reasons == {0: whole.finish_reason}


def test_echo_scores_the_prompt(client):
  choice = complete(client, echo=True, logprobs=0).choices[0]
  assert ''.join(choice.logprobs.tokens) == choice.text
  scores = choice.logprobs.token_logprobs[: len('Once upon')]
  assert scores == [-float(x) for x in b'Once upon']


def test_echo_puts_the_prompt_before_the_answer(client):
  text = complete(client).choices[0].text
  assert complete(client, echo=True).choices[0].text == 'Once upon' + text
  found, _, _ = texts(complete(client, echo=True, stream=True))
  assert found == {0: 'Once upon' + text}


def test_the_offsets_of_a_stream_run_on(client):
  whole = complete(client, logprobs=0).choices[0]
  found = [
    offset
    for chunk in complete(client, logprobs=0, stream=True)
    for choice in chunk.choices
    if choice.logprobs
    for offset in choice.logprobs.text_offset
  ]
  assert found == whole.logprobs.text_offset and len(found) > 3


def test_several_prompts_have_n_choices_each(client):
  answer = complete(client, ['Once upon', 'Later'], n=2)
  assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
  first, later = complete(client), complete(client, 'Later', seed=2)
  assert answer.choices[0].text == first.choices[0].text
  assert answer.choices[3].text == later.choices[0].text
  used = [one.usage.prompt_tokens for one in (first, later)]
  assert answer.usage.prompt_tokens == sum(used)


def test_a_prompt_may_be_tokens(client):
  tokens = [0, *b'Once upon']
  assert complete(client, tokens).choices == complete(client).choices


def test_log_probabilities_of_a_completion_have_offsets(client):
  choice = complete(client, logprobs=0).choices[0]
  scored = choice.logprobs
  assert ''.join(scored.tokens) == choice.text
  assert scored.text_offset[1] == len(scored.tokens[0])
  assert len(scored.token_logprobs) == len(scored.tokens)


# Characters and conversations.


def test_a_character_stands_before_a_chat(client):
  plain = chat(client)
  extra = {'character': running.CHARACTER}
  played = chat(client, extra_body=extra)
  assert played.usage.prompt_tokens > plain.usage.prompt_tokens + 50
  by_name = chat(client, model=f'{MODEL}/{running.CHARACTER}')
  assert by_name.choices[0].message == played.choices[0].message


def test_a_session_remembers_and_a_swipe_is_another_reply(client, server):
  session = server.post('/v1/sessions', character=running.CHARACTER)
  extra = {'session': session['id']}
  first = chat(client, extra_body=extra)
  second = chat(
    client, [{'role': 'user', 'content': 'Go on'}], extra_body=extra
  )
  assert second.usage.prompt_tokens > first.usage.prompt_tokens
  swiped = chat(client, [], extra_body=extra | {'swipe': True}, seed=9)
  kept = server.get(f'/v1/sessions/{session["id"]}')
  roles = [message['role'] for message in kept['messages']]
  greetings = roles.index('user')
  assert roles[greetings:] == [
    'user',
    'assistant',
    'user',
    'assistant',
    'assistant',
  ]
  *_, reply, swipe = kept['messages']
  assert reply['parent'] == swipe['parent'] and kept['head'] == swipe['id']
  assert reply['text'] == second.choices[0].message.content
  assert swipe['text'] == swiped.choices[0].message.content
  details = swiped.usage.prompt_tokens_details
  assert details.cached_tokens >= 0.95 * swiped.usage.prompt_tokens


def test_a_second_users_first_turn_reuses_the_character(server, client):
  extra = {'character': running.CHARACTER}
  chat(client, extra_body=extra)
  with server.client('ben') as ben:
    usage = chat(ben, extra_body=extra).usage
    alone = chat(ben, [{'role': 'user', 'content': 'Hello there'}]).usage
  cached = usage.prompt_tokens_details.cached_tokens
  assert cached >= server.prefix_length
  # What the first user said serves nobody but them.
  assert alone.prompt_tokens_details.cached_tokens == 0


# Who may ask, and how much.


def test_tokens_open_a_server_that_is_closed(tmp_path):
  with running.server(tmp_path, is_open=False) as server:
    for key in 'none', 'kaiju-wrong':
      with (
        openai.OpenAI(
          base_url=f'{server.address}/v1', api_key=key, max_retries=0
        ) as stranger,
        pytest.raises(openai.AuthenticationError),
      ):
        chat(stranger)
    with server.client('ann') as ann:
      assert chat(ann).choices


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


def test_eight_asynchronous_streams_each_get_their_own_text(server):
  async def one(client, seed):
    stream = await client.chat.completions.create(
      model=MODEL, messages=HELLO, max_tokens=30, seed=seed, stream=True
    )
    return ''.join(
      [
        chunk.choices[0].delta.content or ''
        async for chunk in stream
        if chunk.choices
      ]
    )

  async def main():
    async with openai.AsyncOpenAI(
      base_url=f'{server.address}/v1', api_key='none', max_retries=0
    ) as client:
      return await asyncio.gather(*(one(client, seed) for seed in range(8)))

  found = asyncio.run(main())
  with openai.OpenAI(
    base_url=f'{server.address}/v1', api_key='none', max_retries=0
  ) as client:
    for seed, text in enumerate(found):
      alone = chat(client, seed=seed, max_tokens=30).choices[0]
      assert alone.message.content == text


def test_a_stream_that_is_closed_early_frees_its_row(client, server):
  stream = chat(client, stream=True, max_tokens=400)
  next(iter(stream))
  stream.close()
  assert server.is_idle_soon()

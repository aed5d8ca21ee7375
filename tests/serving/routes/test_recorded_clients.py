"""What real clients send is answered, and the answer is taken back.

Most bodies were recorded between the client and this server, or a stand-in of
it. Those of SillyTavern and Open WebUI are written from the sources that build
them.
"""

import functools

import pytest

from kaiju_jax.decoding.engine import admission
from tests.serving import running
from tests.serving import world

CHAT, TEXT = running.CHAT, running.TEXT
BRIEF, START = running.said('Be brief.', '[Start a new Chat]', role='system')
HELLO, AND = running.said('Hello', 'And?')
USAGE = {'stream': True, 'stream_options': {'include_usage': True}}
COUNTED = {
  'stream': True,
  'stream_options': {'include_usage': True, 'continuous_usage_stats': True},
}


def chat(*messages, **fields):
  return CHAT, {'messages': [*messages], **fields}


def text(prompt, **fields):
  return TEXT, {'prompt': prompt, **fields}


def replied(**extra):
  return {'content': 'Hi there', 'role': 'assistant'} | extra


def parts(role, text, **extra):
  return {'role': role, 'content': [{'type': 'text', 'text': text, **extra}]}


# As openai-python's `model_dump` writes a reply.
DUMPED = replied(refusal=None) | dict.fromkeys(
  ('annotations', 'audio', 'function_call', 'tool_calls')
)
PENALTIES = {'presence_penalty': 0, 'frequency_penalty': 0}
TAVERN = PENALTIES | {'temperature': 1, 'max_tokens': 30, 'top_p': 1}
# By the client and its version.
CLIENTS = {
  'openai-python 3.57.0': [
    chat(BRIEF, HELLO, max_completion_tokens=8),
    chat(BRIEF, HELLO, DUMPED, AND),
    # The replies of `stream` and of `parse`.
    chat(HELLO, DUMPED | {'parsed': None}, AND, **USAGE),
    chat(HELLO, replied(tool_calls=None, parsed=None), AND, stream=False),
    text('Once', max_tokens=5),
  ],
  'litellm 1.110.2': [
    chat(BRIEF, HELLO, replied(), AND, temperature=0.5, **USAGE),
    chat(parts('system', 'Long', cache_control={'type': 'ephemeral'}), HELLO),
    chat(HELLO, replied(prefix=True), max_tokens=5),
    chat(
      HELLO,
      **PENALTIES,
      n=2,
      stop=['q'],
      max_tokens=5,
      response_format={'type': 'text'},
      logprobs=True,
      reasoning_effort='none',
    ),
  ],
  'langchain-openai 1.7.4': [
    chat(BRIEF, HELLO, replied(), parts('user', 'And?'), stream=False),
    chat(HELLO, replied(), AND, max_completion_tokens=9, **USAGE),
    text(['Once'], **PENALTIES, logprobs=None, max_tokens=9, n=1, seed=None),
  ],
  'guidellm 0.8.1': [
    ('/health', None),
    chat(parts('user', 'How are you?'), **COUNTED),
    text('How are you?', **COUNTED),
    # From its source: a data set that says how long replies are.
    chat(HELLO, **COUNTED, max_completion_tokens=9, stop=None, ignore_eos=True),
  ],
  'lm-eval 0.4.13': [
    ('/tokenizer_info', None),
    ('/tokenize', {'prompt': 'Once upon', 'add_special_tokens': False}),
    chat(HELLO, max_tokens=16, temperature=0.0, stop=['\n\n', 'Q:'], seed=1234),
    text([[*b'Once upon']], temperature=0, max_tokens=1, logprobs=1, echo=True),
    text([[*b'Once']], max_tokens=6, stop=['\n\n', '\x00'], seed=1234),
  ],
  # From src/endpoints/backends/chat-completions.js, source 'custom'; the
  # prompts are those of the default preset.
  'sillytavern 1.13': [
    chat(START, BRIEF | {'name': 'example_user'}, HELLO, **TAVERN, stream=True),
    # Instructions behind a chat, and "Continue" with a prefill.
    chat(START, replied(), HELLO, BRIEF, **TAVERN, stop=['\nUser:']),
    chat(START, HELLO, replied(), **TAVERN, stream=True),
    chat(
      START, HELLO, **TAVERN, logit_bias={}, top_k=0, stop=[], logprobs=False
    ),
  ],
  # From backend/open_webui/routers/openai.py and utils/task.py: a chat, its
  # next turn, and the title.
  'open-webui 0.6': [
    ('/v1/models', None),
    chat(HELLO, stream=True, **TAVERN, min_p=0.0, top_k=40, logit_bias={}),
    chat(BRIEF, HELLO, replied(), AND, **USAGE),
    chat(HELLO, stream=False, max_completion_tokens=50),
  ],
}


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  made = functools.partial(
    world.Engine,
    length=running.LENGTH,
    pages=2000,
    limits=admission.Limits(lease=30),
    alternatives=1,
  )
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, engine=made) as server:
    yield server


def said_in(answer):
  """Returns the first reply of an answer, whole or streamed, as a message."""
  if isinstance(answer, dict):
    return answer['choices'][0]['message']
  message = {'content': ''}
  for event in running.events(answer):
    for choice in event['choices']:
      delta = dict(choice['delta'])
      message['content'] += delta.pop('content', None) or ''
      message |= delta
  return message


@pytest.mark.parametrize('client', CLIENTS)
def test_what_a_client_sends_is_answered_and_its_answer_taken_back(
  server, client
):
  for path, body in CLIENTS[client]:
    if body is None:
      assert server.get(path, owner='ann')
      continue
    body = {'model': running.MODEL} | body
    answer = server.post(path, 'ann', **body)
    if path == CHAT:
      message = said_in(answer)
      assert message['role'] == 'assistant', body
      # Clients keep a reply whole, or its text alone.
      for kept in message, replied(content=message['content']):
        more = body | {'messages': [*body['messages'], kept, AND]}
        assert said_in(server.post(path, 'ann', **more))['role'] == 'assistant'

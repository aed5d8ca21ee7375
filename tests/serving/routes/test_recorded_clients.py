"""What real clients send is answered, and the answer is taken back.

Most bodies were recorded between the client and this server, or a stand-in of
it. Those of SillyTavern and Open WebUI are written from the sources that build
them.
"""

import functools
import json

import pytest

from kaiju_jax.decoding.engine import admission
from tests.serving import running
from tests.serving import world

CHAT, TEXT = '/v1/chat/completions', '/v1/completions'
BRIEF = {'role': 'system', 'content': 'Be brief.'}
HELLO = {'role': 'user', 'content': 'Hello'}
AND = {'role': 'user', 'content': 'And?'}
USAGE = {'stream': True, 'stream_options': {'include_usage': True}}
COUNTED = {'include_usage': True, 'continuous_usage_stats': True}


def dumped(**extra):
  """Returns a reply as openai-python's `model_dump` writes it."""
  names = 'annotations', 'audio', 'function_call', 'tool_calls'
  said = {'content': 'Hi there', 'refusal': None, 'role': 'assistant'}
  return said | dict.fromkeys(names) | extra


def replied(**extra):
  return {'content': 'Hi there', 'role': 'assistant'} | extra


# Recorded; all have `'model': 'toy'`.
OPENAI_PYTHON_3_57_0 = [
  (CHAT, {'messages': [BRIEF, HELLO], 'max_completion_tokens': 8}),
  (CHAT, {'messages': [BRIEF, HELLO, replied(refusal=None), AND]}),
  (CHAT, {'messages': [BRIEF, HELLO, dumped(), AND]}),
  # The replies of `stream` and of `parse`.
  (CHAT, {'messages': [BRIEF, HELLO, dumped(parsed=None), AND]} | USAGE),
  (
    CHAT,
    {
      'messages': [
        BRIEF,
        HELLO,
        replied(refusal=None, tool_calls=None, parsed=None),
        AND,
      ],
      'stream': False,
    },
  ),
  (TEXT, {'prompt': 'Once', 'max_tokens': 5}),
]
LITELLM_1_110_2 = [
  (CHAT, {'messages': [BRIEF, HELLO], 'temperature': 0.5, 'max_tokens': 8}),
  (CHAT, {'messages': [BRIEF, HELLO, replied(), AND]} | USAGE),
  (
    CHAT,
    {
      'messages': [
        {
          'role': 'system',
          'content': [
            {
              'type': 'text',
              'text': 'Long',
              'cache_control': {'type': 'ephemeral'},
            }
          ],
        },
        HELLO,
      ]
    },
  ),
  (CHAT, {'messages': [HELLO, replied(prefix=True)], 'max_tokens': 5}),
  (
    CHAT,
    {
      'messages': [HELLO],
      'top_p': 0.9,
      'n': 2,
      'stop': ['q'],
      'max_tokens': 5,
      'presence_penalty': 0,
      'frequency_penalty': 0,
      'response_format': {'type': 'text'},
      'seed': 3,
      'logprobs': True,
      'reasoning_effort': 'none',
    },
  ),
  (TEXT, {'prompt': 'Once', 'max_tokens': 4}),
]
LANGCHAIN_OPENAI_1_7_4 = [
  (
    CHAT,
    {
      'stream': False,
      'messages': [
        BRIEF,
        HELLO,
        replied(),
        {'content': [{'type': 'text', 'text': 'And?'}], 'role': 'user'},
      ],
      'max_completion_tokens': 9,
      'temperature': 0.3,
    },
  ),
  (
    CHAT,
    {'messages': [HELLO, replied(), AND], 'max_completion_tokens': 9} | USAGE,
  ),
  (
    TEXT,
    {
      'prompt': ['Once'],
      'frequency_penalty': 0,
      'logprobs': None,
      'max_tokens': 9,
      'n': 1,
      'presence_penalty': 0,
      'seed': None,
      'temperature': 0.7,
      'top_p': 1,
    },
  ),
]
GUIDELLM_0_8_1 = [
  ('/health', None),
  (
    CHAT,
    {
      'stream': True,
      'stream_options': COUNTED,
      'messages': [
        {'role': 'user', 'content': [{'type': 'text', 'text': 'How are you?'}]}
      ],
    },
  ),
  (
    TEXT,
    {'stream': True, 'stream_options': COUNTED, 'prompt': 'How are you?'},
  ),
  # From its source: a data set that says how long replies are.
  (
    CHAT,
    {
      'stream': True,
      'stream_options': COUNTED,
      'messages': [HELLO],
      'max_completion_tokens': 10,
      'stop': None,
      'ignore_eos': True,
    },
  ),
]
LM_EVAL_0_4_13 = [
  ('/tokenizer_info', None),
  ('/tokenize', {'prompt': 'Once upon', 'add_special_tokens': False}),
  (
    CHAT,
    {
      'messages': [{'role': 'user', 'content': 'Q: 1+1=\nA:'}],
      'max_tokens': 16,
      'temperature': 0.0,
      'stop': ['\n\n', 'Q:'],
      'seed': 1234,
    },
  ),
  (
    TEXT,
    {
      'prompt': [[79, 110, 99, 101, 32, 117, 112, 111, 110]],
      'temperature': 0,
      'max_tokens': 1,
      'logprobs': 1,
      'seed': 1234,
      'echo': True,
    },
  ),
  (
    TEXT,
    {
      'prompt': [[79, 110, 99, 101]],
      'max_tokens': 6,
      'temperature': 0,
      'stop': ['\n\n', '\x00'],
      'seed': 1234,
    },
  ),
]
# Written from src/endpoints/backends/chat-completions.js of SillyTavern 1.13,
# source 'custom'; its prompts are those of the default preset.
_CARD = {'role': 'system', 'content': "Write Mira's next reply in a chat."}
_EXAMPLE = {
  'role': 'system',
  'content': 'Who are you?',
  'name': 'example_user',
}
_START = {'role': 'system', 'content': '[Start a new Chat]'}
_GREETING = {'role': 'assistant', 'content': 'Good evening.'}
_TAVERN = {
  'temperature': 1,
  'max_tokens': 30,
  'stream': True,
  'presence_penalty': 0,
  'frequency_penalty': 0,
  'top_p': 1,
  'stop': ['\nUser:'],
}
SILLYTAVERN_1_13 = [
  (CHAT, _TAVERN | {'messages': [_CARD, _EXAMPLE, _START, _GREETING, HELLO]}),
  # A regular chat with instructions behind it, and "Continue" with a prefill.
  (CHAT, _TAVERN | {'messages': [_CARD, _START, _GREETING, HELLO, BRIEF]}),
  (CHAT, _TAVERN | {'messages': [_CARD, _START, HELLO, replied()]}),
  (
    CHAT,
    _TAVERN
    | {
      'messages': [_CARD, HELLO],
      'stream': False,
      'logit_bias': {},
      'seed': 7,
      'n': 1,
      'top_k': 0,
      'stop': [],
      'logprobs': False,
    },
  ),
]
# Written from backend/open_webui/routers/openai.py and utils/task.py of Open
# WebUI 0.6: a chat, its next turn, and the title.
OPEN_WEBUI_0_6 = [
  ('/v1/models', None),
  (CHAT, {'messages': [HELLO], 'stream': True}),
  (CHAT, {'messages': [BRIEF, HELLO, replied(), AND]} | USAGE),
  (
    CHAT,
    {
      'messages': [{'role': 'user', 'content': '### Task:\nWrite a title.'}],
      'stream': False,
      'max_completion_tokens': 50,
    },
  ),
  (
    CHAT,
    {
      'messages': [HELLO],
      'stream': True,
      'temperature': 0.8,
      'top_p': 0.9,
      'min_p': 0.0,
      'top_k': 40,
      'max_tokens': 20,
      'frequency_penalty': 0,
      'presence_penalty': 0,
      'seed': 0,
      'stop': ['</s>'],
      'logit_bias': {},
    },
  ),
]
CLIENTS = {
  'openai-python': OPENAI_PYTHON_3_57_0,
  'litellm': LITELLM_1_110_2,
  'langchain': LANGCHAIN_OPENAI_1_7_4,
  'guidellm': GUIDELLM_0_8_1,
  'lm-eval': LM_EVAL_0_4_13,
  'sillytavern': SILLYTAVERN_1_13,
  'open-webui': OPEN_WEBUI_0_6,
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
  *events, done = answer.decode().removesuffix('\n\n').split('\n\n')
  assert done == 'data: [DONE]'
  message = {'content': ''}
  for event in events:
    for choice in json.loads(event.removeprefix('data: '))['choices']:
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

"""langchain-openai, unmodified, against a server over real sockets."""

import pytest

from tests.serving import running

pytestmark = pytest.mark.slow
langchain_openai = pytest.importorskip('langchain_openai')


@pytest.fixture(scope='module')
def chat(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield langchain_openai.ChatOpenAI(
      model=running.MODEL,
      base_url=f'{server.address}/v1',
      api_key='none',
      max_tokens=20,
      seed=3,
      max_retries=0,
    )


def test_it_invokes_streams_and_batches(chat):
  whole = chat.invoke('Hello')
  assert whole.content and whole.usage_metadata['output_tokens']
  assert ''.join(x.content for x in chat.stream('Hello')) == whole.content
  both = chat.batch(['Hello', 'Goodbye'])
  assert both[0].content == whole.content != both[1].content


def test_it_passes_roles_stops_and_log_probabilities_on(chat):
  talk = [
    ('system', 'Be brief.'),
    ('human', 'Hello'),
    ('ai', 'Hi'),
    ('human', '?'),
  ]
  whole = chat.invoke(talk)
  stop = whole.content[4:6]
  cut = chat.invoke(talk, stop=[stop]).content
  assert cut == whole.content[: whole.content.index(stop)]
  scored = chat.bind(logprobs=True).invoke(talk)
  tokens = scored.response_metadata['logprobs']['content']
  assert ''.join(x['token'] for x in tokens) == scored.content


def test_its_default_client_can_talk_to_a_character(chat):
  played = chat.bind(extra_body={'character': running.CHARACTER}).invoke('Hi')
  plain = chat.invoke('Hi')
  counts = [x.usage_metadata['input_tokens'] for x in (played, plain)]
  assert counts[0] > counts[1] + 50

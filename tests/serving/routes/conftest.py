"""A server for the tests of a file."""

import openai
import pytest

from tests.serving import running


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  """A server that each test leaves as it found it."""
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


@pytest.fixture(scope='module')
def client(server):
  """An openai client of whoever is before this machine."""
  with openai.OpenAI(
    base_url=f'{server.address}/v1', api_key='none', max_retries=0
  ) as client:
    yield client

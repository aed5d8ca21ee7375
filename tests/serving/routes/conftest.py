"""A server for the tests of a file."""

import pytest

from tests.serving import running


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  """A server that each test leaves as it found it."""
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server

"""A chat completion enters the files that `docs/rooms.md` lists, and no other.

The walk through `decoding/` has a test of its own.
"""

import pytest

from tests import walks
from tests.serving import running

ENGINE = 'decoding/', 'model/'


def listed(has_session):
  """Returns the files of the walk, as the page lists them."""
  text = walks.section('The walk of a request')
  plain, session = text.split('With a session, also:')
  return walks.listed(plain + session * has_session)


@pytest.fixture
def trace():
  """A trace of all threads that begin after it."""
  made = walks.Trace()
  restore = made.install()
  yield made
  restore()


def test_a_request_enters_the_files_of_its_walk_alone(tmp_path, trace):
  with running.server(tmp_path) as server:
    character = {'character': running.CHARACTER}
    session = server.post('/v1/sessions', 'ann', **character)['id']
    entered = []
    for options in {}, {'session': session}:

      def ask(text, options=options):
        server.post(
          '/v1/chat/completions',
          'ann',
          model=running.MODEL,
          max_tokens=8,
          messages=[{'role': 'user', 'content': text}],
          **options,
        )
        assert server.is_idle_soon()

      ask('Once, so that nothing is made for the first time.')
      trace.files.clear()
      with trace:
        ask('Hello again.')
      entered.append({x for x in trace.files if not x.startswith(ENGINE)})
  plain, in_session = entered
  assert plain == listed(has_session=False) and len(plain) <= 30
  assert plain | in_session == listed(has_session=True)

"""A chat completion enters the files that `docs/rooms.md` lists, and no other.

The walk through `decoding/` has a test of its own.
"""

import pathlib
import re
import sys
import threading

import pytest

from tests.serving import running

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = f'{ROOT}/kaiju_jax/'
ENGINE = 'decoding/', 'model/'


def listed(has_session):
  """Returns the files of the walk, as the page lists them."""
  text = (ROOT / 'docs/rooms.md').read_text()
  _, walk = text.split('## The walk of a request')
  plain, session = walk.split('With a session, also:')
  found = set()
  rows = re.findall(r'^\| (`.*?) \|', plain + session * has_session, re.M)
  for row in rows:
    folder = ''
    for name in re.findall(r'`([\w/]+\.py)`', row):
      folder = name.rpartition('/')[0] or folder
      found.add(f'{folder}/{name.rpartition("/")[2]}')
  return found


class Trace:
  """The files of the package in which functions run within the block."""

  def __init__(self):
    self.files = set()
    self._is_on = False

  def __enter__(self):
    self._is_on = True
    return self

  def __exit__(self, *_):
    self._is_on = False

  def note(self, frame, event, _):
    name = frame.f_code.co_filename
    if self._is_on and event == 'call' and name.startswith(PACKAGE):
      self.files.add(name.removeprefix(PACKAGE))


@pytest.fixture
def trace():
  """A trace of all threads that begin after it."""
  made, former = Trace(), sys.getprofile()
  threading.setprofile(made.note)
  yield made
  threading.setprofile(former)


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

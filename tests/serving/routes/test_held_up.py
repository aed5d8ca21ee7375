"""One hostile request of a megabyte holds nobody else up."""

import json
import statistics
import subprocess
import sys
import threading
import time

import pytest

from kaiju_jax.data import bpe
from kaiju_jax.data import tokenizer as tokenizer_lib
from tests.serving import running
from tests.serving import trivial
from tests.serving.routes import raw_clients

pytestmark = pytest.mark.flaky(reruns=2)

CHAT, TEXT = running.CHAT, running.TEXT
NAME = 'é' * 200
SIZE = 1_000_000
MOST = 2  # Times as long as without the request.
PAUSE = 0.005  # Of the engine's rounds, in seconds.
ROUNDS, WINDOW, TRIES = 11, 0.06, 3


class Library(running.Letters):
  """`Letters` that take the time of a library's tokenizer.

  Its longest token is that of a usual one, so that 128 KB are encoded.
  """

  longest = 128

  def __init__(self, path):
    self._library = tokenizer_lib.HuggingFace(path)

  def encode(self, text):
    self._library.encode(text)
    return super().encode(text)


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  folder = tmp_path_factory.mktemp('server')
  pytest.importorskip('tokenizers')
  path = folder / 'tokenizer.json'
  bpe.train(path, ['the cat sat on the mat ' * 20], 300)
  tokenizer = Library(path)
  with running.server(folder, tokenizer=tokenizer, pause=PAUSE) as server:
    yield server


@pytest.fixture(scope='module')
def noted(server):
  """The list of what `onlooker` notes, which grows."""
  body = running.complete('A', max_tokens=900, stream=True)
  command = [
    *(sys.executable, '-m', 'tests.serving.onlooker'),
    *(str(server.server.port), server.tokens['ben'], json.dumps(body)),
  ]
  with subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
  ) as process:
    found = []

    def read():
      for line in process.stdout:
        found.append(json.loads(line))

    thread = threading.Thread(target=read)
    thread.start()
    yield found
    process.kill()
    thread.join()


def waits(noted, kind, begun, ended):
  """Returns how long each of a kind waited that did so in a span."""
  return [
    last - first
    for one, first, last in list(noted)
    if one == kind and first < ended and last > begun
  ]


def hostile(server):
  """Returns hostile requests by name: the path and the body."""
  made = server.publish({'name': NAME, 'greeting': 'Hm?'})['id']
  session = server.open_session(character=made)
  grows, plain = '{{char}}' * 100_000, 'the cat ' * (SIZE // 8)
  macros = '{{char}}' * 5000
  lore = [{'keys': ['a'], 'content': '{{char}}' * 190}] * 500

  def card(**fields):
    return running.CARDS, {'fields': {'name': NAME, **fields}}

  return {
    'plain': (CHAT, running.chat(plain)),
    'macros': (CHAT, running.chat(grows, session=session)),
    'many': (CHAT, running.chat(running.said('the cat ' * 60) * 2000)),
    'prompt': (TEXT, running.complete(plain)),
    'encoded': (TEXT, running.complete(plain[:120_000])),
    'card': card(description=macros),
    'greeting': card(description='x', greeting=macros),
    'lore': card(description='x', lore=lore),
    'title': (running.SESSIONS, {'character': made, 'title': plain}),
    'edit': (
      f'{running.SESSIONS}/{session}/messages',
      {'parent': 0, 'role': 'user', 'text': plain},
    ),
  }


def ask(server, path, body):
  with raw_clients.connect(server, path, body) as client:
    answer = trivial.rest(client)
  assert b'400 ' in answer[:20], answer[:400]


def measure(server, noted, request):
  """Returns the ratios of waits with a request to those without, by name.

  The spans with and without it take turns, so that what else the machine does
  counts for both alike. A wait less than a round of the engine counts as one:
  below that, threads of one process take turns.
  """
  spans = {False: [], True: []}
  for _ in range(ROUNDS):
    for is_hostile in False, True:
      begun = time.monotonic()
      if is_hostile:
        ask(server, *request)
      time.sleep(max(0, begun + WINDOW - time.monotonic()))
      spans[is_hostile].append((begun, time.monotonic()))
  time.sleep(WINDOW)
  found = {}
  for kind in 'healthz', 'token':
    for how, function in ('median', statistics.median), ('worst', max):
      quiet, loud = (
        statistics.median(
          function(waits(noted, kind, *span)) for span in spans[is_hostile]
        )
        for is_hostile in (False, True)
      )
      found[kind, how] = max(loud, PAUSE) / max(quiet, PAUSE)
  return found


@pytest.mark.slow
def test_one_hostile_request_slows_nobody(server, noted):
  assert trivial.until(lambda: len(noted) > 1000, 120)
  slow = {}
  for name, request in hostile(server).items():
    for _ in range(TRIES):  # Noise is not there each time.
      ratios = measure(server, noted, request)
      if max(ratios.values()) <= MOST:
        break
    else:
      slow[name] = ratios
  assert not slow

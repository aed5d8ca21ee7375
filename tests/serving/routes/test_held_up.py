"""One hostile request of a megabyte holds nobody else up."""

import json
import socket
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

pytestmark = pytest.mark.flaky(reruns=2)

CHAT, TEXT = '/v1/chat/completions', '/v1/completions'
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


class Onlooker:
  """Collects what `onlooker` notes."""

  def __init__(self, process):
    self.noted = []
    self._process = process
    self._thread = threading.Thread(target=self._read)
    self._thread.start()

  def _read(self):
    for line in self._process.stdout:
      self.noted.append(json.loads(line))

  def close(self):
    self._process.kill()
    self._thread.join()

  def waits(self, begun, ended):
    """Returns how long each waited that did so in a span, by kind."""
    found = {'healthz': [], 'token': []}
    for kind, first, last in list(self.noted):
      if first < ended and last > begun:
        found[kind].append(last - first)
    return found


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
def onlooker(server):
  body = {'model': running.MODEL, 'prompt': 'A', 'max_tokens': 900}
  command = [
    *(sys.executable, '-m', 'tests.serving.onlooker'),
    str(server.server.port),
    server.tokens['ben'],
    json.dumps(body | {'stream': True}),
  ]
  with subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
  ) as process:
    found = Onlooker(process)
    try:
      yield found
    finally:
      found.close()


def hostile(server):
  """Returns hostile requests by name: the method, the path, the body."""
  made = server.post(
    '/v1/characters', 'ann', fields={'name': NAME, 'greeting': 'Hm?'}
  )
  session = server.post('/v1/sessions', 'ann', character=made['id'])['id']
  edits = f'/v1/sessions/{session}/messages'
  grows, plain = '{{char}}' * 100_000, 'the cat ' * (SIZE // 8)
  chat = {'model': running.MODEL, 'session': session}
  fields = {'name': NAME, 'description': 'x'}
  macros = '{{char}}' * 5000
  lore = [{'keys': ['a'], 'content': '{{char}}' * 190}] * 500

  def said(text):
    return [{'role': 'user', 'content': text}]

  return {
    'plain': (CHAT, {'model': running.MODEL, 'messages': said(plain)}),
    'macros': (CHAT, chat | {'messages': said(grows)}),
    'many': (
      CHAT,
      {'model': running.MODEL, 'messages': said('the cat ' * 60) * 2000},
    ),
    'prompt': (TEXT, {'model': running.MODEL, 'prompt': plain}),
    'encoded': (TEXT, {'model': running.MODEL, 'prompt': plain[:120_000]}),
    'card': ('/v1/characters', {'fields': fields | {'description': macros}}),
    'greeting': ('/v1/characters', {'fields': fields | {'greeting': macros}}),
    'lore': ('/v1/characters', {'fields': fields | {'lore': lore}}),
    'title': ('/v1/sessions', {'character': made['id'], 'title': plain}),
    'edit': (edits, {'parent': 0, 'role': 'user', 'text': plain}),
  }


def sent(server, path, body):
  """Returns bytes to send."""
  body = json.dumps(body, ensure_ascii=False).encode()
  head = (
    f'POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
    f'Authorization: Bearer {server.tokens["ann"]}\r\n'
    f'Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n'
  )
  return head.encode() + body


def ask(server, data):
  with socket.create_connection(('127.0.0.1', server.server.port)) as client:
    client.sendall(data)
    answer = b''
    while piece := client.recv(2**16):
      answer += piece
  assert b'400 ' in answer[:20], answer[:400]


def measure(server, onlooker, data):
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
        ask(server, data)
      time.sleep(max(0, begun + WINDOW - time.monotonic()))
      spans[is_hostile].append((begun, time.monotonic()))
  time.sleep(WINDOW)
  found = {}
  for kind in 'healthz', 'token':
    for how, function in ('median', statistics.median), ('worst', max):
      quiet, loud = (
        statistics.median(
          function(onlooker.waits(*span)[kind]) for span in spans[is_hostile]
        )
        for is_hostile in (False, True)
      )
      found[kind, how] = max(loud, PAUSE) / max(quiet, PAUSE)
  return found


@pytest.mark.slow
def test_one_hostile_request_slows_nobody(server, onlooker):
  assert trivial.until(lambda: len(onlooker.noted) > 1000, 120)
  slow = {}
  for name, request in hostile(server).items():
    data = sent(server, *request)
    for _ in range(TRIES):  # Noise is not there each time.
      ratios = measure(server, onlooker, data)
      if max(ratios.values()) <= MOST:
        break
    else:
      slow[name] = ratios
  assert not slow

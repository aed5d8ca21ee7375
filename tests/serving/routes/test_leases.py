"""What a request takes, it gives back, wherever it ends.

Requests are put to the application as a connection would put them, so that a
client can leave, and a task be cancelled, at any moment of their way.
"""

import asyncio
import json
import time

import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import edge
from kaiju_jax.serving.replies import reply
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import api
from kaiju_jax.serving.stores import characters
from tests.serving import leftovers
from tests.serving import running

SEED = 33  # Whose replies have 44 tokens at least.
# Seconds of a slow engine's rounds, and in which it must be idle.
ROUND, SOON = 0.3, 12
HELLO = [{'role': 'user', 'content': 'Hello'}]
CHAT = '/v1/chat/completions', {'messages': HELLO, 'seed': SEED}
SEVERAL = '/v1/chat/completions', {'messages': HELLO, 'n': 3, 'seed': SEED}
TEXT = '/v1/completions', {'prompt': 'Hello'}


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


class Client:
  """One request to a server's application.

  Args:
    server: as `running` has it.
    path: of the endpoint.
    body: of the request.
    leaves: after how many messages of the answer the client leaves; None for
      never.
  """

  def __init__(self, server, path, body, leaves=None):
    self.sent = []
    self._leaves = leaves
    self._left = asyncio.Event()
    self._body = json.dumps(
      {'model': running.MODEL, 'max_tokens': 40} | body
    ).encode()
    token = server.tokens['ann'].encode()
    self._app = edge.Edge(api.app(server.context), lambda: False)
    self._scope = {
      'type': 'http',
      'asgi': {'spec_version': '2.3'},
      'method': 'POST',
      'path': path,
      'raw_path': path.encode(),
      'root_path': '',
      'query_string': b'',
      'http_version': '1.1',
      'client': ('127.0.0.1', 1),
      'headers': [
        (b'host', b'127.0.0.1'),
        (b'authorization', b'Bearer ' + token),
        (b'content-type', b'application/json'),
        (b'content-length', b'%d' % len(self._body)),
      ],
    }
    self._came = iter([self._body])
    if leaves == 0:
      self._left.set()

  @property
  def status(self):
    return self.sent[0]['status'] if self.sent else None

  @property
  def said(self):
    return b''.join(message.get('body', b'') for message in self.sent)

  async def ask(self):
    await self._app(self._scope, self._receive, self._send)

  async def _receive(self):
    for body in self._came:
      return {'type': 'http.request', 'body': body, 'more_body': False}
    await self._left.wait()
    return {'type': 'http.disconnect'}

  async def _send(self, message):
    self.sent.append(message)
    if len(self.sent) == self._leaves:
      self._left.set()


async def idle(server, seconds):
  """Returns once nothing is left, which must be so within some seconds."""
  async with asyncio.timeout(seconds):
    while leftovers.of_context(server.context):
      await asyncio.sleep(0.01)


def send(server, client, seconds=100.0):
  """Runs a request to its end, and checks that nothing of it is left."""

  async def main():
    # Cancelled where nobody waits for the answer any more.
    await asyncio.gather(client.ask(), return_exceptions=True)
    assert not server.context.limits._streams.taken
    # The loop outlives what is stored for a reader that has left.
    await idle(server, seconds)

  asyncio.run(asyncio.wait_for(main(), 2 * seconds))


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize(
  'error, status',
  [
    (request_lib.Busy('full', 1.0), 429),
    (request_lib.Busy('ending', None), 503),
    (ValueError('tokens: wrong'), 400),
    (worker_lib.Stopped('the engine failed: a place'), 503),
    (RuntimeError('a place'), 500),
  ],
)
def test_what_the_engine_refuses_gives_its_slot_back(
  server, monkeypatch, error, status, stream
):
  async def submit(*_):
    raise error

  monkeypatch.setattr(server.context.engines, 'submit', submit)
  client = Client(server, CHAT[0], CHAT[1] | {'stream': stream})
  send(server, client)
  assert client.status == status and b'place' not in client.said


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize(
  'error, status',
  [
    (characters.Unavailable('a place', 'the store is away'), 503),
    (characters.Conflict('the head is another by now'), 409),
    (RuntimeError('a place'), 500),
  ],
)
def test_what_cannot_be_stored_gives_its_slot_back(
  server, monkeypatch, error, status, stream
):
  session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)

  def append(*_, **__):
    raise error

  monkeypatch.setattr(server.store, 'append', append)
  body = CHAT[1] | {'session': session['id'], 'stream': stream}
  client = Client(server, CHAT[0], body)
  send(server, client)
  assert client.status == status and b'place' not in client.said


def test_choices_are_taken_together_or_not_at_all(server, monkeypatch):
  submit = server.engine.submit
  taken = []

  def full(*arguments):
    if len(taken) == 2:
      raise request_lib.Busy('full', 1.0)
    taken.append(submit(*arguments))
    return taken[-1]

  monkeypatch.setattr(server.engine, 'submit', full)
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(ROUND))
  client = Client(server, *SEVERAL)
  send(server, client, SOON)
  assert client.status == 429 and len(taken) == 2


def test_a_fault_behind_the_engine_gives_its_slot_back(server, monkeypatch):
  def broken(*_):
    raise RuntimeError('a place')

  monkeypatch.setattr(reply, 'Choices', broken)
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(ROUND))
  client = Client(server, TEXT[0], TEXT[1] | {'max_tokens': 800})
  send(server, client, SOON)
  assert client.status == 500


@pytest.mark.parametrize('path, body', [CHAT, SEVERAL, TEXT])
@pytest.mark.parametrize(
  'stream, leaves', [(False, 0), (True, 0), (True, 1), (True, 2), (True, 3)]
)
def test_a_client_that_leaves_frees_all(
  server, monkeypatch, path, body, stream, leaves
):
  # Each reply would take longer.
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(ROUND))
  endless = {'stream': stream, 'max_tokens': 800}
  client = Client(server, path, body | endless, leaves=leaves)
  send(server, client, SOON)


@pytest.mark.parametrize('path, body', [CHAT, SEVERAL, TEXT])
@pytest.mark.parametrize('stream', [False, True])
def test_a_request_may_be_cancelled_at_any_step(
  server, monkeypatch, path, body, stream
):
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(0.02))

  async def cancelled(steps):
    client = Client(server, path, body | {'stream': stream, 'max_tokens': 800})
    task = asyncio.create_task(client.ask())
    for _ in range(steps):
      await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not server.context.limits._streams.taken, steps

  async def main():
    for steps in (*range(0, 120, 3), 400):
      await cancelled(steps)
    return await idle(server, SOON)

  asyncio.run(asyncio.wait_for(main(), 200))

"""What a request takes, it gives back, wherever it ends.

Requests are put to the application as a connection would put them, so that a
client can leave, and a task be cancelled, at any moment of their way.
"""

import asyncio
import time

import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import reply
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.stores import characters
from tests.serving import running
from tests.serving.routes import raw_clients

# Seconds of a slow engine's rounds, and in which it must be idle.
ROUND, SOON = 0.3, 12
CHAT = (
  '/v1/chat/completions',
  {'messages': raw_clients.HELLO, 'seed': raw_clients.SEED},
)
TEXT = '/v1/completions', {'prompt': 'Hello'}


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


def send(server, client, seconds=100.0):
  """Runs a request to its end, and checks that nothing of it is left."""

  async def main():
    # Cancelled where nobody waits for the answer any more.
    await asyncio.gather(client.ask(), return_exceptions=True)
    assert not server.context.limits._streams.taken
    # The loop outlives what is stored for a reader that has left.
    await raw_clients.idle(server, seconds)

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
  client = raw_clients.Client(server, CHAT[0], CHAT[1] | {'stream': stream})
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
  client = raw_clients.Client(server, CHAT[0], body)
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
  client = raw_clients.Client(server, *raw_clients.SEVERAL)
  send(server, client, SOON)
  assert client.status == 429 and len(taken) == 2


def test_a_fault_behind_the_engine_gives_its_slot_back(server, monkeypatch):
  def broken(*_):
    raise RuntimeError('a place')

  monkeypatch.setattr(reply, 'Choices', broken)
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(ROUND))
  client = raw_clients.Client(server, TEXT[0], TEXT[1] | {'max_tokens': 800})
  send(server, client, SOON)
  assert client.status == 500


@pytest.mark.parametrize('path, body', [CHAT, raw_clients.SEVERAL, TEXT])
@pytest.mark.parametrize(
  'stream, leaves', [(False, 0), (True, 0), (True, 1), (True, 2), (True, 3)]
)
def test_a_client_that_leaves_frees_all(
  server, monkeypatch, path, body, stream, leaves
):
  # Each reply would take longer.
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(ROUND))
  endless = {'stream': stream, 'max_tokens': 800}
  client = raw_clients.Client(server, path, body | endless, leaves=leaves)
  send(server, client, SOON)


@pytest.mark.parametrize('path, body', [CHAT, raw_clients.SEVERAL, TEXT])
@pytest.mark.parametrize('stream', [False, True])
def test_a_request_may_be_cancelled_at_any_step(
  server, monkeypatch, path, body, stream
):
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(0.02))

  async def cancelled(steps):
    client = raw_clients.Client(
      server, path, body | {'stream': stream, 'max_tokens': 800}
    )
    task = asyncio.create_task(client.ask())
    for _ in range(steps):
      await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not server.context.limits._streams.taken, steps

  async def main():
    for steps in (*range(0, 120, 3), 400):
      await cancelled(steps)
    return await raw_clients.idle(server, SOON)

  asyncio.run(asyncio.wait_for(main(), 200))

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
from tests.serving.routes import raw_clients

# Seconds of a slow engine's rounds, and in which it must be idle.
ROUND, SOON = 0.1, 12
CHAT = (
  '/v1/chat/completions',
  {'messages': raw_clients.HELLO, 'seed': raw_clients.SEED},
)
TEXT = '/v1/completions', {'prompt': 'Hello'}
ASKS = pytest.mark.parametrize(
  'path, body', [CHAT, raw_clients.SEVERAL, TEXT], ids=['one', 'n', 'text']
)


@pytest.fixture
def slow(server, monkeypatch):
  """Slows the engine's rounds; returns a function that sets their seconds."""

  def slow(seconds):
    monkeypatch.setattr(
      server.engine, 'before_round', lambda: time.sleep(seconds)
    )

  slow(ROUND)
  return slow


def send(server, client, seconds=100.0):
  """Runs a request to its end, and checks that nothing of it is left."""

  async def main():
    # Cancelled where nobody waits for the answer any more.
    await asyncio.gather(client.ask(), return_exceptions=True)
    assert not server.context.limits._streams.taken
    # The loop outlives what is stored for a reader that has left.
    await raw_clients.idle(server, seconds)

  asyncio.run(asyncio.wait_for(main(), 2 * seconds))
  return client.status


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize(
  'target, error, status',
  [
    ('engines', request_lib.Busy('full', 1.0), 429),
    ('engines', request_lib.Busy('ending', None), 503),
    ('engines', ValueError('tokens: wrong'), 400),
    ('engines', worker_lib.Stopped('the engine failed: a place'), 503),
    ('engines', RuntimeError('a place'), 500),
    ('store', characters.Unavailable('a place', 'the store is away'), 503),
    ('store', characters.Conflict('the head is another by now'), 409),
    ('store', RuntimeError('a place'), 500),
  ],
)
def test_what_the_engine_or_the_store_refuses_gives_its_slot_back(
  server, monkeypatch, target, error, status, stream
):
  async def submit(*_):
    raise error

  def append(*_, **__):
    raise error

  body = CHAT[1] | {'stream': stream}
  if target == 'store':
    body |= {'session': server.open_session()}
    monkeypatch.setattr(server.store, 'append', append)
  else:
    monkeypatch.setattr(server.context.engines, 'submit', submit)
  client = raw_clients.Client(server, CHAT[0], body)
  assert send(server, client) == status and b'place' not in client.said


def test_choices_are_taken_together_or_not_at_all(server, monkeypatch, slow):
  submit = server.engine.submit
  taken = []

  def full(*arguments):
    if len(taken) == 2:
      raise request_lib.Busy('full', 1.0)
    taken.append(submit(*arguments))
    return taken[-1]

  monkeypatch.setattr(server.engine, 'submit', full)
  client = raw_clients.Client(server, *raw_clients.SEVERAL)
  assert send(server, client, SOON) == 429 and len(taken) == 2


def test_a_fault_behind_the_engine_gives_its_slot_back(
  server, monkeypatch, slow
):
  def broken(*_):
    raise RuntimeError('a place')

  monkeypatch.setattr(reply, 'Choices', broken)
  client = raw_clients.Client(server, TEXT[0], TEXT[1] | {'max_tokens': 800})
  assert send(server, client, SOON) == 500


@ASKS
@pytest.mark.parametrize(
  'stream, leaves', [(False, 0), (True, 0), (True, 1), (True, 2), (True, 3)]
)
def test_a_client_that_leaves_frees_all(
  server, slow, path, body, stream, leaves
):
  # Each reply would take longer.
  endless = {'stream': stream, 'max_tokens': 800}
  client = raw_clients.Client(server, path, body | endless, leaves=leaves)
  send(server, client, SOON)


@ASKS
@pytest.mark.parametrize('stream', [False, True])
async def test_a_request_may_be_cancelled_at_any_step(
  server, slow, path, body, stream
):
  slow(0.02)
  body = body | {'stream': stream, 'max_tokens': 800}
  for steps in (*range(0, 120, 3), 400):
    client = raw_clients.Client(server, path, body)
    task = asyncio.create_task(client.ask())
    for _ in range(steps):
      await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not server.context.limits._streams.taken, steps
  await raw_clients.idle(server, SOON)

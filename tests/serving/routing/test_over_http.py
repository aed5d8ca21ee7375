"""A server over a fleet: what clients see while replicas are killed."""

import asyncio
import contextlib
import json
import threading
import time
import urllib.error

import numpy as np
import pytest

from kaiju_jax.decoding.engine import admission
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from tests.decoding import fake_device
from tests.serving import leftovers
from tests.serving import running
from tests.serving import world
from tests.serving.routes import moderated
from tests.serving.routes import raw_clients
from tests.serving.routing import fleet

HELLO = [{'role': 'user', 'content': 'Hello'}]
PAUSE = 0.003


def engine(tokenizer, **options):
  made = world.Engine(
    tokenizer,
    rows=4,
    length=running.LENGTH,
    pages=2000,
    limits=admission.Limits(queue=64, lease=30.0),
    **options,
  )
  made.before_round = lambda: time.sleep(PAUSE)
  return made


@pytest.fixture
def server(tmp_path):
  with running.server(tmp_path, engine=engine, replicas=2) as server:
    yield server


def kill(server, number):
  """Kills a replica between two rounds; waits for its end."""
  worker = server.workers[number]

  def die():
    raise fleet.Killed('a test killed it.')

  worker._commands.put(die)
  worker._thread.join(10)


def revive(server, number, made=None):
  """Puts a new replica in the place of a killed one."""
  made = worker_lib.Worker(made or engine(server.context.tokenizer))
  made.start()
  named = replica_lib.Pseudonyms(running.SECRET)
  new = replica_lib.LocalReplica(f'r{number}', made, 'b1', named)
  router = server.context.engines

  async def add():
    router.add(new)

  # A router is its event loop's.
  asyncio.run_coroutine_threadsafe(add(), router._loop).result(10)
  server.workers[number] = made


@contextlib.contextmanager
def killing(server, rng, least=6, make=engine):
  """Has each replica die after some rounds, unless the other one is dead.

  Dead ones are replaced, with engines that `make` makes and that live for
  `least` rounds, longer than a prompt takes.
  """
  ending, kills, guard = threading.Event(), [], threading.Lock()

  def arm(one, number):
    left = iter(range(int(rng.integers(least, 2 * least))))

    def before_round():
      time.sleep(PAUSE)
      with guard:
        if next(left, None) is None and server.workers[1 - number].is_alive:
          kills.append(number)
          server.workers[number].error = fleet.Killed('a test killed it.')
          raise fleet.Killed('a test killed it.')

    one.before_round = before_round
    return one

  def replace():
    for number in range(2):
      if not server.workers[number].is_alive:
        made = arm(make(server.context.tokenizer), number)
        with guard:
          revive(server, number, made)

  def main():
    while not ending.wait(0.001):
      replace()

  for number, worker in enumerate(server.workers):
    arm(worker.engine, number)
  thread = threading.Thread(target=main)
  thread.start()
  try:
    yield kills
  finally:
    ending.set()
    thread.join()
    replace()
    for worker in server.workers:
      worker.engine.before_round = lambda: None


def ask(server, seed, **body):
  """Returns the text and the finish of a streamed chat."""
  body = {
    'model': running.MODEL,
    'messages': [{'role': 'user', 'content': f'Hello {seed}'}],
    'seed': seed,
    'max_tokens': 30,
    'stream': True,
    **body,
  }
  data = server.ask('POST', '/v1/chat/completions', body, 'ann').decode()
  lines = [x.removeprefix('data: ') for x in data.split('\n\n') if x]
  assert lines[-1] == '[DONE]', lines[-1]
  text, finish = {}, {}
  for line in lines[:-1]:
    for choice in json.loads(line)['choices']:
      at = choice['index']
      text[at] = text.get(at, '') + (choice['delta'].get('content') or '')
      finish[at] = choice['finish_reason'] or finish.get(at)
  return text, finish


def test_clients_read_on_over_kills(server):
  rng = np.random.default_rng(1)
  bodies = [{'n': 2} if seed % 3 == 0 else {} for seed in range(8)]
  wanted = [ask(server, seed, **body) for seed, body in enumerate(bodies)]
  assert len({str(text) for text, _ in wanted}) == 8
  with killing(server, rng) as kills:
    for seed, body in enumerate(bodies):
      assert ask(server, seed, **body) == wanted[seed]
  assert len(kills) >= 3 and server.context.engines.failovers
  assert server.is_idle_soon()


def test_a_session_is_stored_once_and_goes_on(server):
  session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  with killing(server, np.random.default_rng(2), 20):
    for seed in range(3):
      ask(server, seed, session=session['id'])
  path = f'/v1/sessions/{session["id"]}'
  found = server.get(path, owner='ann')['messages']
  roles = [one['role'] for one in found]
  assert roles == ['assistant'] * 3 + ['user', 'assistant'] * 3
  # What was cached of it goes with it, wherever it is.
  for number, seed in ((0, 7), (1, 8)):
    place = server.context.engines._replicas.find(f'r{number}')
    place.share = 1.0
    other = server.context.engines._replicas.find(f'r{1 - number}')
    other.is_closing, place.is_closing = True, False
    ask(server, seed, session=session['id'], swipe=True, messages=[])
  for place in server.context.engines._replicas:
    place.is_closing = False
  conversation = (b'ann', session['id'])
  recorders = [one.engine.recorder for one in server.workers]
  assert all(conversation in one._latest for one in recorders)
  assert server.ask('DELETE', path, owner='ann')
  assert not any(conversation in one._latest for one in recorders)


def refused(server, method, path, body=None):
  with pytest.raises(urllib.error.HTTPError) as caught:
    server.ask(method, path, body, 'ann')
  return caught.value


def test_the_last_replicas_end_is_an_error_of_the_server(server):
  body = {'model': running.MODEL, 'messages': HELLO, 'seed': 33}
  body |= {'max_tokens': 200, 'stream': True}
  said = []
  for worker in server.workers:
    worker.engine.before_round = lambda: time.sleep(0.05)

  def read():
    said.append(server.ask('POST', '/v1/chat/completions', body, 'ann'))

  reading = threading.Thread(target=read)
  reading.start()
  while not any(one.engine.state.running for one in server.workers):
    time.sleep(0.01)
  kill(server, 0)
  kill(server, 1)
  reading.join()
  assert b'[DONE]' not in said[0] and b'the engine has stopped' in said[0]
  error = refused(server, 'POST', '/v1/chat/completions', body)
  assert error.code == 503 and b'engine has stopped' in error.read()
  assert refused(server, 'GET', '/healthz').code == 500
  assert refused(server, 'GET', '/readyz').code == 503
  revive(server, 0)
  assert server.get('/readyz') == b'ready\n'
  assert ask(server, 1)[1][0] in ('stop', 'length')


async def test_a_client_that_leaves_in_a_kill_leaves_nothing(server):
  for leaves in range(0, 10, 2):
    path, body = raw_clients.SEVERAL
    client = raw_clients.Client(
      server, path, body | {'stream': True}, leaves or 1
    )
    asking = asyncio.create_task(client.ask())
    await asyncio.sleep(0.02 * leaves)
    number = leaves // 2 % 2
    killed = asyncio.create_task(asyncio.to_thread(kill, server, number))
    await asyncio.gather(asking, killed, return_exceptions=True)
    await asyncio.to_thread(revive, server, number)
    await raw_clients.idle(server, 10)
  assert not leftovers.of_context(server.context)


def test_all_busy_is_429(server):
  for one in server.workers:
    one.engine.limits = admission.Limits(queue=0)
  body = {'model': running.MODEL, 'messages': HELLO}
  error = refused(server, 'POST', '/v1/chat/completions', body)
  assert error.code == 429 and int(error.headers['Retry-After']) >= 1
  server.workers[1].engine.limits = admission.Limits()
  assert ask(server, 1)[1][0] in ('stop', 'length')


def test_operators_see_all_replicas_as_one(server):
  ask(server, 1)
  about = server.get('/v1/server')
  assert about['warm'] == {'ready': 0, 'of': 0}
  found = server.get('/metrics').decode()
  pages = [x for x in found.splitlines() if x.startswith('kaiju_pages{')]
  total = sum(float(x.split()[-1]) for x in pages)
  kinds = [x.engine.decoder.account.pages for x in server.workers]
  assert total == sum(x.size(y) for x in kinds for y in ('global', 'local'))
  assert 'kaiju_running 0.0' in found


def scores(text: int) -> tuple[float, float]:
  """Returns a head's scores: few are in the middle, and fewer too high."""
  if text % 200 == 0:
    return 0.95, 0.0
  return (0.6 if text % 12 == 0 else 0.01), 0.0


def test_moderated_replies_are_shown_and_cut_alike(tmp_path, monkeypatch):
  """Tokens that are held back stay so, and a text is judged anew."""
  monkeypatch.setattr(fake_device, 'scores', scores)

  def judged(tokenizer):
    return engine(tokenizer, is_judged=True)

  made = running.server(
    tmp_path,
    engine=judged,
    replicas=2,
    moderator=moderated.Moderator(8),
  )
  with made as server:
    wanted = [ask(server, seed) for seed in range(16)]
    ends = [finish[0] for _, finish in wanted]
    assert 0 < ends.count('content_filter') < 12, ends
    rng = np.random.default_rng(3)
    with killing(server, rng, make=judged) as kills:
      for seed in range(16):
        assert ask(server, seed) == wanted[seed]
    assert len(kills) >= 5

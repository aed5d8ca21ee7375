"""Routers share their tables: over outages, losses and old news."""

import asyncio
import hashlib
import random
import threading
import time

import numpy as np
import pytest

from kaiju_jax.serving.routing import affinity as affinity_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import shared_table
from tests.serving import redis_server
from tests.serving import trivial
from tests.serving.routing import fake_redis
from tests.serving.routing import uses

NOW = uses.NOW


class Place:
  """A Redis, and the routers that share it.

  Attributes:
    server: a fake, or a real one.
  """

  def __init__(self, server):
    self.server = server
    self.clock = trivial.Clock()
    self.held = {}

  async def ask(self):
    return self.held

  def router(self, *names, **options):
    """Returns a router's table and what shares it."""
    affinity = uses.make(1024, self.clock, **options)
    for name in names or uses.NAMES:
      affinity.index_of(name)
    is_fake = isinstance(self.server, fake_redis.FakeRedis)
    address = 'unix:///none' if is_fake else self.server.address
    shared = shared_table.SharedTable(
      affinity, address, self.ask, interval_s=0.01, timeout=1.0
    )
    if is_fake:
      shared._link = self.server
    return affinity, shared

  def stop(self):
    if isinstance(self.server, fake_redis.FakeRedis):
      self.server.is_away = True
    else:
      self.server.kill()

  def go_on(self):
    if isinstance(self.server, fake_redis.FakeRedis):
      self.server.is_away = False
    else:
      self.server.start()

  def empty(self):
    if isinstance(self.server, fake_redis.FakeRedis):
      self.server.flushall()
    else:
      with self.server.client() as client:
        client.flushall()

  def dump(self):
    """Returns all that lies in it, as bytes."""
    if isinstance(self.server, fake_redis.FakeRedis):
      parts = [x for held in self.server.sets.values() for x in held]
      return b' '.join([*parts, *self.server.values.values()])
    with self.server.client() as client:
      return b''.join(
        key + (client.dump(key) or b'') for key in client.keys('*')
      )


@pytest.fixture(
  params=[
    'fake',
    pytest.param('real', marks=[pytest.mark.slow, redis_server.needs_server]),
  ]
)
def place(request):
  if request.param == 'fake':
    yield Place(fake_redis.FakeRedis())
  else:
    server = redis_server.Server(True)
    yield Place(server)
    server.close()


def held(session, idle):
  return replica_lib.CachedText('salt', f'{session:015x}' + 'f' * 17, 9, idle)


def exchange(*shared):
  """Has each exchange, until those that begin anew have read the others."""
  for _ in range(3):
    for one in shared:
      asyncio.run(one.exchange())


def test_an_outage_stops_nobody_and_is_made_up_for(place, caplog):
  one, of_one = place.router()
  two, of_two = place.router()
  exchange(of_one, of_two)
  place.stop()
  one.note(1, 'a')
  exchange(of_one, of_two)
  place.clock.now += 100  # Longer than any overlap of what is read.
  one.note(2, 'a')
  two.note(3, 'c')
  exchange(of_one, of_two)
  assert one.find(1) == 'a' and two.find(1) is None
  assert of_one.is_away and of_one.failures == 6
  assert caplog.text.count('is not shared') == 2  # Once for each router.
  place.go_on()
  place.clock.now += 100
  time.sleep(0.05)
  exchange(of_one, of_two)
  assert not of_one.is_away
  for affinity in one, two:
    assert [affinity.find(x) for x in (1, 2, 3)] == ['a', 'a', 'c']
  assert caplog.text.count('is shared again') == 2


def test_a_lost_table_is_written_again(place, caplog):
  one, of_one = place.router()
  two, of_two = place.router()
  exchange(of_one, of_two)
  one.note(1, 'a')
  two.note(2, 'b')
  exchange(of_one, of_two)
  one.note(5, 'b')
  # A router that has forgotten everything, as if it had been killed, learns the
  # rest from the replicas; an older use of theirs changes nothing.
  place.held = {'c': [held(3, 1.0), held(1, 5.0)]}
  place.empty()
  exchange(of_one, of_two)
  assert of_one.losses == 1 and of_two.losses == 0
  assert caplog.text.count('was lost') == 1
  three, of_three = place.router()
  exchange(of_three)
  for affinity in one, two, three:
    found = [affinity.find(x) for x in (1, 2, 3, 5)]
    assert found == ['a', 'b', 'c', 'b']


def test_a_new_fleet_learns_from_its_replicas(place):
  place.held = {'a': [held(1, 9.0), held(2, 9.0)], 'b': [held(2, 3.0)]}
  one, of_one = place.router()
  exchange(of_one)
  assert (one.find(1), one.find(2)) == ('a', 'b')
  assert of_one.losses == 0


def test_a_replica_that_comes_late_is_read_whole(place):
  one, of_one = place.router('a', 'late')
  two, of_two = place.router('a')
  exchange(of_one, of_two)
  one.note(1, 'late')
  exchange(of_one, of_two)
  place.clock.now += 100
  exchange(of_one, of_two)
  assert two.find(1) is None
  two.index_of('late')
  exchange(of_two)
  assert two.find(1) == 'late'


def test_what_is_old_leaves_redis(place):
  one, of_one = place.router(seconds=100)
  exchange(of_one)
  one.note(1, 'a')
  place.clock.now += 60
  one.note(2, 'a')
  exchange(of_one)
  place.clock.now += 60
  of_one._tidied = -1e9
  exchange(of_one)
  assert uses.uses_of(one).keys() == {2}
  key = (1).to_bytes(8, 'big'), (2).to_bytes(8, 'big')
  assert key[0] not in place.dump() and key[1] in place.dump()


def test_whoever_reads_redis_learns_of_nobody(place):
  one, of_one = place.router()
  conversation = hashlib.sha256(b'key ann session-5').hexdigest()
  one.note(replica_lib.number(conversation), 'a')
  exchange(of_one)
  dumped = place.dump()
  for secret in b'ann', b'session', conversation.encode():
    assert secret not in dumped


def test_what_is_no_session_is_left_alone(place):
  """Whoever may write to Redis can move sessions, and break nothing."""
  one, of_one = place.router()
  exchange(of_one)
  place.server_call = None
  bad = {b'long member': 5.0, b'x' * 8: float('inf'), b'\xff' * 8: 1e12}

  def plant(server):
    server.zadd('kaiju:affinity:s:a', bad)

  of_one._link.run(plant)
  one.note(1, 'b')
  exchange(of_one)
  assert one.find(1) == 'b' and not of_one.failures
  assert uses.uses_of(one).keys() == {1}


@pytest.mark.parametrize('seed', range(5))
def test_routers_agree_in_the_end(seed):
  """After any notes, outages and losses: on the latest use of each session."""
  draws = random.Random(seed)
  place = Place(fake_redis.FakeRedis())
  routers = [place.router() for _ in range(3)]
  latest = {}
  for _ in range(300):
    place.clock.now += draws.choice([0.01, 0.1, 7])
    affinity, shared = draws.choice(routers)
    deed = draws.random()
    if deed < 0.6:
      session, name = draws.randrange(30), draws.choice(uses.NAMES)
      affinity.note(session, name)
      latest[session] = name
    elif deed < 0.9:
      asyncio.run(shared.exchange())
    elif deed < 0.95:
      place.server.is_away = not place.server.is_away
    else:
      place.empty()
  place.server.is_away = False
  exchange(*(shared for _, shared in routers))
  for affinity, _ in routers:
    assert {x: affinity.find(x) for x in latest} == latest


async def test_requests_go_on_while_redis_does_not_answer():
  """The event loop waits for nothing: a stopped Redis holds only a thread."""
  place = Place(fake_redis.FakeRedis())
  affinity, shared = place.router()
  asked, answers, ended = threading.Event(), threading.Event(), []

  def run(work):
    asked.set()
    ended.append(answers.wait(10))
    return work(place.server)

  place.server.run = run
  task = asyncio.create_task(shared.run())
  while not asked.is_set():
    await asyncio.sleep(0)
  for turn in range(100):
    affinity.note(turn % 50, 'a')
    await asyncio.sleep(0)
  assert not ended
  answers.set()
  task.cancel()


@redis_server.needs_server
@pytest.mark.slow
def test_a_large_lost_table_is_back_in_five_seconds():
  """By the processor, of this process: 100,000 sessions, 8 replicas."""
  server = redis_server.Server(False)
  try:
    rng = np.random.default_rng(0)
    replicas = [f'r{n}' for n in range(8)]
    place = Place(server)
    place.held = {
      name: [
        held(session, 5.0)
        for session in rng.integers(0, 2**59, 12_500).tolist()
      ]
      for name in replicas
    }
    affinity = affinity_lib.Affinity(clock=place.clock)
    shared = shared_table.SharedTable(affinity, server.address, place.ask)
    for name in replicas:
      affinity.index_of(name)
    asyncio.run(shared.exchange())
    place.empty()
    affinity.table[:] = -1  # The router's memory is lost, too.
    begun, wall = time.process_time(), time.perf_counter()
    asyncio.run(shared.exchange())
    taken = time.process_time() - begun
    print(f'{taken:.2f} s of processor, {time.perf_counter() - wall:.2f} s')
    assert shared.losses == 1 and len(affinity) > 99_000
    assert taken < 5
  finally:
    server.close()

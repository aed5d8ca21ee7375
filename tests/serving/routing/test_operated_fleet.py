"""Replicas in this process under an operator: opened, drained, learnt anew."""

import asyncio
import contextlib
import random
import time

import numpy as np
import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout as rollout_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.routing import router as router_lib
from kaiju_jax.serving.routing import shared_table
from tests.serving import redis_server
from tests.serving import running
from tests.serving import world
from tests.serving.routing import fake_redis

SECRET = b'of the fleet' * 3
NAMES = replica_lib.Pseudonyms(SECRET)
PREFIX = np.arange(4, 44)
OLD, NEW = 'aaaaaa11', 'bbbbbb22'


class Fleet:
  """Replicas without a model, and routers over them."""

  def __init__(self):
    self.replicas = {}

  def start(self, name, build=OLD):
    engine = world.Engine(running.Letters(), rows=8, length=256, pages=4000)
    worker = worker_lib.Worker(engine)
    worker.start()
    self.replicas[name] = replica_lib.LocalReplica(name, worker, build, NAMES)
    return self.replicas[name]

  def router(self, **settings):
    router = router_lib.Router(SECRET, router_lib.Settings(**settings))
    for one in self.replicas.values():
      router.add(one)
    return router

  def engine(self, name):
    return self.replicas[name].worker.engine

  def stop(self):
    for one in self.replicas.values():
      one.stop()


@contextlib.contextmanager
def fleet(*names):
  made = Fleet()
  try:
    for name in names:
      made.start(name)
    yield made
  finally:
    made.stop()


def request(session, turn=0, count=3, **options):
  """Returns a turn of a session, whose prompt repeats what was said before."""
  said = np.random.default_rng(session).integers(60, 120, 10 * (turn + 1))
  return request_lib.Request(
    np.concatenate([PREFIX, said]),
    count,
    sampling.Sampling(seed=session),
    owner=f'owner {session}',
    shared=len(PREFIX),
    cache_salt='digest',
    conversation=f'session {session}',
    **options,
  )


async def ask(router, *arguments, **options):
  """Returns the replica that served a turn, and the tokens that it reused."""
  (stream,) = await router.submit(request(*arguments, **options))
  async for _ in stream:
    pass
  return stream._state.replica.name, stream.reused


async def test_a_canary_takes_new_conversations_alone():
  with fleet('one', 'two') as made:
    made.start('new', NEW)
    router = made.router()
    router.set_share('new', 0.0)
    rollouts = rollouts_lib.Rollouts(
      router, lambda: [rollouts_lib.Prefix('digest', PREFIX)], poll_s=0.001
    )
    homes = {n: (await ask(router, n))[0] for n in range(20)}
    assert set(homes.values()) == {'one', 'two'}
    rollouts.start(NEW, rollout_lib.Plan(hold=0.01), replaces=True)
    while rollouts.describe()[-1]['state'] != 'done':
      # What began before stays, on its build, at each step.
      for n in homes:
        assert (await ask(router, n, 1))[0] == homes[n]
    assert rollouts.describe()[-1]['prefixes'] == 1
    # Its first conversation finds the prefix warm.
    assert await ask(router, 100) == ('new', len(PREFIX))
    found = {(await ask(router, n))[0] for n in range(101, 110)}
    assert found == {'new'}
    # Back at once: new ones go elsewhere, what began on it ends there.
    rollouts.roll_back('new')
    for n in range(200, 210):
      assert (await ask(router, n))[0] != 'new'
    for n in range(101, 110):
      assert (await ask(router, n, 1))[0] == 'new'


async def test_no_private_text_is_warmed():
  """The other replicas hold private prefixes and conversations, too."""
  with fleet('one', 'new') as made:
    router = made.router()
    router.set_share('new', 0.0)
    await ask(router, 1)
    private = request_lib.Request(
      np.arange(50, 90), 2, owner='ann', shared=40, cache_salt='secret ann'
    )
    (stream,) = await router.submit(private)
    async for _ in stream:
      pass
    held = await router.list_cached()
    assert len({text.salt for text in held['one']}) == 2
    rollouts = rollouts_lib.Rollouts(
      router, lambda: [rollouts_lib.Prefix('digest', PREFIX)], poll_s=0.001
    )
    rollouts.start('new', rollout_lib.Plan(hold=0))
    while rollouts.describe()[-1]['state'] != 'done':
      await asyncio.sleep(0.005)
    held = await router.list_cached()
    assert {text.salt for text in held['new']} == {NAMES.salt('digest')}
    assert not any(text.conversation for text in held['new'])


async def test_a_drain_moves_what_does_not_end():
  with fleet('one', 'two') as made:
    router = made.router()
    for name in 'one', 'two':  # Slow, so that the deadline comes first.
      made.engine(name).before_round = lambda: time.sleep(0.01)
    streams = [(await router.submit(request(n, count=60)))[0] for n in range(8)]
    first = [await anext(one) for one in streams]
    on_one = [x for x in streams if x._state.replica.name == 'one']
    assert on_one and len(on_one) < 8
    rollouts = rollouts_lib.Rollouts(router, list)
    rollouts.close('one')
    reading = [asyncio.ensure_future(drain(one)) for one in streams]
    moved = await router.drain_one('one', 0.05)
    counts = await asyncio.gather(*reading)
    assert 0 < moved <= len(on_one) and len(first) == 8
    assert counts == [59] * 8
    assert [x.failovers for x in on_one if x.failovers] == [1] * moved
    assert sum(x.failovers for x in streams) == moved
    assert router.count_requests('one').failures == 0
    # Its conversations go on elsewhere, and so do new ones.
    for n in [*range(8), 20, 21]:
      assert (await ask(router, n, 1))[0] == 'two'
    with pytest.raises(ValueError, match='no other replica'):
      rollouts.close('two')
    rollouts.remove('one').stop()
    assert [x.name for x in router.describe()] == ['two']
    with pytest.raises(ValueError, match='drain it first'):
      rollouts.remove('two')


async def drain(stream):
  return len([event async for event in stream])


def hits(found):
  """Returns the share of conversations whose history was in the cache."""
  return np.mean([reused > len(PREFIX) for _, reused in found])


async def test_a_lost_table_is_learnt_from_the_replicas():
  with fleet('one', 'two', 'three', 'four') as made:
    router = made.router(cache_poll_s=1e9)
    await router.begin()
    for n in range(40):
      await ask(router, n)
    found = [await ask(router, n, 1) for n in range(40)]
    assert hits(found) == 1
    router._replicas.affinity.table[:] = -1  # Lost.
    await router.refresh(polls_caches=True)
    after = [await ask(router, n, 2) for n in range(40)]
    assert hits(after) == 1
    assert [x for x, _ in after] == [x for x, _ in found]
    other = made.router(cache_poll_s=1e9)  # One that begins now.
    await other.begin()
    assert hits([await ask(other, n, 3) for n in range(40)]) == 1


async def test_the_latest_of_two_caches_counts():
  """A conversation that moved: its first replica still has its beginning."""
  with fleet('one', 'two') as made:
    router = made.router(cache_poll_s=1e9)
    router.set_share('two', 0.0)
    for n in range(10):
      assert (await ask(router, n))[0] == 'one'
    await asyncio.sleep(0.02)
    router._replicas.affinity.table[:] = -1  # Lost.
    router.set_share('two', 1.0)
    router.set_share('one', 0.0)
    for n in range(10):
      assert (await ask(router, n, 1))[0] == 'two'
    for names in ('one', 'two'), ('two', 'one'):
      router._replicas.affinity.table[:] = -1  # Lost.
      for name in names:  # Whichever answers first.
        held = await made.replicas[name].list_cached()
        router._replicas.learn(router._replicas.find(name), held)
      for n in range(10):
        assert (await ask(router, n, 2))[0] == 'two'


@pytest.mark.parametrize('seed', range(3))
async def test_two_routers_send_a_conversation_to_one_replica(seed):
  """Also while Redis is away, emptied, and when one of them is new."""
  with fleet('one', 'two', 'three') as made:
    server, draws = fake_redis.FakeRedis(), random.Random(seed)

    def share():
      router = made.router(cache_poll_s=1e9)

      shared = shared_table.SharedTable(
        router._replicas.affinity, 'unix:///none', router.list_cached
      )
      shared._link = server
      return router, shared

    routers = [share(), share()]

    async def exchange():
      for _ in range(3):
        for _, shared in routers:
          await shared.exchange()

    await exchange()
    turns, homes = dict.fromkeys(range(20), 0), {}
    for step in range(60):
      n = draws.randrange(20)
      router, _ = draws.choice(routers)
      home, reused = await ask(router, n, turns[n])
      assert homes.setdefault(n, home) == home
      assert not turns[n] or reused > len(PREFIX)
      turns[n] += 1
      await asyncio.sleep(0.002)
      await exchange()
      if step == 20:
        server.flushall()
      if step == 40:
        routers[0] = share()  # One was killed, and started again.
        await exchange()


@redis_server.needs_server
@pytest.mark.slow
async def test_routers_share_a_real_redis_beside_requests():
  """Through the settings of a router; the loss is counted and made up for."""
  server = redis_server.Server(False)
  with fleet('one', 'two', 'three') as made, contextlib.closing(server):

    async def until(is_so):
      end = asyncio.get_running_loop().time() + 60
      while not is_so() and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.05)
      assert is_so()

    routers = [made.router(table=server.address) for _ in range(2)]
    for router in routers:
      await router.begin()
      assert router.read_fleet().shared
    one, two = routers
    homes = {n: (await ask(one, n))[0] for n in range(20)}
    await until(lambda: two.read_fleet().sessions == 20)
    assert {n: (await ask(two, n, 1))[0] for n in homes} == homes
    with server.client() as client:
      assert NAMES.fleet.encode() in b''.join(client.keys('*'))
      client.flushall()
    await until(lambda: sum(x.read_fleet().losses for x in routers) > 0)
    with server.client() as client:
      await until(
        lambda: sum(client.zcard(x) for x in client.keys('*:s:*')) == 20
      )
    late = made.router(table=server.address)
    await late.begin()
    assert {n: (await ask(late, n, 2))[0] for n in homes} == homes
    server.kill()
    await until(lambda: not two.read_fleet().shared)
    assert {n: (await ask(two, n, 3))[0] for n in homes} == homes

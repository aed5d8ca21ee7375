"""Rollouts on a router that writes down its shares."""

import asyncio
import types

import numpy as np
import pytest

from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout as rollout_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from tests.serving import trivial

Tally = rollout_lib.RequestCounts
OLD, NEW = 'aaaaaa11', 'bbbbbb22'
PLAN = rollout_lib.Plan(hold=60)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
  """What is public is listed at once, so that turns of the loop are enough."""

  async def run(call, *arguments):
    return call(*arguments)

  monkeypatch.setattr(asyncio, 'to_thread', run)


class Replica:
  """Writes down what it prefills.

  Attributes:
    gate: what a prefill waits for.
  """

  def __init__(self):
    self.salts = []
    self.gate = asyncio.Event()
    self.gate.set()

  async def submit(self, request):
    await self.gate.wait()
    assert request.owner == '' and request.conversation is None
    self.salts.append(request.cache_salt)

    async def nothing():
      return
      yield

    return [nothing()]


class Router:
  """Stands for `router.Router`: shares and tallies are plain dicts."""

  def __init__(self, **builds):
    self.builds = builds
    self.shares = dict.fromkeys(builds, 1.0)
    self.dead, self.closing = set(), set()
    self.tallies = dict.fromkeys(builds, Tally())
    self.replicas = {name: Replica() for name in builds}
    self.texts = dict.fromkeys(builds, ())
    self.pseudonyms = types.SimpleNamespace(salt=lambda salt: f'hmac {salt}')

  def describe(self):
    return [
      metrics.ReplicaReading(
        name=name,
        build=build,
        share=self.shares[name],
        is_alive=name not in self.dead,
        is_closing=name in self.closing,
        load=0.0,
        running=0,
      )
      for name, build in self.builds.items()
    ]

  def add(self, replica, share):
    self.builds[replica.name] = replica.build
    self.shares[replica.name] = share
    self.tallies[replica.name] = Tally()
    self.replicas[replica.name] = replica

  def set_share(self, name, share):
    if not 0 <= share <= 1:
      raise ValueError(f'share={share}')
    self.shares[name] = share

  def count_requests(self, name):
    return self.tallies[name]

  def find(self, name):
    return self.replicas[name]

  async def list_cached(self):
    return self.texts


class World:
  """Rollouts on a clock that a test moves."""

  def __init__(self, **builds):
    self.router = router = Router(**builds)
    self.clock = trivial.Clock()
    self.public = []
    self.notes = []
    self.rollouts = rollouts_lib.Rollouts(
      router,
      lambda: self.public,
      self.notes.append,
      clock=self.clock,
      poll_s=0.0,
    )

  async def wait(self, seconds=0.0):
    """Moves the clock, and has the rollouts look."""
    self.clock.now += seconds
    for _ in range(400):
      await asyncio.sleep(0)

  def state(self):
    one = self.rollouts.describe()[-1]
    return one['state'], one['share']


def held(salt, conversation='ff' * 16):
  return replica_lib.CachedText(f'hmac {salt}', conversation, 9, 0.0)


async def test_a_new_replica_is_warmed_with_public_prefixes_and_opened():
  world = World(one=OLD, new=OLD)
  router = world.router
  router.texts['one'] = [held('a'), held('b'), held('b'), held('d ann')]
  router.texts['new'] = [held('c')] * 9  # Its own say nothing.
  world.public = [rollouts_lib.Prefix(x, np.array([5])) for x in 'abc']
  router.replicas['new'].gate.clear()
  world.rollouts.start('new', PLAN)
  assert router.shares == {'one': 1.0, 'new': 0.0}
  await world.wait(100)
  assert world.state() == ('warming', 0.0)
  router.replicas['new'].gate.set()
  await world.wait()
  await world.wait()
  assert router.replicas['new'].salts == ['b', 'a']
  assert router.replicas['one'].salts == []
  shares = []
  for _ in range(3):
    shares.append(router.shares['new'])
    await world.wait(60)
  assert shares == [0.1, 0.5, 1.0] and world.state() == ('done', 1.0)
  assert router.shares == {'one': 1.0, 'new': 1.0}
  assert [one['state'] for one in world.notes] == [
    *('warming', 'warming', 'opening', 'opening', 'opening', 'done')
  ]
  assert world.notes[-1]['prefixes'] == 2


async def test_a_replica_that_comes_is_warmed_before_it_serves(caplog):
  world = World(one=OLD)
  router = world.router
  router.texts['one'] = [held('a')]
  world.public = [rollouts_lib.Prefix('a', np.array([5]))]
  for name, build in ('two', OLD), ('three', NEW):
    replica = Replica()
    replica.name, replica.build = name, build
    world.rollouts.add(replica)
  assert router.shares == {'one': 1.0, 'two': 0.0, 'three': 0.0}
  await world.wait()
  assert router.shares['two'] == 0.1
  for _ in range(3):
    await world.wait(60)
  # Another build waits for an operator.
  assert router.shares == {'one': 1.0, 'two': 1.0, 'three': 0.0}
  assert 'three is of build bbbbbb22' in caplog.text
  router.dead |= {'one', 'two'}
  last = Replica()
  last.name, last.build = 'four', NEW
  world.rollouts.add(last)
  assert router.shares['four'] == 1.0


@pytest.mark.parametrize('how', ['nothing to warm', 'alone'])
async def test_a_replica_that_comes_need_not_wait(how):
  world = World(one=OLD)
  router, replica = world.router, Replica()
  replica.name, replica.build = 'two', OLD
  if how == 'alone':
    router.texts['one'] = [held('a')]
    world.public = [rollouts_lib.Prefix('a', np.array([5]))]
    replica.gate.clear()
  world.rollouts.add(replica)
  if how == 'alone':
    await world.wait()
    assert router.shares['two'] == 0.0
    router.dead.add('one')
  await world.wait()
  assert router.shares['two'] == 1.0 and world.state() == ('done', 1.0)


async def test_what_is_worse_loses_its_share_and_says_why():
  world = World(one=OLD, new=OLD)
  router = world.router
  world.rollouts.start('new', PLAN)
  await world.wait()
  assert router.shares['new'] == 0.1
  router.tallies = {'one': Tally(900), 'new': Tally(100, 50)}
  await world.wait(1)
  assert router.shares == {'one': 1.0, 'new': 0.0}
  assert world.notes[-1]['state'] == 'stopped'
  assert '50 failures in 100 requests' in world.notes[-1]['reason']


@pytest.mark.parametrize('how', ['dead', 'closing', 'removed', 'unlisted'])
async def test_what_cannot_be_warmed_or_is_gone_is_not_opened(how):
  world = World(one=OLD, new=OLD)
  router = world.router
  if how == 'unlisted':
    world.public = None
    world.rollouts._list_public = lambda: 1 / 0
  world.rollouts.start('new', PLAN)
  if how == 'removed':
    del router.builds['new']
  elif how != 'unlisted':
    getattr(router, how).add('new')
  await world.wait()
  assert world.state() == ('stopped', 0.0)
  assert router.shares['new'] == 0.0


BUILDS = {'one': OLD, 'two': OLD, 'three': NEW, 'four': NEW}


async def test_a_build_replaces_the_other_and_goes_back():
  world = World(**BUILDS)
  router = world.router
  router.shares['two'] = 0.7
  world.rollouts.start(NEW[:6], PLAN, replaces=True)
  before = {'one': 1.0, 'two': 0.7, 'three': 0.0, 'four': 0.0}
  assert router.shares == before
  await world.wait()
  assert router.shares == before | {'three': 0.1, 'four': 0.1}
  for _ in range(3):
    await world.wait(60)
  assert router.shares == {'one': 0, 'two': 0, 'three': 1, 'four': 1}
  assert world.rollouts.roll_back(NEW) == ['three', 'four']
  assert router.shares == before
  # Once more has nothing to give back.
  router.shares['two'] = 0.3
  world.rollouts.roll_back(NEW)
  assert router.shares == before | {'two': 0.3}


async def test_a_rollback_ends_a_rollout_that_runs():
  world = World(**BUILDS)
  world.rollouts.start(NEW, PLAN, replaces=True)
  await world.wait()
  assert world.router.shares['three'] == 0.1
  world.rollouts.roll_back('three')  # One of two: its rollout ends for both.
  assert world.state() == ('stopped', 0.0)
  assert world.router.shares == {'one': 1, 'two': 1, 'three': 0, 'four': 0}
  await world.wait(60)
  await world.wait(60)
  assert world.router.shares == {'one': 1, 'two': 1, 'three': 0, 'four': 0}
  world.rollouts.start(NEW, PLAN)  # It may be tried again.


@pytest.mark.parametrize('moment', range(12))
async def test_a_rollout_that_was_rolled_back_warms_nothing_more(moment):
  """Whenever it is rolled back: at most one prefix more was on its way."""

  world = World(**BUILDS)
  salts = [f's{number}' for number in range(9)]
  world.public = [rollouts_lib.Prefix(x, np.arange(9)) for x in salts]
  world.router.texts['one'] = [held(x) for x in salts]
  replica, ran = world.router.replicas['three'], []
  replica.gate.clear()
  submit = replica.submit

  async def counted(request):
    ran.append(request)
    await asyncio.sleep(0)
    return await submit(request)

  replica.submit = counted
  world.rollouts.start(NEW, PLAN, replaces=True)
  await asyncio.sleep(0.01)
  for _ in range(moment):
    await asyncio.sleep(0)
  world.rollouts.roll_back(NEW)
  await asyncio.sleep(0)
  count = len(ran)
  replica.gate.set()
  await world.wait(60)
  assert len(ran) <= count + 1 < len(salts), ran
  assert world.state() == ('stopped', 0.0)


async def test_somebody_always_takes_new_conversations():
  world = World(one=OLD, two=OLD)
  router, rollouts = world.router, world.rollouts
  with pytest.raises(ValueError, match='no other replica'):
    rollouts.start('a' * 6, PLAN)
  router.dead.add('two')
  for change in (
    lambda: rollouts.start('one', PLAN),
    lambda: rollouts.roll_back('one'),
    lambda: rollouts.set_share('one', 0.0),
  ):
    with pytest.raises(ValueError, match='no other replica'):
      change()
  assert router.shares == {'one': 1.0, 'two': 1.0}
  router.dead.clear()
  rollouts.set_share('one', 0.0)
  router.closing.add('two')
  assert rollouts.set_share('one', 0.5) == ['one']
  with pytest.raises(ValueError, match='no other replica'):
    rollouts.set_share('one', 0.0)


async def test_names_and_builds_are_told_apart():
  world = World(aaaaaa=OLD, **BUILDS)
  find = world.rollouts.find
  assert find('one') == ['one'] and find(NEW[:6]) == ['three', 'four']
  assert find('aaaaaa') == ['aaaaaa']  # A name comes before a build.
  for of in 'aaaaa', 'nobody', '', 'cccccc':
    with pytest.raises(ValueError, match=r'must be a replica.*three \(bbbb'):
      find(of)
  world.router.builds['one'] = NEW[:6] + '99'
  with pytest.raises(ValueError, match='must be'):
    find(NEW[:6])


async def test_one_rollout_of_a_replica_at_a_time():
  world = World(**BUILDS)
  world.rollouts.start('three', PLAN)
  for change in (
    lambda: world.rollouts.start(NEW, PLAN),
    lambda: world.rollouts.set_share('three', 1.0),
  ):
    with pytest.raises(ValueError, match='a rollout of it runs'):
      change()
  assert world.router.shares['three'] == 0.0

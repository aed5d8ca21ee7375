"""The router over engines without a model: each text is known beforehand."""

import asyncio
import contextlib
import dataclasses
import logging

import pytest

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import router as router_lib
from tests.serving import world
from tests.serving.routing import fleet as fleet_lib


@pytest.fixture
def make():
  """Returns a function that starts a fleet of light engines."""
  with contextlib.ExitStack() as stack:

    def start(count=2, policy='sticky', **options):
      engines = [fleet_lib.Light(**options) for _ in range(count)]
      running = fleet_lib.running(engines, policy=policy)
      return stack.enter_context(running)

    yield start


async def open_one(fleet, request):
  (stream,) = await fleet.router.submit(request)
  return stream


def whose(fleet, stream):
  """Returns the number of the replica that a stream reads from."""
  return int(stream._state.replica.name[1:])


async def test_without_a_replica_nothing_is_taken_and_texts_end(make, caplog):
  caplog.set_level(logging.CRITICAL)
  fleet = make(length=128)
  gate = fleet.hold()
  stream = await gate.until(open_one(fleet, world.request(0, count=100)))
  await gate.until(anext(stream))
  assert fleet.router.is_alive
  for number in range(2):
    fleet.kill(number)
  gate.open()
  with pytest.raises(worker_lib.Stopped):
    while True:
      await anext(stream)
  assert not fleet.router.is_alive
  with pytest.raises(worker_lib.Stopped):
    await open_one(fleet, world.request(1))
  with pytest.raises(worker_lib.Stopped):
    await fleet.router.forget(forgetting.Forget(salts=('s',)))
  assert not fleet.router._streams
  assert await fleet.router.drain(1.0) == 0
  fleet.revive()
  assert fleet.router.is_alive


async def test_a_whole_drain_ends_what_is_late(make):
  fleet = make(3, length=128)
  gate = fleet.hold()
  third = fleet.router.remove('r2')
  requests = [world.request(seed, count=100) for seed in range(4)]
  streams = [await gate.until(open_one(fleet, one)) for one in requests]
  firsts = [await gate.until(anext(stream)) for stream in streams]
  draining = asyncio.create_task(fleet.router.drain(0.0))
  await asyncio.sleep(0.1)
  gate.open()
  assert await draining == 4
  for first, stream in zip(firsts, streams):
    events, result = await fleet_lib.read(stream)
    assert result.reason == 'drained'
    assert len(result.tokens) == len(events) + 1 > 0
    assert result.tokens[0] == first.token
  # Nor does one that comes now take any.
  fleet.router.add(third)
  with pytest.raises(request_lib.Busy) as raised:
    await open_one(fleet, world.request(9))
  assert raised.value.seconds is None
  await fleet.nothing_is_left()


def points(fleet):
  return [len(x.decoder.account.tree) for x in fleet.engines]


async def test_forgetting_reaches_every_cache_and_the_table(make):
  fleet = make(policy='random')
  for seed in range(12):
    request = world.request(
      seed, prompt=20, owner='ann', conversation='c', cache_salt='s'
    )
    await fleet_lib.read(await open_one(fleet, request))
  kept = world.request(
    0, prompt=20, owner='ben', conversation='c', cache_salt='s'
  )
  await fleet_lib.read(await open_one(fleet, kept))
  assert all(points(fleet))
  gone = forgetting.Forget(conversations=(('ann', 'c'),))
  await fleet.router.forget(gone)
  held = [x for one in fleet.replicas.values() for x in await one.list_cached()]
  ben = fleet_lib.NAMES.conversation('ben', 'c')
  assert {x.conversation for x in held} == {ben}
  table = fleet.router._replicas._table
  sessions = {int(x) for x in table[:, 0]} - {-1}
  assert sessions == {replica_lib.number(ben)}
  await fleet.router.forget(forgetting.Forget(salts=('s',)))
  assert points(fleet) == [0, 0]


async def test_a_cache_tells_of_its_texts_by_pseudonyms(make):
  fleet = make(1)
  for seed in range(3):
    request = world.request(
      7,
      prompt=20,
      owner='ann',
      conversation=f'talk {seed}',
      cache_salt='a salt',
      shared=8,
    )
    tokens = [*request.tokens[:8], *world.request(seed, 12).tokens]
    request = dataclasses.replace(request, tokens=tokens)
    await fleet_lib.read(await open_one(fleet, request))
  # Nobody could ask for this one by a name.
  await fleet_lib.read(await open_one(fleet, world.request(9, 20, owner='ann')))
  held = await fleet.replicas[0].list_cached()
  names = fleet_lib.NAMES
  wanted = [names.conversation('ann', f'talk {n}') for n in (2, 1, 0)]
  assert [x.conversation for x in held if x.conversation] == wanted
  assert {x.salt for x in held} == {names.salt('a salt')}
  assert [x.tokens for x in held if not x.conversation] == [8]
  # By the point behind its answer.
  assert {x.tokens for x in held if x.conversation} == {8 + 12 + 12 - 1}
  assert not any(word in repr(held) for word in ('ann', 'talk', 'salt '))


async def test_a_new_router_learns_who_serves_whom(make):
  fleet = make(3)
  requests = [
    world.request(seed, 12, 4, owner='ann', conversation=f'c{seed}')
    for seed in range(12)
  ]
  placed = []
  for request in requests:
    stream = await open_one(fleet, request)
    placed.append(whose(fleet, stream))
    await fleet_lib.read(stream)
  other = router_lib.Router(fleet_lib.SECRET)
  for one in fleet.replicas.values():
    other.add(one)
  await fleet_lib.read((await other.submit(world.request(99)))[0])
  await other._polling
  for number, request in zip(placed, requests):
    (stream,) = await other.submit(request)
    assert whose(fleet, stream) == number
    await fleet_lib.read(stream)


async def test_a_state_counts_what_is_to_be_prefilled(make):
  fleet = make(1, rows=1)
  engine, replica = fleet.engines[0], fleet.replicas[0]

  def measure():
    engine.submit(world.request(0, 10)), engine.submit(world.request(1, 20))
    return replica_lib._measure(engine)

  idle = await replica.status()
  assert (idle.load, idle.running) == (0, 0)
  assert (idle.compiled, idle.compilations) == (0, 0)
  load, reading = await replica.worker.call(measure)
  assert load == 10 + 20 + 2 and reading.waiting == 2


async def test_readings_are_summed_and_the_least_wait_is_told(make):
  fleet = make(2)
  for seed in range(8):
    await fleet_lib.read(await open_one(fleet, world.request(seed, 20)))
  assert router_lib.Router(fleet_lib.SECRET).read_engine() is None
  reading = await asyncio.to_thread(fleet.router.read_engine)
  pages = [x.decoder.account.pages for x in fleet.engines]
  total = sum(x.size(kind) for x in pages for kind in ('global', 'local'))
  assert sum(reading.pages.values()) == total
  assert reading.points == sum(points(fleet)) > 0
  assert (reading.waiting, reading.running) == (0, 0)
  described = fleet.router.describe()
  assert [x.name for x in described] == ['r0', 'r1']
  assert all(x.is_alive and not x.load and x.share == 1 for x in described)


def test_a_policy_that_does_not_exist_is_refused():
  with pytest.raises(ValueError, match="policy='best': must be one of random"):
    router_lib.Settings(policy='best')

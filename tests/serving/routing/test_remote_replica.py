"""Replicas of other processes: what crosses, what ends, and what is lost."""

import asyncio
import pickle
import threading
import time

import pytest

from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routing import remote_replica
from kaiju_jax.serving.routing import replica as replica_lib
from tests.decoding import fake_device
from tests.serving import leftovers
from tests.serving import trivial
from tests.serving import world
from tests.serving.routing import processes


class Fleet:
  """One replica of another process, and the way to it."""

  def __init__(self):
    self.started, self.remotes = [], []

  def start(self, lease=30.0, host=None, **options):
    process = processes.Process(
      processes.Local('one', **options), lease, beat=0.05, **(host or {})
    )
    self.started.append(process)
    return process

  def reach(self, process, silence=30.0):
    transport = processes.Transport(process)
    remote = remote_replica.RemoteReplica('one', transport, silence)
    self.remotes.append(remote)
    remote.start()
    assert remote.wait(30)
    return remote, transport

  def close(self):
    for remote in self.remotes:
      remote.stop()
    for process in self.started:
      if not process.is_dead:
        assert trivial.until(process.replica.is_idle)
        process.kill()


@pytest.fixture
def fleet():
  made = Fleet()
  yield made
  made.close()
  assert not [x for x in threading.enumerate() if x.name == 'replica one']


async def test_streams_are_those_of_the_engine(fleet):
  remote, transport = fleet.reach(fleet.start())
  assert (remote.build, remote.facts) == ('build', {'length': 64})
  for is_again in False, True:
    stream = await world.open_one(remote, 30, 20)
    await world.read(stream)
    assert (stream.reused > 0) == is_again
    assert stream.reused == stream.result().reused
  streams = [await world.open_one(remote, seed) for seed in range(20)]
  found = await asyncio.gather(*map(world.read, streams))
  for seed, tokens in enumerate(found):
    assert tokens == fake_device.expected(world.request(seed))[0]
    assert streams[seed].result().reason == 'length'
    assert list(streams[seed].result().tokens) == tokens
  # A message has a round's tokens of all streams.
  beats = [
    x for x in map(pickle.loads, transport.said) if hasattr(x, 'updates')
  ]
  told = [x for x in beats if x.updates]
  assert max(len(x.updates) for x in told) > 1
  assert len(told) < sum(map(len, found)) / 2


@pytest.mark.parametrize(
  'wrong, error, match',
  [
    ({'count': 0}, ValueError, 'max_tokens=0'),
    ({'priority': 'high'}, TypeError, "priority='high'"),
  ],
)
async def test_refusals_cross_with_their_words(fleet, wrong, error, match):
  remote, _ = fleet.reach(fleet.start())
  with pytest.raises(error, match=match):
    await world.open_one(remote, **wrong)
  await read_one(remote)


async def read_one(remote):
  return await world.read(await world.open_one(remote))


async def test_a_busy_replica_says_for_how_long(fleet):
  process = fleet.start(rows=1, limits=admission.Limits(queue=1))
  remote, _ = fleet.reach(process)
  # The first reply holds the only row until it is cancelled.
  process.replica.worker.engine.before_round = lambda: time.sleep(0.05)
  streams = [await world.open_one(remote, 0, count=50)]
  with pytest.raises(request_lib.Busy) as error:
    for seed in range(20):
      streams.append(await world.open_one(remote, seed, count=50))
  for stream in streams:
    stream.cancel()
  assert error.value.seconds >= 0


async def test_bad_logits_end_a_stream_with_their_error(fleet):
  remote, _ = fleet.reach(fleet.start(bad=1))
  stream = await world.open_one(remote)
  with pytest.raises(request_lib.BadLogits):
    await world.read(stream)
  assert stream.result().reason == 'error'


async def test_a_killed_process_loses_its_streams_and_comes_back(fleet):
  process = fleet.start()
  remote, transport = fleet.reach(process)
  process.replica.worker.engine.before_round = lambda: time.sleep(0.05)
  stream = await world.open_one(remote, 0, count=50)
  await anext(stream)
  await asyncio.to_thread(process.kill)
  with pytest.raises(replica_lib.Lost):
    await world.read(stream)
  for call in remote.submit(world.request()), remote.status():
    with pytest.raises(replica_lib.Lost):
      await call
  assert not remote.is_alive
  transport.process = fleet.start()
  while not remote.is_alive:
    await asyncio.sleep(0.02)
  assert await read_one(remote) == fake_device.expected(world.request())[0]


async def test_a_call_of_a_dying_process_does_not_wait_for_ever(fleet):
  process = fleet.start()
  remote, _ = fleet.reach(process)
  entered, leave = process.replica.worker.engine.hold()
  first = await world.open_one(remote)
  await asyncio.to_thread(entered.wait)
  second = asyncio.create_task(world.open_one(remote, 1))
  await asyncio.sleep(0.1)
  assert not second.done()
  process.is_dead = True
  # The messages break off; the call waits in some queue.
  for fail in process.failures:
    fail()
  for waiting in second, world.read(first):
    with pytest.raises(replica_lib.Lost):
      await waiting
  leave.set()
  await asyncio.to_thread(process.kill)


async def test_calls_meant_for_a_former_process_are_refused(fleet):
  """A queue may hand a call to the process that came after."""
  remote, transport = fleet.reach(fleet.start())
  later = fleet.start()
  transport.process = later  # It still hears the former one.
  with pytest.raises(replica_lib.Lost):
    await world.open_one(remote)
  assert later.replica.worker.engine.is_idle


async def test_a_silent_replica_counts_as_gone(fleet):
  remote, transport = fleet.reach(fleet.start(), silence=0.3)
  transport.is_silent = True
  stream = await world.open_one(remote, 0, count=50)
  with pytest.raises(replica_lib.Lost):
    await world.read(stream)
  transport.is_silent = False
  while not remote.is_alive:
    await asyncio.sleep(0.02)
  await read_one(remote)


async def test_a_cancelled_stream_frees_its_row(fleet):
  process = fleet.start(rows=1)
  remote, _ = fleet.reach(process)
  process.replica.worker.engine.before_round = lambda: time.sleep(0.02)
  stream = await world.open_one(remote, 0, count=50)
  await anext(stream)
  stream.cancel()
  await read_one(remote)
  assert stream.reason == 'cancelled'


async def test_a_submission_that_is_given_up_leaves_nothing(fleet):
  process = fleet.start(rows=1)
  remote, transport = fleet.reach(process)
  transport.is_stubborn = True
  engine = process.replica.worker.engine
  entered, leave = engine.hold()
  first = await world.open_one(remote, count=2)
  await asyncio.to_thread(entered.wait)
  second = asyncio.create_task(world.open_one(remote, 1, count=50))
  await asyncio.sleep(0.1)
  second.cancel()
  with pytest.raises(asyncio.CancelledError):
    await second
  await asyncio.sleep(0.1)
  engine.before_round = lambda: time.sleep(0.5)
  leave.set()
  await world.read(first)
  # It does not run to its end, 25 s from here.
  assert await asyncio.to_thread(trivial.until, lambda: engine.is_idle, 15)


async def test_an_unread_stream_ends_and_a_read_one_does_not(fleet):
  process = fleet.start(lease=0.4)
  remote, _ = fleet.reach(process)
  process.replica.worker.engine.before_round = lambda: time.sleep(0.03)
  unread = await world.open_one(remote, 0, count=50)
  slow = await world.open_one(remote, 1, count=50)
  all_of_it, some = await world.read(slow), await world.read(unread)
  assert all_of_it == fake_device.expected(world.request(1, count=50))[0]
  assert unread.reason == 'cancelled'
  assert (
    some == fake_device.expected(world.request(0, count=50))[0][: len(some)]
  )
  assert len(some) < 50


def test_an_ingress_that_vanishes_ends_its_sequences(fleet):
  process = fleet.start(host={'silence': 0.3})
  process.replica.worker.engine.before_round = lambda: time.sleep(0.02)
  host, engine = process.host, process.replica.worker.engine

  async def vanish():
    messages = host.subscribe('ingress')
    await anext(messages)
    answer = await host.call(
      'submit', 'ingress', [0], [world.request(count=50)]
    )
    assert answer.error is None
    # Neither reads nor leaves.
    async for _ in messages:
      pass

  asyncio.run_coroutine_threadsafe(vanish(), process.loop).result(60)
  assert not leftovers.within(20, lambda: [] if engine.is_idle else ['rows'])


async def test_state_forgetting_and_draining_cross(fleet):
  process = fleet.start()
  remote, _ = fleet.reach(process)
  wanted = forgetting.Forget((('ann', 'chat'),), ('salt',))
  await remote.forget(wanted)
  state, held = await remote.status(), await remote.list_cached()
  ended = await remote.drain(5.0)
  with pytest.raises(request_lib.Busy) as error:
    await world.open_one(remote)
  assert process.replica.forgotten == [wanted]
  assert state[:4] == (1.5, 0, 3, 4)
  assert state.reading.running == 0
  assert held == [replica_lib.CachedText('salt', '', 9)]
  assert (ended, error.value.seconds) == (0, None)


async def test_stopping_ends_streams_here_and_nothing_there(fleet):
  process = fleet.start()
  remote, _ = fleet.reach(process)
  other, _ = fleet.reach(process)
  engine = process.replica.worker.engine
  engine.before_round = lambda: time.sleep(0.5)
  stream = await world.open_one(remote, 0, count=50)
  await asyncio.to_thread(remote.stop)
  with pytest.raises(replica_lib.Lost):
    await world.read(stream)
  stream.cancel()
  # Nobody reads it: it does not run to its end, 25 s from here.
  assert await asyncio.to_thread(trivial.until, lambda: engine.is_idle, 15)
  engine.before_round = lambda: None
  assert await read_one(other) == fake_device.expected(world.request())[0]

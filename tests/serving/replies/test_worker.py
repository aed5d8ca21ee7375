"""The engine's thread: what arrives, what ends, and what is left behind."""

import asyncio
import threading
import time
import types

import numpy as np
import pytest

from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from tests.decoding import fake_device
from tests.decoding import fake_engine
from tests.serving import trivial
from tests.serving import world


@pytest.fixture
def make():
  """Returns a function that starts a worker; stops it at the end."""
  workers = []

  def made(**options):
    worker = worker_lib.Worker(world.Engine(**options))
    worker.start()
    workers.append(worker)
    return worker

  yield made
  for worker in workers:
    worker.stop()


class Clock(trivial.Clock):
  """A clock that each round winds, once its reader waits for a token."""

  def __init__(self, seconds):
    super().__init__(0.0)
    self.reader = None
    self._seconds = seconds

  def wind(self):
    assert trivial.until(
      lambda: self.reader and (self.reader.is_waiting or self.reader.reason)
    )
    self.now += self._seconds


async def test_concurrent_streams_get_their_own_tokens_in_order(make):
  worker = make()
  streams = [await world.open_one(worker, seed) for seed in range(40)]
  found = await asyncio.gather(*map(world.read, streams))
  for seed, tokens in enumerate(found):
    assert tokens == fake_device.expected(world.request(seed))[0]
    assert streams[seed].result().reason == 'length'


async def test_reused_tokens_are_known_with_the_first_token(make):
  worker = make()
  first = await world.open_one(worker, 0, 20)
  await world.read(first)
  again = await world.open_one(worker, 0, 20)
  await anext(again)
  assert (first.reused, again.reused) == (0, 19)


async def test_a_thousand_streams_dropped_at_random_tokens_leave_nothing(make):
  worker = make()
  rng = np.random.default_rng(0)

  async def reader(seed):
    stream = await world.open_one(worker, seed)
    for _ in range(rng.integers(0, 12)):
      await anext(stream)
    stream.cancel()

  for begin in range(0, 1000, 50):
    await asyncio.gather(*map(reader, range(begin, begin + 50)))
  assert await worker.call(lambda: fake_engine.nothing_is_left(worker.engine))
  assert not worker._streams


async def test_a_reader_that_is_cancelled_while_it_submits_leaves_nothing(make):
  worker = make()
  begun, may_end = worker.engine.hold()
  busy = await world.open_one(worker, 0, count=40)
  assert await asyncio.to_thread(begun.wait, 100)
  task = asyncio.create_task(world.open_one(worker, 1, count=50))
  # Until the round has ended, what is submitted waits.
  while worker._commands.empty():
    await asyncio.sleep(0)
  task.cancel()
  with pytest.raises(asyncio.CancelledError):
    await task
  may_end.set()
  busy.cancel()
  assert await worker.call(lambda: worker.engine.is_idle)


async def test_who_waits_keeps_the_lease_and_who_stops_reading_loses_it(make):
  clock = Clock(0.05)
  worker = make(limits=admission.Limits(lease=1.0), rows=2, clock=clock)
  worker.engine.before_round = clock.wind
  unread, waited = await worker.submit(
    world.request(0, count=50), world.request(1, count=40)
  )
  clock.reader = waited
  tokens = await world.read(waited)
  # Nobody waits for it, so that nothing renews its lease.
  while unread.reason is None:
    await asyncio.sleep(0.01)
  with pytest.raises(StopAsyncIteration):
    while True:
      await anext(unread)
  assert len(tokens) == 40 and unread.result().reason == 'cancelled'


async def test_who_waits_for_a_row_keeps_the_lease(make):
  clock = Clock(0.02)
  worker = make(limits=admission.Limits(lease=0.3), rows=1, clock=clock)
  worker.engine.before_round = clock.wind
  busy, waits = await worker.submit(
    world.request(0, count=50), world.request(1, count=3)
  )
  clock.reader = waits
  await asyncio.gather(world.read(waits), world.read(busy))
  # Longer than the lease, without a token of its own.
  assert waits.result().reason == 'length'


async def test_several_requests_are_taken_together_or_not_at_all(make):
  worker = make()
  wrong = request_lib.Request([1, 2], 1000)
  with pytest.raises(ValueError, match='row of the cache'):
    await worker.submit(world.request(0), wrong)
  assert await worker.call(lambda: worker.engine.is_idle)


async def test_bad_logits_reach_the_reader_alone(make):
  worker = make(bad=3)
  streams = [await world.open_one(worker, seed, count=9) for seed in range(12)]
  found = await asyncio.gather(
    *map(world.read, streams), return_exceptions=True
  )
  for seed, tokens in enumerate(found):
    expected, reason = fake_device.expected(world.request(seed, 5, 9), bad=3)
    if reason == 'error':
      assert isinstance(tokens, request_lib.BadLogits)
    else:
      assert tokens == expected
  assert any(isinstance(x, Exception) for x in found) and worker.is_alive


async def test_a_failed_engine_ends_streams_and_refuses_the_next(make):
  worker = make()
  count = []

  def fail():
    count.append(0)
    if len(count) > 3:
      raise RuntimeError('the device is gone')

  worker.engine.before_round = fail
  stream = await world.open_one(worker, 0)
  with pytest.raises(worker_lib.Stopped, match='the device is gone'):
    await world.read(stream)
  with pytest.raises(worker_lib.Stopped, match='the device is gone'):
    await world.open_one(worker, 1)
  assert not worker.is_alive


async def test_streams_go_on_while_what_is_rare_compiles():
  engine = world.Engine()
  engine.rounds.waiting = 2
  begun, may_end = threading.Event(), threading.Event()

  def compile_next():
    begun.set()
    may_end.wait(100)
    engine.rounds.waiting -= 1

  engine.rounds.compile_next = compile_next
  left = []
  worker = worker_lib.Worker(engine, lambda: left.append(engine.rounds.waiting))
  worker.start()
  assert worker.compilations == 2 and begun.wait(100)
  assert (
    await world.read(await world.open_one(worker, 3))
  ) == fake_device.expected(world.request(3))[0]
  assert engine.rounds.waiting == 2
  stopping = threading.Thread(target=worker.stop)
  stopping.start()
  while not worker._is_stopping:
    time.sleep(0.01)
  may_end.set()
  stopping.join(100)
  # What is not needed any more is not begun.
  assert engine.rounds.waiting == 1 and not worker._compiling.is_alive()
  assert left == [1]


async def test_draining_finishes_what_runs_and_takes_nothing_new(make):
  worker = make()
  worker.engine.before_round = lambda: time.sleep(0.01)
  stream = await world.open_one(worker, 0)
  reading = asyncio.create_task(world.read(stream))
  draining = asyncio.create_task(worker.drain(100))
  while not worker._is_draining:
    await asyncio.sleep(0)
  with pytest.raises(request_lib.Busy):
    await world.open_one(worker, 1)
  tokens, ended = await reading, await draining
  assert tokens == fake_device.expected(world.request(0))[0] and ended == 0


async def test_what_draining_cannot_finish_is_ended_and_told(make):
  worker = make()
  worker.engine.before_round = lambda: time.sleep(0.2)
  stream = await world.open_one(worker, 0, count=50)
  await anext(stream)
  ended = await worker.drain(0.2)
  tokens = await world.read(stream)
  assert (ended, stream.result().reason) == (1, 'drained') and len(tokens) < 49


async def test_stopping_ends_what_waits(make):
  worker = make()
  worker.engine.before_round = lambda: time.sleep(0.1)
  stream = await world.open_one(worker, 0, count=50)
  await anext(stream)
  await asyncio.to_thread(worker.stop)
  with pytest.raises(worker_lib.Stopped):
    await world.read(stream)


def rate_of(monkeypatch, *groups):
  """Returns the rate of a stream that gets groups of tokens at given times."""
  stream = token_stream.AsyncStream(None, None)
  for seconds, count in groups:
    clock = types.SimpleNamespace(perf_counter=lambda now=seconds: now)
    monkeypatch.setattr(token_stream, 'time', clock)
    stream.deliver(token_stream.Delivery(stream, [None] * count))
  return stream.rate


def test_a_streams_rate_counts_from_its_first_token(monkeypatch):
  single = [(100.0 + 0.1 * n, 1) for n in range(16)]
  assert rate_of(monkeypatch, *single) == pytest.approx(10)
  assert rate_of(monkeypatch, *single[:15]) is None
  # The last tokens of a slow stream came together, and nothing came later.
  groups = (0.0, 1), (1.0, 10), (2.0, 30), (9.0, 0)
  assert rate_of(monkeypatch, *groups) == pytest.approx(20)
  # Tokens that come with the first say nothing of time.
  assert rate_of(monkeypatch, (0.0, 5), (1.0, 20)) == pytest.approx(20)
  assert rate_of(monkeypatch, (5.0, 40)) is None
  assert rate_of(monkeypatch) is None

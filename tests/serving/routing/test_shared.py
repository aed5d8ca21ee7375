"""A router that ends leaves its replicas to other ingresses."""

import asyncio
import time

import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routing import router as router_lib
from tests.decoding import fake_device
from tests.serving import world
from tests.serving.routing import processes


@pytest.fixture
def replica():
  made = processes.Local('one')
  yield made
  made.stop()


async def test_a_drain_ends_what_began_here_and_nothing_else(replica):
  replica.worker.engine.before_round = lambda: time.sleep(0.02)
  settings = router_lib.Settings(owns_replicas=False)
  one, other = (router_lib.Router(b'0' * 32, settings) for _ in range(2))
  one.add(replica)
  other.add(replica)
  (here,) = await one.submit(world.request(0, count=50))
  (there,) = await other.submit(world.request(1, count=12))
  await anext(here)
  assert await one.drain(0.0) == 1
  with pytest.raises(request_lib.Busy) as error:
    await one.submit(world.request(2))
  assert error.value.seconds is None
  assert len([event async for event in here]) < 49
  assert here.reason == 'cancelled'
  found = [event.token async for event in there]
  assert found == fake_device.expected(world.request(1, count=12))[0]


async def test_a_drain_waits_for_what_ends_in_time(replica):
  router = router_lib.Router(b'0' * 32)
  router.add(replica)
  (stream,) = await router.submit(world.request(0))
  draining = asyncio.create_task(router.drain(60.0))
  found = [event.token async for event in stream]
  assert await draining == 0
  assert found == fake_device.expected(world.request(0))[0]

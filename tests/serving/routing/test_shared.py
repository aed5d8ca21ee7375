"""A router that ends leaves its replicas to other ingresses."""

import asyncio
import time

import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routing import router as router_lib
from tests.decoding import fake_device
from tests.serving import world
from tests.serving.routing import processes


def test_a_drain_ends_what_began_here_and_nothing_else():
  replica = processes.Local('one')
  replica.worker.engine.before_round = lambda: time.sleep(0.02)
  settings = router_lib.Settings(owns_replicas=False)
  one, other = (router_lib.Router(b'0' * 32, settings) for _ in range(2))
  one.add(replica)
  other.add(replica)

  async def main():
    (here,) = await one.submit(world.request(0, count=50))
    (there,) = await other.submit(world.request(1, count=12))
    await anext(here)
    ended = await one.drain(0.0)
    with pytest.raises(request_lib.Busy) as error:
      await one.submit(world.request(2))
    left = [event.token async for event in here]
    found = [event.token async for event in there]
    return ended, error.value.seconds, left, here.reason, found

  try:
    ended, seconds, left, reason, found = asyncio.run(main())
  finally:
    replica.stop()
  assert (ended, seconds, reason) == (1, None, 'cancelled')
  assert len(left) < 49
  assert found == fake_device.expected(world.request(1, count=12))[0]


def test_a_drain_waits_for_what_ends_in_time():
  replica = processes.Local('one')
  router = router_lib.Router(b'0' * 32)
  router.add(replica)

  async def main():
    (stream,) = await router.submit(world.request(0))
    draining = asyncio.create_task(router.drain(60.0))
    found = [event.token async for event in stream]
    return await draining, found

  try:
    ended, found = asyncio.run(main())
  finally:
    replica.stop()
  assert ended == 0
  assert found == fake_device.expected(world.request(0))[0]

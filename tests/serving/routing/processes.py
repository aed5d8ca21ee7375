"""Replicas as if in processes of their own: all is pickled, and they die."""

import asyncio
import contextlib
import pickle
import threading

from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import replica_host
from tests.serving import world


class Local:
  """A replica around a worker, with the engine of `world`."""

  def __init__(self, name: str, **options):
    self.name, self.build = name, 'build'
    self.worker = worker_lib.Worker(world.Engine(**options))
    self.worker.start()
    self.submit, self.drain = self.worker.submit, self.worker.drain
    self.stop = self.worker.stop
    self.forgotten = []

  @property
  def is_alive(self):
    return self.worker.is_alive

  def is_idle(self):
    return self.worker.engine.is_idle

  async def status(self):
    load = await self.worker.call(self.worker.engine.load)
    reading = await asyncio.to_thread(self.worker.read_engine)
    return replica_lib.Status(1.5, load.running + load.waiting, 3, 4, reading)

  async def list_cached(self):
    return [replica_lib.CachedText('salt', '', 9)]

  async def forget(self, wanted):
    self.forgotten.append(wanted)


class Process:
  """A replica with its host, in a thread for a process.

  Attributes:
    replica: that lives in it.
    failures, call_failures: end with an error who hears its messages, and who
      waits for its answers.
  """

  def __init__(self, replica: Local, lease=30.0, **options):
    self.replica = replica
    self.host = replica_host.ReplicaHost(
      replica, lease, {'length': 64}, **options
    )
    self.loop = asyncio.new_event_loop()
    self.is_dead = False
    self.failures, self.call_failures = [], []
    self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
    self._thread.start()

  def kill(self):
    """Ends it as SIGKILL does: nothing that it has is sent."""
    self.is_dead = True
    self.loop.call_soon_threadsafe(self.loop.stop)
    self._thread.join()
    for fail in self.failures + self.call_failures:
      # Of a loop that may have ended long since.
      with contextlib.suppress(RuntimeError):
        fail()
    self.replica.stop()
    left = asyncio.all_tasks(self.loop)
    for task in left:
      task.cancel()
    if left:
      self.loop.run_until_complete(asyncio.wait(left))
    self.loop.close()


class Transport:
  """A way to whatever process the replica lives in.

  Attributes:
    process: that one.
    is_silent: whether messages are lost.
    is_stubborn: whether a call goes on whose caller has given it up.
    said: all that crossed, pickled.
  """

  def __init__(self, process: Process):
    self.process = process
    self.is_silent = self.is_stubborn = False
    self.said = []

  async def subscribe(self, ingress):
    process, loop = self._alive(), asyncio.get_running_loop()
    arrived = asyncio.Queue()

    def put(item):
      loop.call_soon_threadsafe(arrived.put_nowait, item)

    async def pump():
      async with contextlib.aclosing(
        process.host.subscribe(ingress)
      ) as messages:
        async for message in messages:
          put(self._cross(message))
      put(None)

    process.failures.append(lambda: put(ConnectionError('killed')))
    pumping = asyncio.run_coroutine_threadsafe(pump(), process.loop)
    try:
      while (item := await arrived.get()) is not None:
        if isinstance(item, Exception):
          raise item
        if not self.is_silent:
          yield item
    finally:
      pumping.cancel()

  async def call(self, method, *arguments):
    process, loop = self._alive(), asyncio.get_running_loop()
    arguments = self._cross(arguments)
    future = asyncio.wrap_future(
      asyncio.run_coroutine_threadsafe(
        process.host.call(method, *arguments), process.loop
      )
    )

    def fail():
      if not future.done():
        future.set_exception(ConnectionError('killed'))

    process.call_failures.append(lambda: loop.call_soon_threadsafe(fail))
    return self._cross(
      await (asyncio.shield(future) if self.is_stubborn else future)
    )

  def _alive(self):
    if self.process.is_dead:
      raise ConnectionError('dead')
    return self.process

  def _cross(self, value):
    data = pickle.dumps(value)
    self.said.append(data)
    return pickle.loads(data)

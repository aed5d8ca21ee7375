"""A fleet of replicas in this process, whose engines can be killed.

The model is tiny and in reference mode, so that a text has the same bits
wherever it is drawn. Decoders and what they have compiled are used again and
again; a killed replica gets a new worker and an empty cache.
"""

import asyncio
import contextlib
import threading

import numpy as np

from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import router as router_lib
from tests.decoding import toys
from tests.serving import running as running_lib
from tests.serving import world

SECRET = running_lib.SECRET
NAMES = replica_lib.Pseudonyms(SECRET)
CONFIG = toys.small()
LENGTH, CHUNK, ROWS = 48, 8, 3


class Killed(RuntimeError):
  """An error: a test ended an engine."""


class Mortal:
  """Of an engine: it dies in a round.

  Attributes:
    fuse: rounds until it dies; None for never.
    loses: whether the tokens of its last round are drawn, and lost with it.
  """

  fuse: int | None = None
  loses = False

  def advance(self):
    if self.fuse is not None:
      self.fuse -= 1
      if self.fuse < 0:
        if self.loses:
          super().advance()
        raise Killed('a test killed it.')
    super().advance()

  def clear(self):
    """Empties a dead engine, for another worker."""
    for one in self.state.sequences():
      self.cancel(one)
    self.decoder.account.tree.clear()
    self.fuse, self._is_draining = None, False
    assert self.is_idle and not self.decoder.account.open_rows


class Engine(Mortal, engine_lib.Engine):
  """An engine of a tiny model, in reference mode."""


class Light(Mortal, world.Engine):
  """An engine without a model, whose texts follow from prompt and seed."""


def make_engines(count):
  config = toys.drawn(CONFIG)
  made = []
  for _ in range(count):
    decoder = decoder_lib.Decoder(
      config,
      CONFIG,
      rows=ROWS,
      length=LENGTH,
      page=4,
      mode='reference',
    )
    made.append(
      Engine(
        decoder,
        tokenizer.Bytes(),
        chunk=CHUNK,
        head=toys.head_of(),
      )
    )
  return made


class Gate:
  """Lets engines run rounds as the event loop says, until it is opened."""

  def __init__(self, engines):
    self._engines = engines
    self._permits = threading.Semaphore(0)
    for engine in engines:
      engine.before_round = self._permits.acquire

  async def until(self, waited):
    """Returns what comes of something that takes rounds, one by one."""
    task = asyncio.ensure_future(waited)
    while not task.done():
      self._permits.release()
      await asyncio.sleep(0.001)
    return task.result()

  def open(self):
    for engine in self._engines:
      engine.before_round = lambda: None
    self._permits.release(2**20)


class Fleet:
  """Replicas, and a router over them.

  Args:
    engines: one per replica; they are emptied at the end.
    **settings: of the router.
  """

  def __init__(self, engines, **settings):
    self.engines = engines
    self.router = router_lib.Router(SECRET, router_lib.Settings(**settings))
    self.replicas = {}
    self.gate: Gate | None = None
    for number in range(len(engines)):
      self.start(number)

  def start(self, number):
    """Starts a replica anew, and adds it to the router."""
    engine = self.engines[number]
    engine.clear()
    worker = worker_lib.Worker(engine)
    worker.start()
    made = replica_lib.LocalReplica(f'r{number}', worker, 'b1', NAMES)
    self.replicas[number] = made
    self.router.add(made)

  def hold(self) -> Gate:
    """Holds all engines back; returns what lets them run."""
    self.gate = Gate(self.engines)
    return self.gate

  def revive(self):
    """Starts dead replicas again."""
    for number, one in self.replicas.items():
      if not one.is_alive:
        self.start(number)

  def kill(self, number):
    """Kills a replica between two rounds."""

    def die():
      raise Killed('a test killed it.')

    self.replicas[number].worker._commands.put(die)

  def left(self) -> dict:
    """Returns what is still taken on living replicas; {} where nothing is."""
    found = {'routed': len(self.router._streams)}
    for place in self.router._replicas:
      if place.is_open:
        found[f'{place.replica.name} load'] = place.charged
    for number, one in self.replicas.items():
      if one.is_alive:
        engine = one.worker.engine
        found[f'{number} streams'] = len(one.worker._streams)
        found[f'{number} rows'] = len(engine.decoder.account.open_rows)
        found[f'{number} waiting'] = len(engine.state.waiting)
        found[f'{number} running'] = len(engine.state.running)
        found[f'{number} unread'] = len(engine._inflight)
    return {name: count for name, count in found.items() if count}

  async def nothing_is_left(self, seconds=5.0):
    """Asserts that nothing is taken any more, now or soon."""
    end = asyncio.get_running_loop().time() + seconds
    while self.left() and asyncio.get_running_loop().time() < end:
      await asyncio.sleep(0.01)
    assert not self.left()
    if self.router._polling is not None:
      await self.router._polling
    await asyncio.gather(*self.router._repeated_removals)
    assert asyncio.all_tasks() == {asyncio.current_task()}

  def stop(self):
    if self.gate is not None:
      self.gate.open()
    for one in self.replicas.values():
      one.stop()
      one.worker.engine.clear()


@contextlib.contextmanager
def running(engines, **settings):
  fleet = Fleet(engines, **settings)
  try:
    yield fleet
  finally:
    fleet.stop()


def text(length, seed):
  return np.random.default_rng(seed).integers(1, 256, length).tolist()


async def read(stream):
  """Returns a stream's events and its result."""
  events = [event async for event in stream]
  return events, stream.result()

"""A replica whose engine runs in this process.

replica = LocalReplica('one', worker, build, pseudonyms.Pseudonyms(secret))
router.add(replica)
"""

import asyncio
from collections.abc import Hashable
from collections.abc import Sequence

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import pseudonyms
from kaiju_jax.serving.routing import replica

# The most texts that a replica lists; our guess.
MOST = 4096


class LocalReplica:
  """A `replica.Replica` around a worker."""

  def __init__(
    self,
    name: str,
    worker: worker_lib.Worker,
    build: str,
    names: pseudonyms.Pseudonyms,
  ):
    self.name, self.build = name, build  # As in `replica.Replica`.
    self.worker = worker  # It runs, or will; ended by `stop`.
    self.submit, self.drain = worker.submit, worker.drain
    self.stop = worker.stop
    self._names = names

  @property
  def is_alive(self) -> bool:
    """Whether its worker is."""
    return self.worker.is_alive

  async def status(self) -> replica.Status:
    """Returns its status, between two rounds."""
    worker = self.worker
    load, reading = await worker.call(lambda: _measure(worker.engine))
    running = reading.waiting + reading.running
    return replica.Status(
      load, running, worker.compiled, worker.compilations, reading
    )

  async def list_cached(self) -> Sequence[replica.CachedText]:
    """Returns the texts of its cache, the latest first, at most `MOST`."""
    engine = self.worker.engine
    found = await self.worker.call(lambda: _list_cached(engine))
    # Thousands of HMACs take milliseconds.
    return await asyncio.to_thread(lambda: [self._name(*one) for one in found])

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from its cache."""
    await self.worker.forget(wanted)

  def _name(
    self, salt: bytes, conversation, tokens: int, idle: float
  ) -> replica.CachedText:
    whose = ''
    if conversation is not None:
      owner, name = conversation
      whose = self._names.conversation(owner.decode(), name)
    return replica.CachedText(
      self._names.salt(salt.decode()), whose, tokens, idle
    )


def _measure(engine: engine_lib.Engine) -> tuple[float, metrics.Reading]:
  """Returns an engine's load, as policies count it, and its reading."""
  load = engine.load()
  prompts = load.prompt + load.waiting + load.running
  return float(prompts), metrics.reading(engine)


def _list_cached(engine: engine_lib.Engine) -> list[tuple]:
  """Returns salt, conversation, length and idle seconds, the latest first."""
  whose = {
    point: one.conversation
    for one in engine.recorder.conversations()
    for point in one.points
  }
  policy = engine.decoder.account.policy
  found: dict[Hashable, tuple] = {}
  for point in reversed(list(engine.decoder.account.tree.points())):
    name = whose.get(point)
    if name is None and point.salt:
      continue
    key = point if name is None else name
    if key not in found and len(found) == MOST:
      continue
    idle = policy.demand(point).idle
    _, _, length, least = found.get(key, ('', '', 0, idle))
    length, idle = max(point.length, length), min(idle, least)
    found[key] = nodes.root(point).salt, name, length, idle
  return list(found.values())

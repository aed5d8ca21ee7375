"""Interfaces of engines: one replica behind a router, and all that routes use.

    streams = await replica.submit(request)    of tokens
    await replica.status()                     its load
    await replica.list_cached()                the texts that its cache holds

The routes see `Engines`: a `worker.Worker` (one engine) or a `router.Router`. A
router sees `Replica`s: a `LocalReplica` runs in this process, a `RemoteReplica`
in another one. A replica that dies ends its streams with `Lost`, and the router
submits the rest of each text elsewhere. All that crosses this interface can be
pickled.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.storage import sealed

# Hex digits of a pseudonym that fit a policy's arithmetic.
_DIGITS = 15
# The most texts that a replica lists; our guess.
MOST = 4096


class Pseudonyms:
  """Pseudonyms of texts and conversations, for tables and announcements.

  They are HMACs under a key of the fleet, so that nobody who sees a table or an
  announcement learns of a private character, or who talks to whom.
  """

  def __init__(self, secret: bytes):
    self._sealer = sealed.Sealer(secret, 'routing')

  @property
  def fleet(self) -> str:
    """Hex that names the fleet without disclosing its secret."""
    return self._sealer.pseudonym(b'fleet').hex()

  def salt(self, cache_salt: str) -> str:
    """Returns the pseudonym of a cache salt, hex."""
    return self._sealer.pseudonym(b'salt ' + cache_salt.encode()).hex()

  def conversation(self, owner: str, conversation: Hashable) -> str:
    """Returns the pseudonym of an owner's conversation, hex."""
    text = repr((owner, conversation)).encode()
    return self._sealer.pseudonym(b'conversation ' + text).hex()


def number(pseudonym: str) -> int:
  """Returns a pseudonym as a number of 60 bits, for `policies.pick`."""
  return int(pseudonym[:_DIGITS], 16)


class Lost(worker_lib.Stopped):
  """An error: the replica is gone, and with it the rest of a text.

  A replica whose engine runs in this process may raise `worker.Stopped` itself.
  """


class CachedText(NamedTuple):
  """A text that a replica's cache can resume; its names are pseudonyms."""

  salt: str  # Of the text's cache salt.
  conversation: str  # Of its owner and conversation; '' for a shared prefix.
  tokens: int
  idle: float = 0.0  # Seconds since its last use.


class Status(NamedTuple):
  """A replica's report of its load."""

  # The prompt tokens that it must still prefill, and one for each request that
  # it has, as `policies.pick` counts.
  load: float
  running: int  # Sequences that have begun or wait.
  compiled: int  # compiled, compilations: as in `Engines`.
  compilations: int
  reading: metrics.Reading  # For the metrics.


class _Engine(Protocol):
  """What replicas and routers have in common."""

  @property
  def is_alive(self) -> bool:
    """Whether requests can be answered, as far as is known here."""

  async def submit(
    self, *requests: request_lib.Request
  ) -> Sequence[token_stream.TokenStream]:
    """Submits the choices of one answer; takes all of them, or none.

    A caller that is cancelled meanwhile leaves no sequence behind.

    Raises:
      TypeError, ValueError: names the field that is wrong.
      request.Busy: the queue or the wait is too long, or the engine drains.
      worker.Stopped: the engine is gone, or none is left.
    """

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from the caches; raises `worker.Stopped`."""

  async def drain(self, seconds: float) -> int:
    """Refuses requests; returns how many had to be ended after `seconds`."""

  def stop(self) -> None:
    """Ends the engines and all streams; may block."""


class Engines(_Engine, Protocol):
  """One engine or several, for the routes.

  Attributes:
    max_wait_s: the most seconds that a request may wait for a row; None: any.
    max_alternatives: the most alternatives of a token that a request may get.
    compilations: programs that were left to compile after the start.
    compiled: how many of them are done.
  """

  max_wait_s: float | None
  max_alternatives: int
  compilations: int
  compiled: int

  async def begin(self) -> None:
    """Prepares for requests, in the server's loop, before the first."""

  def read_engine(self) -> metrics.Reading | None:
    """Returns the engines' state; None if late. It blocks: use a thread."""


class Replica(_Engine, Protocol):
  """One engine behind a router."""

  name: str  # Unique within the fleet.
  # Digest of its weights, calibration and head; replicas of one build give the
  # same text.
  build: str

  async def status(self) -> Status:
    """Returns its status; raises `Lost`."""

  async def list_cached(self) -> Sequence[CachedText]:
    """Returns the texts of its cache, the latest first; raises `Lost`."""


class LocalReplica:
  """A `replica.Replica` around a worker."""

  def __init__(
    self,
    name: str,
    worker: worker_lib.Worker,
    build: str,
    names: Pseudonyms,
  ):
    # As in `replica.Replica`.
    self.name: str = name
    self.build: str = build
    # It runs, or will; ended by `stop`.
    self.worker: worker_lib.Worker = worker
    self.submit: Callable[..., Any] = worker.submit
    self.drain: Callable[..., Any] = worker.drain
    self.stop: Callable[[], None] = worker.stop
    self._names = names

  @property
  def is_alive(self) -> bool:
    """Whether its worker is."""
    return self.worker.is_alive

  async def status(self) -> Status:
    """Returns its status, between two rounds."""
    worker = self.worker
    load, reading = await worker.call(lambda: _measure(worker.engine))
    running = reading.waiting + reading.running
    return Status(load, running, worker.compiled, worker.compilations, reading)

  async def list_cached(self) -> Sequence[CachedText]:
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
  ) -> CachedText:
    whose = ''
    if conversation is not None:
      owner, name = conversation
      whose = self._names.conversation(owner.decode(), name)
    return CachedText(self._names.salt(salt.decode()), whose, tokens, idle)


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

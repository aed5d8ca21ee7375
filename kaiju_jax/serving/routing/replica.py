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

from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib


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

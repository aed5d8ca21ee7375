"""Defines what a router asks of a replica: one engine, here or elsewhere.

    streams = await replica.submit(request)   of tokens
    await replica.status()                     its load
    await replica.list_cached()                 the texts that its cache holds

A replica that dies ends its streams with `Lost`; whoever reads them submits the
rest of each text elsewhere (`router.py`). All that crosses this seam can be
pickled, so that a replica may live in another process.
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

  # Pseudonym of the text's cache salt: nobody learns of a private character.
  salt: str
  conversation: str  # Of its owner and conversation; '' for a shared prefix.
  tokens: int
  idle: float = 0.0  # Seconds since its last use.


class Status(NamedTuple):
  """A replica's report of its load."""

  # The prompt tokens that it must still prefill, and one for each request that
  # it has, as `policies.pick` counts.
  load: float
  running: int  # Sequences that have begun or wait.
  ready: int  # ready, compilations: as in `engines.Engines`.
  compilations: int
  reading: metrics.Reading  # For the metrics.


class Replica(Protocol):
  """One engine behind a router.

  Attributes:
    is_alive: whether it can answer, as far as is known here.
  """

  name: str  # Unique within the fleet.
  # Digest of its weights, calibration and head; replicas of one build give the
  # same text.
  build: str

  @property
  def is_alive(self) -> bool: ...

  async def submit(
    self, *requests: request_lib.Request, before: int = 0
  ) -> Sequence[token_stream.TokenStream]:
    """Submits requests; takes all of them, or none.

    A caller that is cancelled meanwhile leaves no sequence behind.

    Raises:
      TypeError, ValueError, request.Busy: see `worker.Worker.submit`.
      Lost: the replica is gone.
    """

  async def status(self) -> Status:
    """Returns its status; raises `Lost`."""

  async def list_cached(self) -> Sequence[CachedText]:
    """Returns the texts of its cache, the latest first; raises `Lost`."""

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from its cache; raises `Lost`."""

  async def drain(self, seconds: float) -> int:
    """Refuses requests; returns how many had to be ended after `seconds`."""

  def stop(self) -> None:
    """Ends it and its streams; may block."""

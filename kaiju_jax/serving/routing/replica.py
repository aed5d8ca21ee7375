"""What a router asks of a replica: one engine, here or in another process.

    replica.submit(request)   its streams of tokens
    await replica.state()     its load, and the texts that its cache holds

A replica that dies ends its streams with `Lost`; whoever reads them submits the
rest of each text elsewhere (`router.py`). All that crosses this seam can be
pickled, so that a replica may live in another process.
"""

from collections.abc import AsyncIterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from kaiju_jax.decoding.requests import request as request_lib


class Lost(RuntimeError):
  """An error: the replica is gone, and with it the rest of a text."""


class Stream(Protocol):
  """The drawn tokens of one request, as `worker.AsyncStream` gives them.

  Attributes:
    waited: seconds until it had a row; set once a token has come.
    reused: tokens of the prompt that the cache held; set likewise.
    prompt_scores: as in `request.Result`; set likewise.
    has_more: whether the next event is here already.
    rate: tokens per second behind the first; None where too few came.
    reason: why the sequence ended; None before its end.
  """

  waited: float
  reused: int
  prompt_scores: tuple[float, ...] | None

  @property
  def has_more(self) -> bool: ...

  @property
  def rate(self) -> float | None: ...

  @property
  def reason(self) -> str | None: ...

  def __aiter__(self) -> AsyncIterator[request_lib.Event]: ...

  async def __anext__(self) -> request_lib.Event:
    """Returns the next event.

    Raises:
      BadLogits, Late: see `request.py`.
      Lost: the replica is gone.
    """

  def result(self) -> request_lib.Result:
    """Returns the result, once the stream has ended."""

  def cancel(self) -> None:
    """Ends the sequence; never waits."""


class Held(NamedTuple):
  """A text that a replica's cache can resume.

  Attributes:
    salt: hex HMAC of the text's cache salt, so that nobody who sees it learns
      of a private character.
    conversation: hex HMAC of (owner, conversation); '' for a shared prefix.
    tokens: its length.
    used: Unix seconds of its last use.
  """

  salt: str
  conversation: str
  tokens: int
  used: float


class State(NamedTuple):
  """A replica's account of itself.

  Attributes:
    load: the prompt tokens that it must still prefill, and one for each request
      that it has, as `policies.pick` counts.
    running: sequences that have begun or wait.
    ready, compilations: programs that have compiled, and how many there are.
    held: the texts of its cache, the latest first.
  """

  load: float
  running: int
  ready: int
  compilations: int
  held: tuple[Held, ...] = ()


class Forget(NamedTuple):
  """Texts that a cache must drop.

  Attributes:
    conversations: pairs of owner and conversation.
    salts: cache salts; all texts of each go.
  """

  conversations: tuple[tuple[str, str], ...] = ()
  salts: tuple[str, ...] = ()


class Replica(Protocol):
  """One engine behind a router.

  Attributes:
    name: unique within the fleet.
    build: digest of its weights, calibration and head; replicas of one build
      give the same text.
    is_alive: whether it can answer, as far as is known here.
  """

  name: str
  build: str

  @property
  def is_alive(self) -> bool: ...

  async def submit(
    self, *requests: request_lib.Request, before: int = 0
  ) -> Sequence[Stream]:
    """Submits requests; takes all of them, or none.

    Raises:
      TypeError, ValueError, request.Busy: see `worker.Worker.submit`.
      Lost: the replica is gone.
    """

  async def state(self) -> State:
    """Returns its account of itself; raises `Lost`."""

  async def forget(self, wanted: Forget) -> None:
    """Drops texts from its cache; raises `Lost`."""

  async def drain(self, seconds: float) -> int:
    """Refuses requests; returns how many had to be ended after `seconds`."""

  def stop(self) -> None:
    """Ends it and its streams."""

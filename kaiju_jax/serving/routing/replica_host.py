"""Serves a replica to ingresses of other processes.

    host = ReplicaHost(replica, lease=30)
    async for message in host.subscribe('ingress-1'): ...   # to the ingress
    answer = await host.call('submit', 'ingress-1', …)

Each ingress subscribes once, and gets in one message per round the new tokens
of all its streams; a heartbeat every second says that the replica lives.
Whatever a call raises is returned as a value: what carries these calls would
write an exception, and with it people's text, into its log.

An ingress that leaves, or renews no lease, ends its sequences.
"""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import time
from typing import Any
from typing import NamedTuple

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.routing import replica as replica_lib

# Seconds between two messages, at most; and of silence of the other side, after
# which it counts as gone (our guesses).
BEAT, SILENCE = 1.0, 10.0


class Welcome(NamedTuple):
  """The first message to an ingress."""

  name: str  # name, build: the replica's.
  build: str
  lease: float  # Seconds for which a stream may stay unread.
  facts: Any  # What the replica's maker says of it, such as its model.


class Update(NamedTuple):
  """News of one stream."""

  number: int  # The stream's, as its ingress numbers it.
  events: list[request_lib.Event]  # Its new tokens.
  prompt: token_stream.Prompt  # As far as it is known.
  result: request_lib.Result | None = None  # Once it has ended.
  error: Exception | None = None  # Why it ended without a result.


class Heartbeat(NamedTuple):
  """A message: whether the replica can answer, and the news since the last."""

  is_alive: bool
  updates: list[Update]


class CallResult(NamedTuple):
  """The value of a call, or the error that it would have raised."""

  value: Any = None
  error: Exception | None = None


class OwnedReplica(NamedTuple):
  """A replica that a process has made for itself."""

  replica: replica_lib.Replica  # It runs.
  lease: float  # Seconds for which a stream may stay unread.
  facts: Any  # For its ingresses (`Welcome`).
  close: Callable[[], None]  # Ends it.


class _Ingress:
  """An ingress that subscribes."""

  def __init__(self):
    self.streams: dict[int, token_stream.TokenStream] = {}  # By number.
    # By number, when its lease was last renewed.
    self.renewed: dict[int, float] = {}
    self.submitting: set[int] = set()  # Numbers that have no stream yet.
    # Those of them that it has cancelled meanwhile.
    self.unwanted: set[int] = set()
    self.last_call = time.monotonic()  # When it last called.
    self.is_gone = False  # Whether it has been silent for too long.
    self.updates: list[Update] = []  # Not sent yet.
    self.has_news = asyncio.Event()  # Set when there are some, or it is gone.

  def send(self, update: Update) -> None:
    """Adds to the next message."""
    self.updates.append(update)
    self.has_news.set()

  def take(self) -> list[Update]:
    """Returns what is new, once."""
    taken, self.updates = self.updates, []
    self.has_news.clear()
    return taken


class ReplicaHost:
  """Lets ingresses of other processes use a replica.

  All calls come from one event loop.
  """

  def __init__(
    self,
    replica: replica_lib.Replica,
    lease: float,
    facts: Any = None,
    beat: float = BEAT,
    silence: float = SILENCE,
  ):
    """Takes a replica.

    Args:
      replica: a replica of this process.
      lease: seconds for which an ingress may leave a stream unread.
      beat: seconds between two messages, at most.
      silence: seconds without a call of an ingress, after which it is gone.
    """
    self._replica, self._lease, self._facts = replica, lease, facts
    self._beat, self._silence = beat, silence
    self._ingresses: dict[str, _Ingress] = {}
    self._tasks: set[asyncio.Task] = set()
    self._methods = {
      'submit': self._submit,
      'renew': self._renew,
      'cancel': self._cancel,
      'status': replica.status,
      'list_cached': replica.list_cached,
      'forget': replica.forget,
      'drain': replica.drain,
    }

  @property
  def is_alive(self) -> bool:
    """Whether the replica can answer."""
    return self._replica.is_alive

  async def subscribe(self, ingress: str) -> AsyncIterator[Welcome | Heartbeat]:
    """Yields messages to an ingress, until it leaves.

    Args:
      ingress: a name that no other ingress has, and it had not before.
    """
    own = self._ingresses[ingress] = _Ingress()
    watching = asyncio.create_task(self._end_unread(own))
    replica = self._replica
    try:
      yield Welcome(replica.name, replica.build, self._lease, self._facts)
      while not own.is_gone:
        with contextlib.suppress(TimeoutError):
          await asyncio.wait_for(own.has_news.wait(), self._beat)
        # All streams have their tokens of this round.
        await asyncio.sleep(0)
        yield Heartbeat(replica.is_alive, own.take())
    finally:
      watching.cancel()
      del self._ingresses[ingress]
      for stream in own.streams.values():
        stream.cancel()

  async def call(self, method: str, *arguments: Any) -> CallResult:
    """Calls a method of the replica for an ingress; raises nothing.

    Args:
      method: 'submit', 'renew' or 'cancel', which name the ingress first;
        'status', 'list_cached', 'forget' or 'drain', as in `replica.Replica`.
      *arguments: the method's.
    """
    try:
      return CallResult(await self._methods[method](*arguments))
    except Exception as error:
      return CallResult(error=error.with_traceback(None))

  async def _submit(
    self,
    ingress: str,
    numbers: Sequence[int],
    requests: Sequence[request_lib.Request],
  ) -> None:
    """Submits requests, whose streams the ingress has numbered."""
    own = self._find(ingress)
    own.submitting |= set(numbers)
    try:
      streams = await self._replica.submit(*requests)
      unwanted = own.unwanted & set(numbers)
    finally:
      own.submitting -= set(numbers)
      own.unwanted -= set(numbers)
    has_left = self._ingresses.get(ingress) is not own
    now = time.monotonic()
    for number, stream in zip(numbers, streams):
      if has_left or number in unwanted:
        stream.cancel()
      own.streams[number], own.renewed[number] = stream, now
      reading = asyncio.create_task(self._read(own, number, stream))
      self._tasks.add(reading)
      reading.add_done_callback(self._tasks.discard)

  async def _renew(self, ingress: str, numbers: Sequence[int]) -> None:
    """Renews the leases of streams that are read."""
    own = self._find(ingress)
    own.renewed |= {x: own.last_call for x in numbers if x in own.renewed}

  async def _cancel(self, ingress: str, number: int) -> None:
    """Ends a stream, if it has not ended."""
    own = self._find(ingress)
    if number in own.streams:
      own.streams[number].cancel()
    elif number in own.submitting:
      own.unwanted.add(number)

  def _find(self, ingress: str) -> _Ingress:
    """Returns an ingress; raises `Lost` where it is another process's."""
    if ingress not in self._ingresses:
      raise replica_lib.Lost(f'{self._replica.name}: unknown here: {ingress}.')
    own = self._ingresses[ingress]
    own.last_call = time.monotonic()
    return own

  async def _read(
    self, own: _Ingress, number: int, stream: token_stream.TokenStream
  ) -> None:
    """Sends a stream's tokens to its ingress, a round's at a time."""
    result = error = None
    events: list[request_lib.Event] = []
    try:
      async for event in stream:
        events.append(event)
        if not stream.has_more:
          prompt = token_stream.Prompt.collect(stream)
          own.send(Update(number, events, prompt))
          events = []
    except Exception as raised:
      error = raised.with_traceback(None)
    if stream.reason is not None:
      # A result has its error itself.
      result, error = stream.result(), None
    del own.streams[number], own.renewed[number]
    prompt = token_stream.Prompt.collect(stream)
    own.send(Update(number, events, prompt, result, error))

  async def _end_unread(self, own: _Ingress) -> None:
    """Ends streams whose lease has expired, and a silent ingress."""
    while True:
      await asyncio.sleep(min(self._beat, self._lease / 4))
      now = time.monotonic()
      for number, renewed in own.renewed.items():
        if now - renewed > self._lease:
          own.streams[number].cancel()
      if now - own.last_call > self._silence:
        own.is_gone = True
        own.has_news.set()

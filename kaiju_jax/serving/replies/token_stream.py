"""Streams: the tokens of a sequence as an asynchronous iterator of events.

Routes read a `TokenStream`, from one engine or from several; the engine of this
process gives an `AsyncStream` (`worker.py`).
"""

import abc
import asyncio
import collections
from collections.abc import Callable
from collections.abc import Iterable
import logging
import time
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import Self

from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib

_LOG = logging.getLogger(__name__)
# The fewest later tokens of a stream whose rate says something (our guess).
_RATED = 15


class TokenStream(abc.ABC):
  """The drawn tokens of one request, as an asynchronous iterator of `Event`."""

  def __init__(self):
    # Seconds until it had a row; set once a token has come.
    self.waited: float = 0.0
    # Tokens of the prompt that the cache held; set likewise.
    self.reused: int = 0
    # As in `request.Result`; set likewise.
    self.prompt_scores: tuple[float, ...] | None = None
    self._result: request_lib.Result | None = None

  def __aiter__(self) -> Self:
    return self

  @abc.abstractmethod
  async def __anext__(self) -> request_lib.Event:
    """Returns the next event.

    Raises:
      BadLogits, Late: the logits were not finite; no row was free in time.
      worker.Stopped: the engine is gone, and no other could continue.
    """

  @property
  @abc.abstractmethod
  def has_more(self) -> bool:
    """Whether the next event is here already."""

  @property
  @abc.abstractmethod
  def rate(self) -> float | None:
    """Tokens per second behind the first; None where too few came."""

  @property
  def reason(self) -> str | None:
    """Why the sequence ended; None before its end."""
    return None if self._result is None else self._result.reason

  def result(self) -> request_lib.Result:
    """Returns the result, once the stream has ended; else a ValueError."""
    if self._result is None:
      raise ValueError('the stream has not ended: read it to its end first.')
    return self._result

  @abc.abstractmethod
  def cancel(self) -> None:
    """Ends the sequence after the current round; never waits."""

  def refuse(self) -> None:
    """Ends the stream as refused by safety; never waits."""
    self.cancel()


class Prompt(NamedTuple):
  """The facts of a prompt that has run, as in `request.Result`."""

  waited: float
  reused: int
  prompt_scores: tuple[float, ...] | None

  @classmethod
  def collect(cls, one: sequence_lib.Sequence | TokenStream) -> Self:
    return cls(one.waited, one.reused, one.prompt_scores)


class LeaseHolder(Protocol):
  """What runs a stream's sequence: a `worker.Worker`."""

  def read(self, stream: 'AsyncStream') -> None:
    """Renews a stream's lease."""

  def cancel(self, stream: 'AsyncStream') -> None:
    """Ends a stream's sequence; never waits."""


class AsyncStream(TokenStream):
  """The tokens of one sequence, for the event loop that submitted it."""

  def __init__(self, holder: LeaseHolder, loop: asyncio.AbstractEventLoop):
    """Makes a stream without a sequence, which the engine's thread sets."""
    super().__init__()
    self.loop = loop
    # The engine's sequence, which only the engine's thread touches.
    self.sequence: sequence_lib.Sequence | None = None
    self.is_waiting = False  # Whether a reader waits for an event.
    self._holder = holder
    self._events: collections.deque[request_lib.Event] = collections.deque()
    self._arrived = asyncio.Event()
    self._error: BaseException | None = None
    # When the first and the latest tokens came, and how many behind the first.
    self._times: tuple[float, float] | None = None
    self._later = 0

  async def __anext__(self) -> request_lib.Event:
    while not self._events:
      if self._error is not None:
        raise self._error
      if self._result is not None:
        if self._result.error is not None:
          raise self._result.error
        raise StopAsyncIteration
      self._arrived.clear()
      self.is_waiting = True
      try:
        await self._arrived.wait()
      finally:
        self.is_waiting: bool = False
    self._holder.read(self)
    return self._events.popleft()

  @property
  def has_more(self) -> bool:
    return bool(self._events)

  @property
  def rate(self) -> float | None:
    """The tokens per second that came after the first, read or not.

    Tokens that came together with the first do not count. None where fewer
    than 15 tokens came later.
    """
    if self._later < _RATED:
      return None
    first, last = self._times
    return self._later / (last - first) if last > first else None

  def cancel(self) -> None:
    if self._result is None:
      self._holder.cancel(self)

  def deliver(self, news: 'Delivery') -> None:
    """Stores news from the engine's thread; runs in the event loop."""
    self._events += news.events
    if news.events:
      now = time.perf_counter()
      if self._times is None:
        self._times = now, now
      else:
        self._times = self._times[0], now
        self._later += len(news.events)
    if news.prompt is not None:
      waited, reused, scores = news.prompt
      self.waited: float = waited
      self.reused: int = reused
      self.prompt_scores: tuple[float, ...] | None = scores
    self._result = news.result or self._result
    self._error = news.error or self._error
    self._arrived.set()


class Delivery(NamedTuple):
  """News of one stream."""

  stream: AsyncStream
  events: list[request_lib.Event]
  prompt: Prompt | None = None
  result: request_lib.Result | None = None
  error: BaseException | None = None


def deliver_all(deliveries: Iterable[Delivery]) -> None:
  """Delivers to streams, in one call of each event loop.

  Call it in a thread that runs none of these loops.
  """
  by_loop = collections.defaultdict(list)
  for one in deliveries:
    by_loop[one.stream.loop].append(one)
  for loop, items in by_loop.items():
    call_soon(loop, _deliver, items)


def call_soon(
  loop: asyncio.AbstractEventLoop,
  function: Callable[..., None],
  *arguments: Any,
) -> None:
  """Schedules a function in an event loop, unless the loop is closed."""
  try:
    loop.call_soon_threadsafe(function, *arguments)
  except RuntimeError:
    _LOG.debug('an event loop was closed before its streams ended')


def _deliver(items: Iterable[Delivery]) -> None:
  for one in items:
    one.stream.deliver(one)

"""Runs the engine in its own thread, and gives asyncio its streams of tokens.

    worker = Worker(engine)
    worker.start()
    (stream,) = await worker.submit(request)
    async for event in stream: ...
    stream.result().reused

Only this thread touches the engine, between rounds (one step of all running
sequences). It never waits for a socket. One call per round hands the tokens of
all streams to the event loop; each stream buffers its own until its reader
takes them. Each stream has a lease: a waiting reader renews it in every round;
without a reader the sequence ends after `admission.Limits.lease` seconds.
"""

import asyncio
import collections
from collections.abc import Callable
import logging
import queue
import threading
import time
from typing import Any
from typing import NamedTuple
from typing import Self

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib

_LOG = logging.getLogger(__name__)
# The fewest later tokens of a stream whose rate says something (our guess).
_RATED = 15
# Seconds between two looks at whether all streams have ended, or the thread.
_LOOK = 0.05


class Stopped(RuntimeError):
  """A call to an engine whose thread has ended or is about to end."""


class _Prompt(NamedTuple):
  """The facts of a prompt that has run, as in `request.Result`."""

  waited: float
  reused: int
  prompt_scores: tuple[float, ...] | None


class AsyncStream:
  """The drawn tokens of one sequence, as an asynchronous iterator of `Event`.

  Only the event loop that submitted the request reads it.

  Attributes:
    loop: that event loop.
    sequence: the engine's sequence, which only the engine's thread touches.
    waited: seconds until it had a row; set once a token has come.
    reused: tokens of the prompt that the cache held; set likewise.
    prompt_scores: as in `request.Result`; set likewise.
    is_waiting: whether a reader waits for an event.
  """

  def __init__(self, worker: 'Worker', loop: asyncio.AbstractEventLoop):
    """Makes a stream without a sequence, which the engine's thread sets."""
    self.loop = loop
    self.sequence: sequence_lib.Sequence | None = None
    self.waited = 0.0
    self.reused = 0
    self.prompt_scores: tuple[float, ...] | None = None
    self.is_waiting = False
    self._worker = worker
    self._events: collections.deque[request_lib.Event] = collections.deque()
    self._arrived = asyncio.Event()
    self._result: request_lib.Result | None = None
    self._error: BaseException | None = None
    # When the first and the latest tokens came, and how many behind the first.
    self._times: tuple[float, float] | None = None
    self._later = 0

  def __aiter__(self) -> Self:
    return self

  async def __anext__(self) -> request_lib.Event:
    """Returns the next event.

    Raises:
      BadLogits, Late: the logits were not finite; no row was free in time.
      Stopped: the engine's thread failed.
    """
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
        self.is_waiting = False
    self._worker.read(self)
    return self._events.popleft()

  @property
  def has_more(self) -> bool:
    """Whether the next event is here already."""
    return bool(self._events)

  @property
  def rate(self) -> float | None:
    """The tokens per second that followed the first, whoever read them.

    Tokens that came together with the first do not count. None where fewer
    than 15 tokens came later.
    """
    if self._later < _RATED:
      return None
    first, last = self._times
    return self._later / (last - first) if last > first else None

  def result(self) -> request_lib.Result:
    """Returns the sequence's result, once the stream has ended.

    Raises:
      ValueError: the stream has not ended.
    """
    if self._result is None:
      raise ValueError('the stream has not ended: read it to its end first.')
    return self._result

  @property
  def reason(self) -> str | None:
    """Why the sequence ended; None before its end."""
    return None if self._result is None else self._result.reason

  def cancel(self) -> None:
    """Ends a running sequence after the current round; never waits."""
    if self._result is None:
      self._worker.cancel(self)

  def deliver(
    self,
    events: list[request_lib.Event],
    prompt: _Prompt | None = None,
    result: request_lib.Result | None = None,
    error: BaseException | None = None,
  ) -> None:
    """Stores new events from the engine's thread; runs in the event loop."""
    self._events += events
    if events:
      now = time.perf_counter()
      if self._times is None:
        self._times = now, now
      else:
        self._times = self._times[0], now
        self._later += len(events)
    if prompt is not None:
      self.waited, self.reused, self.prompt_scores = prompt
    self._result = result or self._result
    self._error = error or self._error
    self._arrived.set()


class Worker:
  """A thread that runs an engine.

  Attributes:
    engine: the engine; its methods, except `check`, run only in the thread.
    error: the error that ended the thread; None if there was none.
    compilations: how many compilations were left for later at the start.
  """

  def __init__(
    self,
    engine: engine_lib.Engine,
    on_compiled: Callable[[], None] = lambda: None,
  ):
    """Takes over an engine; `start` begins to run it.

    Args:
      engine: the engine.
      on_compiled: called after the compilations that were left for later, in
        their thread.
    """
    self.engine = engine
    self._on_compiled = on_compiled
    self.error: BaseException | None = None
    self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._streams: dict[AsyncStream, sequence_lib.Sequence] = {}
    self._is_stopping = False
    self._is_draining = False
    self._thread = threading.Thread(
      target=self._run, name='engine', daemon=True
    )
    # Rare shapes compile while rounds run with the shapes that are ready.
    self.compilations = engine.rounds.waiting
    self._compiling = threading.Thread(
      target=self._compile, name='compiling', daemon=True
    )

  def start(self) -> None:
    """Starts the thread, and one that does the remaining compilations."""
    self._thread.start()
    if self.compilations:
      self._compiling.start()

  @property
  def is_alive(self) -> bool:
    """Whether requests can be answered."""
    return self._thread.is_alive() and self.error is None

  async def submit(
    self, *requests: request_lib.Request, before: int = 0
  ) -> list[AsyncStream]:
    """Submits requests and returns their streams; takes all of them, or none.

    Args:
      *requests: the requests; all of them enter the engine in the same round.
      before: tokens of the prompts that belong to earlier turns.

    Raises:
      TypeError, ValueError: names the field that is wrong.
      request.Busy: the queue or the wait is too long, or the engine drains.
      Stopped: the thread has ended.
    """
    if self._is_draining:
      raise request_lib.Busy('the server is being stopped.', None)
    loop = asyncio.get_running_loop()
    streams = [AsyncStream(self, loop) for _ in requests]

    def submit():
      try:
        for stream, request in zip(streams, requests):
          stream.sequence = self.engine.submit(request, before)
      except Exception:
        for stream in streams:
          self._end_sequence(stream)
        raise
      self._streams.update((stream, stream.sequence) for stream in streams)

    try:
      await self.call(submit)
    except asyncio.CancelledError:
      for stream in streams:
        self.cancel(stream)
      raise
    return streams

  async def call(self, function: Callable[[], Any]) -> Any:
    """Runs a function between the engine's rounds, and returns its result.

    Raises:
      Stopped: the thread has ended.
      Whatever the function raises.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def done(value, error):
      if future.cancelled():
        return
      if error is None:
        future.set_result(value)
      else:
        future.set_exception(error)

    def run():
      value = error = None
      try:
        value = function()
      except Exception as raised:
        error = raised
      _tell(loop, done, value, error)

    if not self.is_alive:
      raise self._stopped()
    self._commands.put(run)
    while not future.done():
      # A thread that ends after `put` would leave the call waiting for ever.
      await asyncio.wait([future], timeout=20 * _LOOK)
      if not future.done() and not self.is_alive:
        raise self._stopped()
    return future.result()

  def ask(self, function: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Runs a function between rounds; returns its result, None if late.

    Do not call it in the event loop's thread: it blocks.

    Args:
      function: must raise no exception.
      seconds: the longest time to wait for it.
    """
    done: queue.SimpleQueue = queue.SimpleQueue()
    self._commands.put(lambda: done.put(function()))
    try:
      return done.get(timeout=seconds) if self.is_alive else None
    except queue.Empty:
      return None

  def read(self, stream: AsyncStream) -> None:
    """Renews a stream's lease."""
    self.engine.read(stream.sequence)

  def cancel(self, stream: AsyncStream) -> None:
    """Ends a stream's sequence between two rounds; never waits."""
    self._commands.put(lambda: self._end_sequence(stream))

  async def drain(self, seconds: float) -> int:
    """Refuses new requests, and lets sequences finish for a while.

    Args:
      seconds: the time after which the remaining sequences are ended, and
        their text is recorded (kept in the cache).

    Returns:
      How many sequences were ended so.
    """
    self._is_draining = True
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while self._streams and self.is_alive and loop.time() < end:
      await asyncio.sleep(_LOOK)
    return len(await self.call(lambda: self.engine.drain(0.0)))

  def stop(self) -> None:
    """Ends the thread after its round; cancels running sequences."""
    self._is_stopping = True
    self._commands.put(lambda: None)
    for thread in self._thread, self._compiling:
      if thread.is_alive():
        thread.join()

  def _end_sequence(self, stream: AsyncStream) -> None:
    if stream.sequence is not None:
      self.engine.cancel(stream.sequence)

  def _run(self) -> None:
    try:
      while not self._is_stopping:
        while self.engine.is_idle or not self._commands.empty():
          self._commands.get()()
          self._publish()
          if self._is_stopping:
            return
        self._round()
    except BaseException as error:
      self.error = error
      _LOG.exception('the engine failed')
    finally:
      self._end()

  def _compile(self) -> None:
    rounds = self.engine.rounds
    try:
      while rounds.waiting and not self._is_stopping:
        rounds.compile_next()
      self._on_compiled()
    except Exception:
      # The shapes that have compiled serve all the same, in more calls.
      _LOG.exception('a compilation failed')

  def _round(self) -> None:
    for stream, sequence in self._streams.items():
      if stream.is_waiting:
        self.engine.read(sequence)
    self.engine.advance()
    self._publish()

  def _publish(self) -> None:
    """Hands each event loop the new tokens of its streams, in one call."""
    told = collections.defaultdict(list)
    for stream, sequence in list(self._streams.items()):
      events = []
      while sequence.events:
        events.append(sequence.events.popleft())
      result = None
      if sequence.reason is not None:
        result = sequence.result()
        del self._streams[stream]
      if events or result is not None:
        told[stream.loop].append((stream, events, _prompt(sequence), result))
    for loop, items in told.items():
      _tell(loop, _deliver, items)

  def _end(self) -> None:
    """Ends all streams, when the thread ends."""
    error = self._stopped()
    for stream in self._streams:
      _tell(stream.loop, stream.deliver, [], None, None, error)
    self._streams.clear()

  def _stopped(self) -> Stopped:
    if self.error is None:
      return Stopped('the engine was stopped.')
    return Stopped(f'the engine failed: {self.error}')


def _prompt(sequence: sequence_lib.Sequence) -> _Prompt:
  return _Prompt(sequence.waited, sequence.reused, sequence.prompt_scores)


def _deliver(items) -> None:
  for stream, events, prompt, result in items:
    stream.deliver(events, prompt, result)


def _tell(loop: asyncio.AbstractEventLoop, function, *arguments) -> None:
  """Schedules a function in an event loop, unless the loop is closed."""
  try:
    loop.call_soon_threadsafe(function, *arguments)
  except RuntimeError:
    _LOG.debug('an event loop was closed before its streams ended')

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
from collections.abc import Callable
from concurrent import futures
import logging
import queue
import threading
from typing import Any

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import token_stream

_LOG = logging.getLogger(__name__)
# Seconds between two checks whether all streams have ended, or the thread.
_POLL_S = 0.05


class Stopped(RuntimeError):
  """A call to an engine whose thread has ended or is about to end."""


class Worker:
  """A thread that runs an engine."""

  def __init__(
    self,
    engine: engine_lib.Engine,
    on_compiled: Callable[[], None] = lambda: None,
  ):
    """Takes over an engine; `start` begins to run it.

    Args:
      on_compiled: called after the compilations that were left for later, in
        their thread.
    """
    # The engine; its methods, except `check`, run only in the thread.
    self.engine = engine
    self._on_compiled = on_compiled
    # The error that ended the thread; None if there was none.
    self.error: BaseException | None = None
    self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._streams: dict[token_stream.AsyncStream, sequence_lib.Sequence] = {}
    self._is_stopping = False
    self._is_draining = False
    self._thread = threading.Thread(
      target=self._run, name='engine', daemon=True
    )
    # The most alternatives of a token that a request may ask for.
    self.max_alternatives: int = engine.alternatives
    # Rare shapes compile while rounds run with the shapes that are ready.
    # How many compilations were left for later at the start.
    self.compilations: int = engine.rounds.waiting
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

  @property
  def max_wait_s(self) -> float | None:
    """The most seconds that a request may wait; None for no limit."""
    return self.engine.limits.wait

  @property
  def compiled(self) -> int:
    """How many of the compilations that were left for later are done."""
    return self.compilations - self.engine.rounds.waiting

  def read_engine(self) -> metrics.Reading | None:
    """Returns the engine's state; None if late. It blocks: see `ask`."""
    return self.ask(lambda: metrics.reading(self.engine))

  async def begin(self) -> None:
    """Prepares nothing: its thread runs (`replica.Engines`)."""

  async def submit(
    self, *requests: request_lib.Request
  ) -> list[token_stream.AsyncStream]:
    """Submits requests and returns their streams; takes all of them, or none.

    Args:
      *requests: the requests; all of them enter the engine in the same round.

    Raises:
      TypeError, ValueError: names the field that is wrong.
      request.Busy: the queue or the wait is too long, or the engine drains.
      Stopped: the thread has ended.
    """
    if self._is_draining:
      raise request_lib.Busy('the server is being stopped.', None)
    loop = asyncio.get_running_loop()
    streams = [token_stream.AsyncStream(self, loop) for _ in requests]

    def submit():
      try:
        for stream, request in zip(streams, requests):
          stream.sequence = self.engine.submit(request)
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

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from the cache; raises `Stopped`."""
    await self.call(lambda: forgetting.forget(self.engine, wanted))

  async def call(self, function: Callable[[], Any]) -> Any:
    """Runs a function between the engine's rounds, and returns its result.

    Raises:
      Stopped: the thread has ended.
      Whatever the function raises.
    """
    if not self.is_alive:
      raise self._stopped()
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    future = self._schedule(function)
    future.add_done_callback(
      lambda _: token_stream.call_soon(loop, answered.set_result, None)
    )
    while not future.done():
      # A thread that ends meanwhile would leave the call waiting for ever.
      await asyncio.wait([answered], timeout=20 * _POLL_S)
      if not future.done() and not self.is_alive:
        raise self._stopped()
    return future.result()

  def ask(self, function: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Runs a function between rounds; returns its result, None if late.

    It blocks for up to `seconds`, so do not call it in an event loop. Raises
    whatever the function raises.
    """
    if not self.is_alive:
      return None
    future = self._schedule(function)
    futures.wait([future], seconds)
    return future.result() if future.done() else None

  def _schedule(self, function: Callable[[], Any]) -> futures.Future:
    future = futures.Future()

    def run() -> None:
      try:
        value = function()
      except Exception as error:
        future.set_exception(error)
      else:
        future.set_result(value)

    self._commands.put(run)
    return future

  def read(self, stream: token_stream.AsyncStream) -> None:
    """Renews a stream's lease."""
    self.engine.read(stream.sequence)

  def cancel(self, stream: token_stream.AsyncStream) -> None:
    """Ends a stream's sequence between two rounds; never waits."""
    self._commands.put(lambda: self._end_sequence(stream))

  async def drain(self, seconds: float) -> int:
    """Refuses new requests; ends sequences that still run after `seconds`.

    Their text is kept in the cache. Returns how many were ended.
    """
    self._is_draining = True
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while self._streams and self.is_alive and loop.time() < end:
      await asyncio.sleep(_POLL_S)
    return len(await self.call(lambda: self.engine.drain(0.0)))

  def stop(self) -> None:
    """Ends the thread after its round; cancels running sequences."""
    self._is_stopping = True
    self._commands.put(lambda: None)
    for thread in self._thread, self._compiling:
      if thread.is_alive():
        thread.join()

  def _end_sequence(self, stream: token_stream.AsyncStream) -> None:
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
    deliveries = []
    for stream, sequence in list(self._streams.items()):
      events = []
      while sequence.events:
        events.append(sequence.events.popleft())
      result = None
      if sequence.reason is not None:
        result = sequence.result()
        del self._streams[stream]
      if events or result is not None:
        prompt = token_stream.Prompt.collect(sequence)
        deliveries.append(token_stream.Delivery(stream, events, prompt, result))
    token_stream.deliver_all(deliveries)

  def _end(self) -> None:
    """Ends all streams, when the thread ends."""
    error = self._stopped()
    token_stream.deliver_all(
      token_stream.Delivery(stream, [], error=error) for stream in self._streams
    )
    self._streams.clear()

  def _stopped(self) -> Stopped:
    if self.error is None:
      return Stopped('the engine was stopped.')
    return Stopped(f'the engine failed: {self.error}')

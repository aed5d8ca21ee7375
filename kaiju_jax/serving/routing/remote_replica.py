"""A replica in another process, as an ingress uses it.

    remote = RemoteReplica('kaiju-0', transport)
    remote.start()
    remote.wait(60)
    (stream,) = await remote.submit(request)

A transport carries calls and messages to the replica's `ReplicaHost`; `ray_app`
has one. While the transport is broken, the replica counts as dead and its
streams end with `replica.Lost`; it is reached again by itself, perhaps as
another process.

A thread of its own receives the messages; it hands the tokens of a round to
each event loop in one call, as an engine's thread does.
"""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence
import contextlib
import itertools
import logging
import threading
import time
from typing import Any
from typing import Protocol
import uuid

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import replica_host

_LOG = logging.getLogger(__name__)
# Seconds between two tries to reach a replica (our guess).
_AGAIN = 0.25


class Transport(Protocol):
  """A way to the `ReplicaHost` of a replica, from any event loop.

  Each method raises an exception where the replica cannot be reached.
  """

  def subscribe(
    self, ingress: str
  ) -> AsyncIterator[replica_host.Welcome | replica_host.Heartbeat]:
    """Yields the messages of `ReplicaHost.subscribe`."""

  async def call(self, method: str, *arguments: Any) -> replica_host.CallResult:
    """Returns the answer of `ReplicaHost.call`."""


class RemoteReplica:
  """A replica of another process, as `replica.Replica` describes it."""

  def __init__(
    self, name: str, transport: Transport, silence: float = replica_host.SILENCE
  ):
    """Connects to nothing yet; `start` does.

    Args:
      silence: seconds without a message after which it counts as dead.
    """
    self.name = name
    # As in the last `replica_host.Welcome`; '' and None before the first.
    self.build: str = ''
    self.facts: Any = None
    self._transport, self._silence = transport, silence
    self._thread = threading.Thread(
      target=self._run, name=f'replica {name}', daemon=True
    )
    self._loop: asyncio.AbstractEventLoop | None = None
    self._running: asyncio.Task | None = None
    self._has_begun, self._answered = threading.Event(), threading.Event()
    self._numbers = itertools.count()
    # These belong to the thread. Of another process there are none.
    self._welcome: replica_host.Welcome | None = None
    self._ingress = ''
    self.is_alive: bool = False  # Whether it answered lately.
    self._received_at = 0.0
    self._lost: asyncio.Event | None = None
    self._streams: dict[int, token_stream.AsyncStream] = {}
    self._of: dict[token_stream.AsyncStream, int] = {}
    self._were_read: set[token_stream.AsyncStream] = set()

  def start(self) -> None:
    """Begins to connect to the replica."""
    self._thread.start()
    self._has_begun.wait()

  def wait(self, seconds: float) -> bool:
    """Returns whether the replica has answered, at the latest in `seconds`."""
    return self._answered.wait(seconds)

  async def submit(
    self, *requests: request_lib.Request
  ) -> Sequence[token_stream.TokenStream]:
    """Submits requests; takes all of them, or none.

    Raises:
      TypeError, ValueError, request.Busy: see `worker.Worker.submit`.
      Lost: the replica is gone.
    """
    loop = asyncio.get_running_loop()
    streams = [token_stream.AsyncStream(self, loop) for _ in requests]
    await self._in_thread(self._submit(streams, requests))
    return streams

  async def status(self) -> replica_lib.Status:
    """Returns its status; raises `Lost`."""
    return await self._in_thread(self._ask('status'))

  async def list_cached(self) -> Sequence[replica_lib.CachedText]:
    """Returns the texts of its cache, the latest first; raises `Lost`."""
    return await self._in_thread(self._ask('list_cached'))

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from its cache; raises `Lost`."""
    await self._in_thread(self._ask('forget', wanted))

  async def drain(self, seconds: float) -> int:
    """Has it refuse the requests of every ingress, as `Worker.drain` does."""
    return await self._in_thread(self._ask('drain', seconds))

  def stop(self) -> None:
    """Ends this process's streams; the replica goes on serving others."""
    if self._thread.is_alive():
      self._loop.call_soon_threadsafe(self._running.cancel)
      self._thread.join()

  def read(self, stream: token_stream.AsyncStream) -> None:
    """Notes that a stream is read, so that its lease is renewed."""
    self._were_read.add(stream)

  def cancel(self, stream: token_stream.AsyncStream) -> None:
    """Ends a stream's sequence; never waits."""
    # A thread that has ended has no streams.
    with contextlib.suppress(RuntimeError):
      self._loop.call_soon_threadsafe(self._cancel, stream)

  async def _in_thread(self, work) -> Any:
    """Awaits a coroutine in the thread's loop."""
    if not self.is_alive:
      work.close()
      raise self._gone()
    return await asyncio.wrap_future(
      asyncio.run_coroutine_threadsafe(work, self._loop)
    )

  async def _submit(self, streams, requests) -> None:
    if self._welcome is None:
      raise self._gone()
    own = {next(self._numbers): stream for stream in streams}
    self._streams |= own
    self._of |= {stream: number for number, stream in own.items()}
    try:
      await self._ask('submit', self._ingress, list(own), requests)
    except BaseException as error:
      for number in own:
        self._drop(number)
        if isinstance(error, asyncio.CancelledError):
          self._send('cancel', number)
      raise

  async def _ask(self, method: str, *arguments) -> Any:
    """Returns a call's value; raises `Lost` if the replica dies meanwhile."""
    lost = self._lost
    if lost is None or lost.is_set():
      raise self._gone()
    call = asyncio.ensure_future(self._transport.call(method, *arguments))
    ended = asyncio.ensure_future(lost.wait())
    try:
      await asyncio.wait([call, ended], return_when=asyncio.FIRST_COMPLETED)
      if not call.done():
        raise self._gone()
      try:
        answer = call.result()
      except Exception as error:
        raise self._gone() from error
    finally:
      call.cancel()
      ended.cancel()
    if answer.error is None:
      return answer.value
    if isinstance(answer.error, worker_lib.Stopped):
      raise self._gone()
    raise answer.error

  def _cancel(self, stream: token_stream.AsyncStream) -> None:
    number = self._of.get(stream)
    if number is not None:
      self._send('cancel', number)

  def _send(self, method: str, argument: Any) -> None:
    """Calls a method of an ingress, and waits for no answer."""
    if self._welcome is None:
      return
    call = self._loop.create_task(
      self._transport.call(method, self._ingress, argument)
    )
    # If it fails, the missing messages will say so.
    call.add_done_callback(lambda done: done.cancelled() or done.exception())

  def _run(self) -> None:
    with (
      asyncio.Runner() as runner,
      contextlib.suppress(asyncio.CancelledError),
    ):
      self._loop = runner.get_loop()
      runner.run(self._reconnect())

  async def _reconnect(self) -> None:
    """Subscribes to one process of the replica after another."""
    self._running = asyncio.current_task()
    self._has_begun.set()
    while True:
      self._ingress = f'ingress {uuid.uuid4().hex}'
      self._lost, self._received_at = asyncio.Event(), time.monotonic()
      receiving = asyncio.create_task(self._receive())
      try:
        await self._watch(receiving)
      finally:
        receiving.cancel()
        self._lose()
      await asyncio.sleep(_AGAIN)

  async def _watch(self, receiving: asyncio.Task) -> None:
    """Renews leases until the messages end or stay out."""
    while not receiving.done():
      lease = self._welcome.lease if self._welcome else replica_host.BEAT
      await asyncio.wait([receiving], timeout=min(replica_host.BEAT, lease / 4))
      if time.monotonic() - self._received_at > self._silence:
        # A process that restarts may take long to answer at first.
        if self._welcome is not None:
          _LOG.warning('%s is silent, and counts as gone', self.name)
        return
      if self._welcome is None:
        continue
      were_read, self._were_read = self._were_read, set()
      # Also where there are none: it says that this ingress lives.
      read = [
        number
        for number, stream in self._streams.items()
        if stream.is_waiting or stream in were_read
      ]
      self._send('renew', read)
    if not receiving.cancelled() and receiving.exception() is not None:
      # Its own words might hold a text.
      _LOG.info('%s: %s', self.name, type(receiving.exception()).__name__)

  async def _receive(self) -> None:
    received = self._transport.subscribe(self._ingress)
    async with contextlib.aclosing(received) as messages:
      async for message in messages:
        self._received_at = time.monotonic()
        if isinstance(message, replica_host.Welcome):
          self._welcome = message
          self.build, self.facts = message.build, message.facts
          self.is_alive = True
          self._answered.set()
        else:
          self.is_alive = message.is_alive
          self._deliver(message.updates)

  def _deliver(self, updates: Sequence[replica_host.Update]) -> None:
    deliveries = []
    for one in updates:
      stream = self._streams.get(one.number)
      if stream is None:
        continue
      error = one.error
      if isinstance(error, worker_lib.Stopped):
        error = self._gone()
      deliveries.append(
        token_stream.Delivery(stream, one.events, one.prompt, one.result, error)
      )
      if one.result is not None or error is not None:
        self._drop(one.number)
    token_stream.deliver_all(deliveries)

  def _lose(self) -> None:
    """Ends all streams of a process that is gone."""
    self.is_alive, self._welcome = False, None
    self._lost.set()
    token_stream.deliver_all(
      token_stream.Delivery(stream, [], error=self._gone())
      for stream in self._streams.values()
    )
    self._streams.clear()
    self._of.clear()

  def _drop(self, number: int) -> None:
    stream = self._streams.pop(number, None)
    self._of.pop(stream, None)

  def _gone(self) -> replica_lib.Lost:
    return replica_lib.Lost(f'{self.name} is gone.')

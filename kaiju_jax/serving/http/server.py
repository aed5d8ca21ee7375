"""The HTTP server: listens, runs the event loop, and stops in order.

    server = Server(app, '127.0.0.1', 8000)
    print(server.url)
    server.run()

The socket listens before the loop runs, so that the port is known, and a port
in use raises an OSError at once. SIGTERM and Ctrl-C stop the server: new
requests get a 503, open answers have `drain_seconds` to end, and then they are
cancelled. Afterwards `run` returns, so that its caller can close what it
opened.

The server ignores X-Forwarded-For, which any client can send.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import functools
import signal
import socket
import sys
import threading
import time
from typing import Any

from starlette import types
import uvicorn

from kaiju_jax.serving.http import connection
from kaiju_jax.serving.http import edge
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import loopback

Settings = connection.Settings
_EACH = 64
# The kernel's buffer per connection, in bytes. A larger one would hide for
# longer that a client does not read.
_SEND_BUFFER = 64 * 1024
_BACKLOG = 512
# The most connections at once to the metrics' own port.
_SCRAPES = 16
# Seconds after which a thread gives the interpreter to another one (our guess).
# The loop needs it several times per answer: while another thread works on long
# texts, Python's default of 5 ms would add some 20 ms to each answer.
_SWITCH = 0.0005
# Seconds after a stop's deadline in which cancelled answers may still say so.
_LAST_WORDS = 1.0


class Server(uvicorn.Server):
  """An HTTP server of one application."""

  def __init__(
    self,
    app: types.ASGIApp,
    host: str = '127.0.0.1',
    port: int = 0,
    *,
    settings: Settings | None = None,
    metrics: types.ASGIApp | None = None,
    metrics_port: int = 0,
    on_drain: Callable[[float], None] | None = None,
    on_start: Callable[[], None] | None = None,
    listener: socket.socket | None = None,
  ):
    """Listens; `run` answers.

    Args:
      port: the port; 0 for a free one. Likewise `metrics_port`.
      metrics: an application that is served on a port of its own, on
        127.0.0.1; None for none.
      on_drain: called in the loop, once, when the server begins to stop, with
        the seconds that open answers have; it must not block.
      on_start: called in the loop, once, before it answers.
      listener: a socket of `listen` that other processes share, instead of a
        host and a port; one that stops leaves new connections to them.

    Raises:
      OSError: the port is taken, or the host is not this machine's.
    """
    self.host = host  # The name or address on which it listens.
    self._settings = settings = settings or Settings()
    self._on_drain, self._on_start = on_drain, on_start
    self._is_shared = listener is not None
    self._draining = threading.Event()
    # The number of the signal that stopped it; None for none.
    self.signal: int | None = None
    each = settings.connections_each
    if each is None:
      each = settings.connections if loopback.is_loopback(host) else _EACH
    slots = limits.Slots(settings.connections, each)
    super().__init__(self._config(app, slots, 'auto'))
    self._metrics = self._metrics_socket = None
    self.metrics_port: int | None = None
    self._socket = listener or listen(host, port, settings)
    # The port on which it listens.
    self.port: int = self._socket.getsockname()[1]
    if metrics is not None:
      slots = limits.Slots(_SCRAPES, _SCRAPES)
      self._metrics = self._config(metrics, slots, 'off')
      try:
        self._metrics_socket = listen('127.0.0.1', metrics_port, settings)
      except OSError:
        self._socket.close()
        raise
      self.metrics_port = self._metrics_socket.getsockname()[1]

  @property
  def url(self) -> str:
    """The server's address for a browser on this machine."""
    host = {'0.0.0.0': '127.0.0.1', '::': '::1'}.get(self.host, self.host)
    return f'http://{f"[{host}]" if ":" in host else host}:{self.port}'

  def run(self, sockets: Any = None) -> None:
    """Answers requests until `stop` or a signal, and ends all answers."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _SWITCH))
    try:
      super().run(sockets or [self._socket])
    finally:
      sys.setswitchinterval(interval)
      self.close()

  def close(self) -> None:
    """Stops listening; for a server that was never run."""
    self._socket.close()
    if self._metrics_socket is not None:
      self._metrics_socket.close()

  def stop(self) -> None:
    """Tells the server to stop; may be called from any thread."""
    self.should_exit = True

  async def startup(self, sockets: Any = None) -> None:
    """Starts to answer; RuntimeError: the application failed to start."""
    if self._on_start is not None:
      self._on_start()
    # After a failed start, some versions of uvicorn exit, and others return.
    with contextlib.suppress(SystemExit):
      await super().startup(sockets)
    if self.lifespan.should_exit or not self.started:
      raise RuntimeError('the application failed to start; the log says why.')
    if self._metrics is None:
      return
    self._metrics.load()
    made = functools.partial(
      self._metrics.http_protocol_class,
      config=self._metrics,
      server_state=self.server_state,
      app_state={},
    )
    loop = asyncio.get_running_loop()
    self.servers.append(
      await loop.create_server(made, sock=self._metrics_socket)
    )

  async def shutdown(self, sockets: Any = None) -> None:
    """Waits for open answers until the deadline, and cancels the rest."""
    self._draining.set()
    state, seconds = self.server_state, self._settings.drain_seconds
    if self._on_drain is not None:
      self._on_drain(seconds)
    # A listener of this process alone stays open meanwhile, so that /readyz
    # answers with 503.
    if self._is_shared:
      self.servers[0].close()
    await self._until(lambda: not state.tasks, seconds + _LAST_WORDS)
    for task in state.tasks:
      task.cancel()
    for one in list(state.connections):
      one.shutdown()
    await self._until(
      lambda: not (state.tasks or state.connections), _LAST_WORDS
    )
    for one in list(state.connections):
      one.transport.abort()
    await super().shutdown(sockets)

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """Stops at SIGTERM and SIGINT, without raising them again afterwards.

    uvicorn raises them again, and SIGTERM would end the process before the
    caller of `run` has closed what it opened.
    """
    if threading.current_thread() is not threading.main_thread():
      yield
      return

    def caught(number, frame):
      self.signal = number
      self.handle_exit(number, frame)

    numbers = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.signal(number, caught) for number in numbers}
    try:
      yield
    finally:
      for number, handler in former.items():
        signal.signal(number, handler)

  async def _until(self, is_done: Callable[[], bool], seconds: float) -> None:
    """Waits for a condition, at most `seconds`, or until a second Ctrl-C."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not (is_done() or self.force_exit) and loop.time() < end:
      await asyncio.sleep(0.02)

  def _config(
    self, app: types.ASGIApp, slots: limits.Slots, lifespan: str
  ) -> uvicorn.Config:
    return uvicorn.Config(
      edge.Edge(app, self._draining.is_set),
      host=self.host,
      loop='asyncio',
      http=functools.partial(
        connection.Connection, settings=self._settings, slots=slots
      ),
      ws='none',
      lifespan=lifespan,
      interface='asgi3',
      workers=1,
      log_config=None,
      access_log=False,
      proxy_headers=False,
      server_header=False,
      backlog=_BACKLOG,
      timeout_graceful_shutdown=1,
      h11_max_incomplete_event_size=2**16,
    )


@contextlib.contextmanager
def running(app: types.ASGIApp, *args, **kwargs) -> Iterator[Server]:
  """Runs a `Server` of these arguments in a thread, and yields it.

  Raises:
    OSError: the port is taken.
    RuntimeError: the application failed to start.
  """
  server = Server(app, *args, **kwargs)
  with futures.ThreadPoolExecutor(1, 'http') as thread:
    ended = thread.submit(server.run)
    try:
      while not (server.started or ended.done()):
        time.sleep(0.005)
      if not ended.done():
        yield server
    finally:
      server.stop()
      ended.result()


def check_free(host: str, port: int) -> None:
  """Raises OSError unless a server could listen on an address."""
  listen(host, port).close()


def listen(
  host: str, port: int, settings: Settings | None = None
) -> socket.socket:
  """Returns a socket that listens; raises OSError: names the address."""
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  settings = settings or Settings()
  # The protocol must be named. Otherwise asyncio does not recognize TCP and
  # leaves Nagle's algorithm on, and each answer waits 40 ms for an
  # acknowledgement.
  made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
  try:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    # Connections inherit this deadline. It ends the wait for bytes that our
    # kernel has taken and the client's does not acknowledge.
    if hasattr(socket, 'TCP_USER_TIMEOUT'):
      milliseconds = int(settings.unread_seconds * 1000)
      made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    made.bind((host, port))
    made.listen(_BACKLOG)
  except OSError as error:
    made.close()
    raise OSError(
      error.errno, f'{error.strerror}, listening on {host}:{port}'
    ) from error
  made.setblocking(False)
  return made

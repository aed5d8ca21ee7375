"""The outermost layer of the application: headers, accounts and the stop.

Every answer gets headers that forbid browsers to guess its type, to load
anything for it, to show it in a frame, to cache it, and to send a referrer. The
page's route sets its own policy (`PAGE_POLICY`), which replaces the one here.

While the server stops, new requests get a 503, including /readyz; only the
check that the server is alive and its metrics are still answered.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Iterator
import logging
import time

from starlette import responses
from starlette import types

from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import metrics as metrics_lib

_LOG = logging.getLogger(__name__)
# The page's policy: its own scripts and styles, and characters' pictures.
PAGE_POLICY = '; '.join(
  [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ]
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
  (b'content-security-policy', b"default-src 'none'; frame-ancestors 'none'"),
  (b'x-content-type-options', b'nosniff'),
  (b'x-frame-options', b'DENY'),
  (b'referrer-policy', b'no-referrer'),
  (b'cross-origin-resource-policy', b'same-origin'),
  (b'cache-control', b'no-store'),
)
_STILL_ANSWERED = ('/healthz', '/health', '/metrics')
# Bytes of an answer that are sent at once: a slow client must read as much
# within the deadline.
_PIECE = 64 * 1024


class Edge:
  """An application with every answer's headers, an account and a log line.

  Args:
    is_draining: returns whether the server is being stopped.
  """

  def __init__(self, app: types.ASGIApp, is_draining: Callable[[], bool]):
    self._app = app
    self._is_draining = is_draining

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Answers a request, by ASGI's interface."""
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return
    exchange = exchange_lib.open_exchange(scope)
    sent = _Sent(send, exchange.id)
    try:
      await self._answer(scope, receive, sent)
    except Exception:
      exchange.note_end('internal')
      raise
    finally:
      if not sent.has_ended:
        exchange.note_end('disconnected')
      exchange.close()
      sent.log(exchange, scope)

  async def _answer(
    self, scope: types.Scope, receive: types.Receive, sent: '_Sent'
  ) -> None:
    exchange = scope['state']['exchange']
    if self._is_draining() and scope['path'] not in _STILL_ANSWERED:
      exchange.note_end('stopping')
      await _stopped()(scope, receive, sent)
      return
    try:
      await self._app(scope, receive, sent)
    except asyncio.CancelledError:
      if not self._is_draining():
        raise
      # The stop's deadline cancelled it. A stream breaks off; an answer that
      # has not begun says why.
      exchange.note_end('stopping')
      if not sent.has_begun:
        await _stopped()(scope, receive, sent)
    except Exception:
      if sent.has_begun and not sent.has_ended:
        raise  # Closes the connection: the client sees that it was cut.
      # starlette raises again what it has answered; the connection, on which
      # the client may have sent its next request, goes on.
      _LOG.exception(
        'Request %s failed: %s %s.',
        exchange.id,
        exchange_lib.method(scope),
        exchange_lib.route(scope),
      )
      if not sent.has_begun:
        await errors.response(errors.internal())(scope, receive, sent)


class _Sent:
  """Sends an answer with every answer's headers, and measures its times.

  Args:
    send: ASGI's function.
    name: the answer's x-request-id.

  Attributes:
    has_begun: whether the answer's head was sent.
    has_ended: whether the answer was sent whole.
  """

  def __init__(self, send: types.Send, name: str):
    self.has_begun = self.has_ended = False
    self._send = send
    self._header = b'x-request-id', name.encode()
    self._status: int | None = None
    self._began = time.perf_counter()
    self._first_byte: float | None = None

  async def __call__(self, message: types.Message) -> None:
    if message['type'] == 'http.response.start':
      self.has_begun = True
      self._status = message['status']
      headers = [*_with_headers(message), self._header]
      message = {**message, 'headers': headers}
    else:
      self.has_ended = not message.get('more_body', False)
      if self._first_byte is None:
        self._first_byte = time.perf_counter() - self._began
    for piece in _pieces(message):
      await self._send(piece)

  def log(self, exchange: exchange_lib.Exchange, scope: types.Scope) -> None:
    """Logs the request, whose answer has ended."""
    seconds = time.perf_counter() - self._began
    exchange.log(scope, self._status, self._first_byte, seconds)


def count_answers(
  app: types.ASGIApp, metrics: metrics_lib.Metrics
) -> types.ASGIApp:
  """Wraps an application so that its answers are counted.

  The label is a route's template, never the address itself. So no client can
  add series.
  """

  async def counting(
    scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    status = 0

    async def sent(message: types.Message) -> None:
      nonlocal status
      if message['type'] == 'http.response.start':
        status = message['status']
      await send(message)

    try:
      await app(scope, receive, sent)
    finally:
      if scope['type'] == 'http':
        method, route = exchange_lib.method(scope), exchange_lib.route(scope)
        metrics.requests.labels(method, route, str(status or 'none')).inc()
        if status >= 500 and route.startswith('/v1/'):
          metrics.failed.labels('status').inc()

  return counting


def _stopped() -> responses.Response:
  stopped = errors.unavailable('The server is being stopped.', 10)
  stopped.headers['Connection'] = 'close'
  return errors.response(stopped)


def _with_headers(message: types.Message) -> list[tuple[bytes, bytes]]:
  headers = list(message.get('headers', []))
  names = {name.lower() for name, _ in headers}
  return headers + [one for one in HEADERS if one[0] not in names]


def _pieces(message: types.Message) -> Iterator[types.Message]:
  """Yields a message; splits a long body."""
  body = message.get('body', b'')
  if message['type'] != 'http.response.body' or len(body) <= _PIECE:
    yield message
    return
  last = (len(body) - 1) // _PIECE
  for n in range(last + 1):
    yield {
      'type': 'http.response.body',
      'body': body[n * _PIECE : (n + 1) * _PIECE],
      'more_body': n < last or message.get('more_body', False),
    }

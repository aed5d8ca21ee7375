"""A client's connection: uvicorn's protocol for h11, with deadlines.

uvicorn waits without limit for a client that sends a byte now and then, and for
one that does not read its answer. Here both waits have a deadline. The first
byte of a request must come within `request_seconds` of the connection's
beginning or of the last answer's end, and its last byte within as much of its
first. If an answer lies unread in the server for `unread_seconds`, the
connection ends, and the application learns that its client has left.
Where all slots are taken, a new connection takes that of the client who has
kept the server waiting longest, so that idle ones keep nobody out.
`framing.py` checks all bytes before h11 sees them. A request that it refuses is
answered with a 4xx.

After a refusal, or an answer that is whole before its request is, the server
ends its half of the connection, and for a while discards what the client still
sends. If it closed at once, the kernel would reset the connection, and the
client might never see the answer.

A client that ended its half after its request may still read. One that closed
looks the same until something is sent to it, which its machine answers with a
reset. So `100 Continue`, which any client of HTTP/1.1 ignores, is sent until
the answer begins. A client that ends its half later, or speaks HTTP/1.0, has
left.
"""

import asyncio
from collections.abc import Callable
import contextlib
import dataclasses
import http
import secrets
import socket
import struct
from typing import Any

from uvicorn.protocols.http import h11_impl

from kaiju_jax.serving.http import edge
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import framing
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import log

# The most bytes of later requests that are kept while one is being answered,
# and the most bytes that are discarded after the last answer.
_MOST_AHEAD = 64 * 1024
_MOST_THROWN = 16 * 2**20
# Seconds between two probes of a client that ended its half.
_FIRST_PROBE, _LONGEST_PROBE = 0.05, 2.0
_CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'


@dataclasses.dataclass(frozen=True)
class Settings:
  """The deadlines of connections, and the number of them."""

  # The time from a request's first byte to its last; also from the connection's
  # beginning, or the last answer's end, to a first byte.
  request_seconds: float = 10.0
  unread_seconds: float = 30.0  # How long a client may leave an answer unread.
  # The time that open answers have when the server is stopped.
  drain_seconds: float = 30.0
  # How long a client may go on sending after its last answer.
  linger_seconds: float = 2.0
  connections: int = 512  # The most connections at once.
  # The most connections at once per address; None for 64, or for `connections`
  # where the server listens on loopback alone, because there all clients are
  # one person's, or a proxy's.
  connections_each: int | None = None


class Connection(h11_impl.H11Protocol):
  """A client's connection, as asyncio's protocol.

  Args:
    settings: deadlines.
    slots: counts the server's connections by address.
    args, kwargs: uvicorn's.
  """

  def __init__(
    self, *args: Any, settings: Settings, slots: limits.Slots, **kwargs: Any
  ):
    super().__init__(*args, **kwargs)
    self._settings = settings
    self._slots = slots
    self._slot: limits.Slot | None = None
    self._key = ''
    # The bytes that have come and were not given to h11.
    self._inbox = bytearray()
    self._opening = framing.Opening()
    # The body of the request that is being received or answered; None between
    # two requests.
    self._body: framing.Sized | framing.Chunked | None = None
    self._deadline: asyncio.TimerHandle | None = None
    self._unread: asyncio.TimerHandle | None = None
    # After the last answer, how many bytes may still be discarded.
    self._to_throw: int | None = None
    # Whether the client ended its half, and perhaps waits for answers.
    self._is_half_closed = False

  def connection_made(self, transport: asyncio.Transport) -> None:
    super().connection_made(transport)
    self.transport = _Transport(transport, self._linger)
    # With this limit writing pauses as long as anything is unsent, so that the
    # pause's length is the time for which a client has not read.
    transport.set_write_buffer_limits(high=0)
    key = limits.network(self.client[0] if self.client else '')
    if self._slots.take(key) or (
      self._make_room(key) and self._slots.take(key)
    ):
      self._key = key
      self._slot = limits.Slot(self._slots, key)
      self._wait()
    elif len(self.connections) <= 2 * self._settings.connections:
      self._refuse(errors.unavailable('There are too many connections.', 5))
    else:
      transport.abort()  # There are too many even for refusals.

  def connection_lost(self, exc: Exception | None) -> None:
    for timer in (self._deadline, self._unread):
      if timer is not None:
        timer.cancel()
    if self._slot is not None:
      self._slot.close()
    self._inbox.clear()
    super().connection_lost(exc)

  def data_received(self, data: bytes) -> None:
    if self._to_throw is not None:
      self._to_throw -= len(data)
      if self._to_throw < 0:
        self.transport.abort()
      return
    if self._body is None and not self._inbox:
      self._wait()
    self._inbox += data
    self._go_on()

  def eof_received(self) -> bool:
    """Returns whether the connection stays open for the answer."""
    self._is_half_closed = (
      self._is_whole
      and self._is_answering
      and not self.cycle.response_started
      and self.scope['http_version'] == '1.1'
    )
    if self._is_half_closed:
      self._probe(_FIRST_PROBE)
    return self._is_half_closed

  def shutdown(self) -> None:
    """Ends the connection after its answer; at once where there is none."""
    if self._is_answering:
      self.cycle.keep_alive = False
    else:
      self._linger()

  def pause_writing(self) -> None:
    super().pause_writing()
    if self._unread is None:
      self._unread = self.loop.call_later(
        self._settings.unread_seconds, self._reset
      )

  def resume_writing(self) -> None:
    super().resume_writing()
    if self._unread is not None:
      self._unread.cancel()
      self._unread = None

  def on_response_complete(self) -> None:
    self.server_state.total_requests += 1
    if self.transport.is_closing() or self._to_throw is not None:
      return
    if not self._is_whole:
      self._linger()
      return
    self.conn.start_next_cycle()
    self._body = None
    self._opening = framing.Opening()
    self._wait()
    self.flow.resume_reading()
    self._go_on()
    if self._is_half_closed:
      self._probe(_FIRST_PROBE)

  def send_400_response(self, msg: str) -> None:
    """Refuses a request that h11 refuses, which `framing` leaves very rare."""
    self._refuse(errors.invalid(msg))

  def _should_upgrade(self) -> bool:
    """Ignores a request for another protocol, as HTTP allows."""
    return False

  @property
  def _is_whole(self) -> bool:
    return self._body is not None and self._body.is_done

  @property
  def _is_answering(self) -> bool:
    return self.cycle is not None and not (
      self.cycle.response_complete or self.cycle.disconnected
    )

  def _make_room(self, key: str) -> bool:
    """Ends the connection whose client has kept the server waiting longest."""
    is_own = self._slots.is_spent(key)
    late = [
      one
      for one in self.connections
      if one._slots is self._slots
      and one._slot is not None
      and one._deadline is not None
      and (one._to_throw is not None or not one._is_whole)
      and (one._key == key or not is_own)
    ]
    if not late:
      return False
    # Those whose answer has ended have the shortest deadlines.
    min(late, key=lambda one: one._deadline.when())._give_way()
    return True

  def _give_way(self) -> None:
    """Ends a connection that waits for its client, for a new one."""
    self._slot.close()
    self._slot = None
    is_many = len(self.connections) > 2 * self._settings.connections
    if is_many or self._to_throw is not None:
      self.transport.abort()
    elif self._body is None and not self._inbox:
      self._linger()
    else:
      self._refuse(errors.unavailable('There are too many connections.', 5))

  def _wait(self) -> None:
    """Sets the deadline for the next first byte or the rest of a request."""
    self._stop_waiting()
    self._deadline = self.loop.call_later(
      self._settings.request_seconds, self._give_up
    )

  def _stop_waiting(self) -> None:
    if self._deadline is not None:
      self._deadline.cancel()
      self._deadline = None

  def _give_up(self) -> None:
    if self._body is None and not self._inbox:
      self._linger()
      return
    seconds = self._settings.request_seconds
    self._refuse(
      errors.ApiError(408, f'The request was not whole after {seconds:g} s.')
    )

  def _go_on(self) -> None:
    """Gives h11 the bytes of the current request that have come."""
    try:
      while self._inbox and self._to_throw is None:
        if self._body is None:
          found = self._opening.look(self._inbox)
          if found is None:
            return
          self._body = found.body
          self._give(found.size)
        elif self._body.is_done:
          # The next request stays here until this one is answered.
          if len(self._inbox) > _MOST_AHEAD:
            self.flow.pause_reading()
          return
        else:
          self._give(self._body.take(bytes(self._inbox)))
    except framing.Fault as fault:
      self._refuse(errors.ApiError(fault.status, str(fault)))

  def _give(self, size: int) -> None:
    data = bytes(self._inbox[:size])
    del self._inbox[:size]
    if self._is_whole:
      self._stop_waiting()
    self.conn.receive_data(data)
    self.handle_events()

  def _probe(self, seconds: float) -> None:
    """Ends a half-closed connection without an answer, or without a client."""
    self._stop_waiting()
    if not self._is_answering:
      self._linger()
      return
    connected = self.transport.get_extra_info('socket')
    if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
      self.transport.abort()
      return
    if not self.cycle.response_started:
      self.transport.write(_CONTINUE)
    longer = min(2 * seconds, _LONGEST_PROBE)
    self._deadline = self.loop.call_later(seconds, self._probe, longer)

  def _refuse(self, error: errors.ApiError) -> None:
    """Answers a malformed or late request with an error, and ends."""
    if self.transport.is_closing() or self._to_throw is not None:
      return
    if self._is_answering:
      has_begun = self.cycle.response_started
      # The application learns that its client left, and nothing of its answer
      # is sent any more.
      self.cycle.disconnected = True
      self.cycle.message_event.set()
      self.flow.resume_writing()
      if has_begun:
        self._reset()
        return
    name = secrets.token_hex(8)
    log.refusal(name, error.status)
    self.transport.write(_raw(error, name))
    self._linger()

  def _linger(self) -> None:
    """Ends the server's half, and waits for the client to end its own."""
    if self.transport.is_closing() or self._to_throw is not None:
      return
    self._to_throw = _MOST_THROWN
    self._inbox.clear()
    self._stop_waiting()
    if self._is_half_closed:
      self.transport.finish()
      return
    self.flow.resume_reading()
    self.transport.end()
    self._end_soon()

  def _end_soon(self) -> None:
    self._deadline = self.loop.call_later(
      self._settings.linger_seconds, self._end
    )

  def _reset(self) -> None:
    """Resets the connection; the kernel drops its unsent bytes too."""
    connected = self.transport.get_extra_info('socket')
    if connected is not None:
      now = struct.pack('ii', 1, 0)
      connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    self.transport.abort()

  def _end(self) -> None:
    if self.transport.get_write_buffer_size():
      self._end_soon()  # Either the client reads on, or `_unread` ends it.
    else:
      self.transport.abort()


class _Transport:
  """A transport that never closes before the client has seen the answer.

  uvicorn's cycle of request and answer writes to it, and closes it.
  """

  def __init__(self, transport: asyncio.Transport, linger: Callable[[], None]):
    self._transport = transport
    self._is_ended = False
    self.close = linger

  def __getattr__(self, name: str):
    return getattr(self._transport, name)

  def end(self) -> None:
    """Ends the server's half; later writes are dropped."""
    self._is_ended = True
    with contextlib.suppress(OSError):  # The client has gone already.
      self._transport.write_eof()

  def finish(self) -> None:
    """Ends the connection once all is sent; its client sends no more."""
    self._is_ended = True
    self._transport.close()

  def write(self, data: bytes) -> None:
    """Sends bytes, unless the server's half has ended."""
    if not self._is_ended:
      self._transport.write(data)


def _raw(error: errors.ApiError, name: str) -> bytes:
  """Returns the bytes of an answer that no application makes."""
  body = errors.body(error)
  headers = [
    *edge.HEADERS,
    *((x.encode(), y.encode()) for x, y in error.headers.items()),
    (b'content-type', b'application/json'),
    (b'content-length', b'%d' % len(body)),
    (b'connection', b'close'),
    (b'x-request-id', name.encode()),
  ]
  phrase = http.HTTPStatus(error.status).phrase.encode()
  lines = [b'HTTP/1.1 %d %s' % (error.status, phrase)]
  lines += [b'%s: %s' % header for header in headers]
  return b'\r\n'.join([*lines, b'', body])

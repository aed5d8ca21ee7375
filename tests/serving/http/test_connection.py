"""Connections: everything ends, and what ended leaves nothing behind."""

import asyncio
import contextlib
import gc
import os
import random
import socket
import struct
import time

import pytest

from kaiju_jax.serving.http import connection
from kaiju_jax.serving.http import edge
from kaiju_jax.serving.http import server as server_lib
from tests.serving import trivial

_HEAD = b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n'
_LAST = trivial.GET.replace(b'\r\n\r\n', b'\r\nConnection: close\r\n\r\n')
_HASTY = server_lib.Settings(
  request_seconds=0.5, unread_seconds=0.6, linger_seconds=0.3
)


@pytest.fixture(scope='module')
def application():
  return trivial.Application()


@pytest.fixture(scope='module')
def server(application):
  # Nothing below is decided by how fast a client is.
  settings = server_lib.Settings(linger_seconds=40.0)
  with server_lib.running(application.app, settings=settings) as running:
    yield running


@pytest.fixture(scope='module')
def hasty(application):
  with server_lib.running(application.app, settings=_HASTY) as running:
    yield running


def timed(server, data):
  """Returns what comes until the server closes, and after how long."""
  begun = time.monotonic()
  received = trivial.exchange(server, data)
  return received, time.monotonic() - begun


def test_several_requests_share_a_connection(server, application):
  application.paths.clear()
  body = _HEAD + b'Content-Length: 8\r\n\r\n{"a": 1}'
  with trivial.connected(server) as client:
    for _ in range(3):
      client.sendall(trivial.GET)
      assert trivial.answer(client) == (200, b'hello')
      client.sendall(body)
      assert trivial.answer(client) == (200, b'{"a":1}')
  assert application.paths == ['/', '/echo'] * 3


def test_requests_that_come_at_once_are_answered_in_order(server, application):
  application.paths.clear()
  chunks = (
    _HEAD + b'Transfer-Encoding: chunked\r\n\r\n8\r\n{"a": 1}\r\n0\r\n\r\n'
  )
  data = trivial.GET + chunks + trivial.GET + _LAST
  received = trivial.exchange(server, data)
  assert trivial.statuses(received) == [200] * 4
  assert application.paths == ['/', '/echo', '/', '/']
  # Byte by byte, too.
  application.paths.clear()
  pieces = [data[n : n + 1] for n in range(len(data))]
  assert trivial.statuses(trivial.exchange(server, pieces)) == [200] * 4
  assert application.paths == ['/', '/echo', '/', '/']


def test_what_comes_far_too_early_waits_in_the_client(server):
  # Only so much is kept of later requests while one is being answered.
  with trivial.connected(server, 0.2) as client:
    client.sendall(b'GET /wait?seconds=0.3 HTTP/1.1\r\nHost: a\r\n\r\n')
    sent = 0
    with pytest.raises(TimeoutError):
      while sent < 64 * 2**20:
        sent += client.send(trivial.GET * 1000)
    (held,) = [len(x._inbox) for x in server.server_state.connections]
    assert held < 2**19


def test_an_idle_connection_is_closed(hasty):
  for data, count in ((b'', 0), (trivial.GET, 1)):
    received, seconds = timed(hasty, data)
    assert len(trivial.statuses(received)) == count
    assert seconds > 0.45


@pytest.mark.parametrize(
  'begun',
  [
    b'GET / HTTP/1.1\r\nHost: a\r\n',
    _HEAD + b'Content-Length: 10\r\n\r\n{',
    _HEAD + b'Transfer-Encoding: chunked\r\n\r\n9\r\n{',
  ],
)
def test_a_request_that_does_not_go_on_is_ended(hasty, begun):
  received, seconds = timed(hasty, begun)
  assert trivial.statuses(received) == [408]
  assert b'"error"' in received and seconds > 0.9 * _HASTY.request_seconds


def test_bytes_now_and_then_do_not_lengthen_the_deadline(hasty):
  # As a slowloris does, in the head and in the body.
  for begun, more in (
    (b'GET / HTTP/1.1\r\nHost: a\r\n', b'A: b\r\n'),
    (_HEAD + b'Content-Length: 1000\r\n\r\n', b' '),
  ):
    with trivial.connected(hasty) as client:
      client.sendall(begun)
      client.settimeout(0.05)
      time.sleep(0.1)
      begun_at, received = time.monotonic(), b''
      while b'408' not in received:
        client.sendall(more)
        try:
          received += client.recv(2**16)
        except TimeoutError:
          continue
      assert time.monotonic() - begun_at < 60


def test_each_request_has_the_whole_time(server):
  with trivial.connected(server) as client:
    last = 0.0
    for _ in range(2):
      # From the beginning, or the answer before; and from the first byte.
      last = later_deadline(server, last)
      client.sendall(trivial.GET[:10])
      last = later_deadline(server, last)
      client.sendall(trivial.GET[10:])
      assert trivial.answer(client)[0] == 200


def later_deadline(server, last):
  """Returns the last deadline of the connections, once it is later."""
  found = [0.0]

  def is_later():
    timers = [one._deadline for one in list(server.server_state.connections)]
    found[0] = max((one.when() for one in timers if one), default=0.0)
    return found[0] > last

  assert trivial.until(is_later)
  return found[0]


def test_an_answer_may_take_longer_than_a_request(hasty):
  late = b'GET /wait?seconds=0.8 HTTP/1.1\r\nHost: a\r\n\r\n'
  received, _ = timed(hasty, late)
  assert trivial.statuses(received) == [200]


@pytest.fixture(scope='module')
def alone(application):
  """A server whose kernel waits for readers as long as they like."""
  with contextlib.ExitStack() as stack:
    with pytest.MonkeyPatch.context() as patch:
      patch.delattr(socket, 'TCP_USER_TIMEOUT', raising=False)
      made = server_lib.running(application.app, settings=_HASTY)
      running = stack.enter_context(made)
    yield running


def test_a_client_that_does_not_read_is_left(alone, application):
  with trivial.connected(alone) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ask = b'GET /stream?size=50000&pause=0 HTTP/1.1\r\nHost: a\r\n\r\n'
    begun, kept = time.monotonic(), 0
    client.sendall(ask)
    assert trivial.until(lambda: application.streams == 1)
    while application.streams:
      assert time.monotonic() - begun < 60
      for one in list(alone.server_state.connections):
        kept = max(kept, one.transport.get_write_buffer_size())
      time.sleep(0.01)
    assert time.monotonic() - begun > _HASTY.unread_seconds
    assert 0 < kept < 2**17
    with pytest.raises(ConnectionError):
      trivial.rest(client)


def test_an_answer_that_is_written_and_not_read_is_left_too(alone):
  with trivial.connected(alone) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(b'GET /large?size=9000000 HTTP/1.1\r\nHost: a\r\n\r\n')
    assert trivial.until(lambda: alone.server_state.connections)
    assert trivial.until(lambda: not alone.server_state.connections)


def test_a_last_answer_that_is_not_read_is_left_too(alone):
  # Its connection has ended but for what lies unread; no time ends that twice.
  with trivial.connected(alone) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ask = b'GET /large?size=900000 HTTP/1.1\r\nHost: a\r\nConnection: close'
    client.sendall(ask + b'\r\n\r\n')
    assert trivial.until(lambda: alone.server_state.connections)
    assert trivial.until(lambda: not alone.server_state.connections)
    with pytest.raises(ConnectionError):
      trivial.rest(client)


def read_slowly(client, size):
  """Reads as much of an answer; returns after how long."""
  begun, received = time.monotonic(), 0
  while received < size:
    received += len(piece := client.recv(2**14))
    assert piece
    time.sleep(0.02)
  return time.monotonic() - begun


def test_a_slow_reader_who_reads_is_waited_for(hasty):
  with trivial.connected(hasty) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)
    client.sendall(b'GET /large?size=900000 HTTP/1.1\r\nHost: a\r\n\r\n')
    # Longer than an answer may lie unread.
    assert read_slowly(client, 900_000) > 1.5 * _HASTY.unread_seconds


def test_a_last_answer_is_waited_for_and_then_no_longer(
  application, monkeypatch
):
  # All of it is written at once, and read for longer than a client may linger.
  monkeypatch.setattr(edge, '_PIECE', 2**30)
  settings = server_lib.Settings(linger_seconds=0.2)
  ask = b'GET /large?size=900000 HTTP/1.1\r\nHost: a\r\nConnection: close'
  with contextlib.ExitStack() as stack:
    server = stack.enter_context(
      server_lib.running(application.app, settings=settings)
    )
    client = stack.enter_context(trivial.connected(server))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)
    client.sendall(ask + b'\r\n\r\n')
    assert read_slowly(client, 900_000) > 3 * settings.linger_seconds
    # The client does not end its half.
    assert trivial.until(lambda: not server.server_state.connections)


def test_the_kernel_waits_no_longer_either(hasty):
  with trivial.connected(hasty) as client:
    client.sendall(trivial.GET)
    trivial.answer(client)
    (one,) = hasty.server_state.connections
    connected = one.transport.get_extra_info('socket')
    option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    assert connected.getsockopt(*option) == 600
    # And sends at once what it has.
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_early_answer_is_seen_whatever_is_still_sent(server, caplog):
  # A body is refused by its declared size while it is on its way: closing at
  # once would reset the connection, and the answer with it.
  head = _HEAD + b'Content-Length: 3000000\r\n\r\n'
  closing = head.replace(b'\r\n\r\n', b'\r\nConnection: close\r\n\r\n')
  ignored = b'POST /ignores HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n'
  for data, status in (
    ([head, b'x' * 3_000_000], 413),
    ([closing, b'x' * 3_000_000], 413),
    (ignored, 200),
  ):
    taken = []
    for _ in range(5):
      received, seconds = timed(server, data)
      assert trivial.statuses(received) == [status]
      taken.append(seconds)
    # Our half has ended before the client has lingered.
    assert min(taken) < server._settings.linger_seconds
  assert not caplog.records


def test_nobody_sends_for_ever_after_an_answer(hasty):
  head = _HEAD + b'Content-Length: 999999999\r\n\r\n'
  begun = time.monotonic()
  with trivial.connected(hasty) as client, pytest.raises(ConnectionError):
    client.sendall(head)
    while time.monotonic() < begun + 60:
      client.sendall(b'x' * 2**16)


def test_only_so_much_is_thrown_away(server, monkeypatch):
  monkeypatch.setattr(connection, '_MOST_THROWN', 2**20)
  head, sent = _HEAD + b'Content-Length: 999999999\r\n\r\n', 0
  with trivial.connected(server) as client, pytest.raises(ConnectionError):
    client.sendall(head)
    while True:
      sent += client.send(bytes(2**16))
  assert sent < 2**24


def test_a_client_waits_to_be_asked_for_its_body(server):
  head = _HEAD + b'Expect: 100-continue\r\nContent-Length: 2\r\n'
  with trivial.connected(server) as client:
    client.sendall(head + b'\r\n')
    assert client.recv(2**16).startswith(b'HTTP/1.1 100')
    client.sendall(b'{}')
    assert trivial.answer(client)[0] == 200
  large = head.replace(b'Length: 2', b'Length: 2000000')
  received, _ = timed(server, large + b'\r\n')
  assert trivial.statuses(received) == [413]


@pytest.mark.parametrize('count', [1, 2])
def test_a_client_that_ends_its_half_gets_its_answers(server, count):
  wait = b'GET /wait?seconds=0.2 HTTP/1.1\r\nHost: a\r\n\r\n'
  for ask in wait, trivial.GET, _HEAD + b'Content-Length: 2\r\n\r\n{}':
    received = trivial.exchange(server, ask * count, ends=True)
    answers = [x for x in trivial.statuses(received) if x != 100]
    assert answers == [200] * count
  # Half a request is none, behind a whole one too.
  for ask, wanted in (trivial.GET[:9], []), (wait + trivial.GET[:9], [200]):
    received = trivial.exchange(server, ask, ends=True)
    answers = [x for x in trivial.statuses(received) if x != 100]
    assert answers == wanted
  assert trivial.until(lambda: not server.server_state.connections)


@pytest.mark.parametrize(
  'how', ['at once', 'later', 'its half first', 'as 1.0']
)
def test_a_client_that_closes_has_left(server, application, how):
  ask = b'GET /patient HTTP/1.1\r\nHost: a\r\n\r\n'
  if how == 'as 1.0':
    ask = ask.replace(b'1.1', b'1.0')
  with trivial.connected(server) as client:
    client.sendall(ask)
    if how != 'at once':
      assert trivial.until(lambda: application.streams == 1)
    if how in ('its half first', 'as 1.0'):
      client.shutdown(socket.SHUT_WR)
    if how == 'its half first':
      assert client.recv(2**16).startswith(b'HTTP/1.1 100 ')
    elif how == 'as 1.0':
      assert client.recv(2**16) == b''
  assert trivial.until(lambda: not server.server_state.connections)
  assert trivial.until(lambda: not application.streams)


def test_a_wish_for_another_protocol_is_ignored(server, caplog):
  ask = trivial.GET.replace(
    b'\r\n\r\n', b'\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n'
  )
  assert trivial.statuses(trivial.exchange(server, ask)) == [200]
  assert not caplog.records


def test_a_fault_in_a_body_ends_what_waits_for_it(server, application):
  application.paths.clear()
  begun = _HEAD + b'Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n'
  with trivial.connected(server) as client:
    client.sendall(begun)
    time.sleep(0.05)
    client.sendall(b'zz\r\n')
    assert trivial.statuses(trivial.rest(client)) == [400]
    # While the client is still there.
    assert trivial.until(lambda: not server.server_state.tasks, 20)
  assert application.paths == []


def test_nothing_is_said_behind_a_refusal(server, caplog):
  # The application asks for a body that was refused with its first bytes.
  begun = _HEAD + b'Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n'
  received = trivial.exchange(server, begun + b'zz\r\n')
  assert trivial.statuses(received) == [400]
  assert trivial.until(lambda: not server.server_state.tasks)
  assert not caplog.records


STREAM = b'GET /stream?pause=0.05 HTTP/1.1\r\nHost: a\r\n\r\n'
# What a client may do that keeps the server waiting.
WAITING = {
  'nothing': b'',
  'half of a head': trivial.GET[:20],
  'half of a body': _HEAD + b'Content-Length: 9\r\n\r\n{',
  'half of a chunk': _HEAD + b'Transfer-Encoding: chunked\r\n\r\n9\r\n{',
  'an answered request': trivial.GET,
  'a last request': _LAST,
}


def busy(server):
  """Returns a client whose answer does not end."""
  client = trivial.connected(server)
  client.sendall(STREAM)
  assert client.recv(99).startswith(b'HTTP/1.1 200 ')
  return client


def test_answers_are_limited_in_all_and_per_address(application):
  def states(settings, count):
    with server_lib.running(application.app, settings=settings) as server:
      clients = [busy(server) for _ in range(count)]
      for _ in range(2):
        with trivial.connected(server) as client:
          assert trivial.statuses(trivial.rest(client)) == [503]
      clients[0].close()
      assert trivial.until(lambda: application.streams == count - 1)
      with trivial.connected(server) as again:
        again.sendall(trivial.GET)
        assert trivial.answer(again)[0] == 200
      for client in clients:
        client.close()
      assert trivial.until(lambda: not server.server_state.connections)

  states(server_lib.Settings(connections=3), 3)
  states(server_lib.Settings(connections=9, connections_each=2), 2)


@pytest.mark.parametrize('kind', WAITING)
@pytest.mark.parametrize('is_metrics', [False, True])
def test_clients_that_wait_keep_nobody_out(application, kind, is_metrics):
  most = server_lib._SCRAPES
  settings = server_lib.Settings(
    connections=most, connections_each=most, linger_seconds=40.0
  )
  with server_lib.running(
    application.app, settings=settings, metrics=application.app
  ) as server:
    port = server.metrics_port if is_metrics else server.port

    def connected():
      return socket.create_connection(('127.0.0.1', port), 60)

    other_port = server.port if is_metrics else server.metrics_port
    elsewhere = socket.create_connection(('127.0.0.1', other_port), 60)
    others = [connected() for _ in range(most - 1)]
    kept = connected()
    kept.sendall(STREAM)
    assert kept.recv(99).startswith(b'HTTP/1.1 200 ')
    for client in others:
      client.sendall(WAITING[kind])
      if WAITING[kind] in (trivial.GET, _LAST):
        assert trivial.answer(client)[0] == 200
    for _ in range(2):
      for _ in range(most):  # As many come again, and wait likewise.
        others.append(connected())
        others[-1].sendall(WAITING[kind])
      with connected() as client:
        client.sendall(trivial.GET)
        assert trivial.answer(client) == (200, b'hello')
    slots = server.config.http_protocol_class.keywords['slots']
    if is_metrics:
      slots = server._metrics.http_protocol_class.keywords['slots']
    assert slots.taken <= most
    assert len(server.server_state.connections) <= 2 * most + 2
    assert kept.recv(99)  # Whoever is answered has lost nothing.
    elsewhere.sendall(trivial.GET)  # Nor has who waits at the other port.
    assert trivial.answer(elsewhere) == (200, b'hello')
    for client in (kept, elsewhere, *others):
      client.close()
    assert trivial.until(lambda: not slots.taken)


def test_an_address_that_waits_gives_way_to_itself_alone(
  application, monkeypatch
):
  """Others' idle connections stay, where one address has its share."""
  named = iter(['a', 'b', 'b', 'b', 'b'])
  monkeypatch.setattr(connection.limits, 'network', lambda address: next(named))
  settings = server_lib.Settings(connections=4, connections_each=2)
  with server_lib.running(application.app, settings=settings) as server:
    first, *theirs = (trivial.connected(server) for _ in range(5))
    assert trivial.rest(theirs[0]) == trivial.rest(theirs[1]) == b''
    for client in (first, *theirs[2:]):
      client.sendall(trivial.GET)
      assert trivial.answer(client) == (200, b'hello')
      client.close()
    assert trivial.until(lambda: not server.server_state.connections)


def left(server, application):
  """Returns what lives: tasks, file descriptors, connections, timers."""

  async def count():
    return len(asyncio.all_tasks()) - 1

  future = asyncio.run_coroutine_threadsafe(count(), application.loop)
  timers = [x for x in application.loop._scheduled if not x.cancelled()]
  return {
    'tasks': future.result(),
    'files': len(os.listdir('/proc/self/fd')),
    'connections': len(server.server_state.connections),
    'timers': len(timers),
    'streams': application.streams,
  }


def disconnects(server, rng, count):
  """Leaves a server in the middle of all sorts of things."""
  body = _HEAD + b'Content-Length: 300\r\n\r\n' + b' ' * 300
  stream = b'GET /stream?size=%d HTTP/1.1\r\nHost: a\r\n\r\n'
  for _ in range(count):
    with trivial.connected(server) as client:
      kind = rng.randrange(4)
      if kind == 0:
        client.sendall(trivial.GET[: rng.randrange(len(trivial.GET) + 1)])
      elif kind == 1:
        client.sendall(body[: rng.randrange(len(body))])
      elif kind == 2:
        client.sendall(b'GET /wait?seconds=0.01 HTTP/1.1\r\nHost: a\r\n\r\n')
        time.sleep(rng.random() * 0.01)
      else:
        client.sendall(stream % rng.choice([1, 100, 60_000]))
        for _ in range(rng.randrange(6)):
          client.recv(rng.choice([1, 50, 2**16]))
      if rng.random() < 0.5:  # A reset instead of an end.
        linger = struct.pack('ii', 1, 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def check_disconnects(server, application, count):
  trivial.exchange(server, _LAST)
  assert trivial.until(lambda: not server.server_state.connections)
  gc.collect()
  before = left(server, application)
  disconnects(server, random.Random(6), count)
  trivial.until(lambda: left(server, application) == before)
  gc.collect()
  assert left(server, application) == before
  assert trivial.statuses(trivial.exchange(server, _LAST)) == [200]


def test_disconnects_leave_nothing(server, application):
  check_disconnects(server, application, 100)


@pytest.mark.slow
def test_a_thousand_disconnects_leave_nothing(server, application):
  check_disconnects(server, application, 1000)

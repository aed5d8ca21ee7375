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

GET = trivial.GET
_HEAD = b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n'
_CHUNKED = _HEAD + b'Transfer-Encoding: chunked\r\n\r\n'
# The client of a refused request sees it, however late it reads.
_HASTY = server_lib.Settings(
  request_seconds=0.3, unread_seconds=0.4, linger_seconds=40.0
)
_BRIEF = server_lib.Settings(unread_seconds=0.4, linger_seconds=0.2)


def get(target, *headers):
  """Returns a request."""
  lines = b'GET %s HTTP/1.1' % target, b'Host: a', *headers, b'', b''
  return b'\r\n'.join(lines)


def posting(size, *headers):
  """Returns the head of a request with a body of a size."""
  length = b'Content-Length: %d' % size
  return _HEAD + b'\r\n'.join([*headers, length, b'', b''])


_LAST = get(b'/', b'Connection: close')


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


@pytest.fixture
def paths(application):
  """The paths that the application is asked for from now on."""
  application.paths.clear()
  return application.paths


def is_empty(server):
  """Returns whether all connections end soon."""
  return trivial.until(lambda: not server.server_state.connections)


def exchanged(server, data):
  """Returns the statuses until the server closes."""
  return trivial.statuses(trivial.exchange(server, data))


def punctual(server, data):
  """Returns a client whose bytes came long before the server's deadline.

  Another one comes too late where its process did not have the processor.
  """
  while True:
    begun = time.monotonic()
    client = trivial.connected(server)
    client.sendall(data)
    if time.monotonic() < begun + server._settings.request_seconds / 2:
      return client
    client.close()


# Requests.


def test_requests_that_come_at_once_are_answered_in_order(server, paths):
  chunks = _CHUNKED + b'8\r\n{"a": 1}\r\n0\r\n\r\n'
  data = GET + chunks + GET + _LAST
  for pieces in data, [data[n : n + 1] for n in range(len(data))]:
    paths.clear()
    received = trivial.exchange(server, pieces)
    assert trivial.statuses(received) == [200] * 4
    assert paths == ['/', '/echo', '/', '/']


def test_what_comes_far_too_early_waits_in_the_client(server):
  # Only so much is kept of later requests while one is being answered.
  assert is_empty(server)
  with trivial.connected(server, 0.2) as client:
    client.sendall(get(b'/wait?seconds=0.3'))
    sent = 0
    with pytest.raises(TimeoutError):
      while sent < 64 * 2**20:
        sent += client.send(GET * 1000)
    (held,) = [len(x._inbox) for x in list(server.server_state.connections)]
    assert held < 2**19


@pytest.mark.parametrize(
  'begun, statuses',
  [
    (b'', []),
    (GET, [200]),
    (get(b'/')[:-2], [408]),
    (posting(10) + b'{', [408]),
    (_CHUNKED + b'9\r\n{', [408]),
  ],
)
def test_a_connection_on_which_nothing_comes_is_closed(hasty, begun, statuses):
  before = time.monotonic()
  with punctual(hasty, begun) as client:
    assert trivial.statuses(trivial.rest(client)) == statuses
  assert time.monotonic() - before > 0.9 * _HASTY.request_seconds


@pytest.mark.parametrize(
  'begun, more',
  [(get(b'/')[:-2], b'A: b\r\n'), (posting(1000), b' ')],
)
def test_bytes_now_and_then_do_not_lengthen_the_deadline(hasty, begun, more):
  # As a slowloris does, in the head and in the body.
  with punctual(hasty, begun) as client:
    client.settimeout(0.05)
    begun_at, received = time.monotonic(), b''
    while b'408' not in received:
      client.sendall(more)
      with contextlib.suppress(TimeoutError):
        received += client.recv(2**16)
      assert time.monotonic() - begun_at < 60


def test_each_request_has_the_whole_time(server):
  last = [0.0]

  def is_later():
    timers = [one._deadline for one in list(server.server_state.connections)]
    found = max((one.when() for one in timers if one), default=0.0)
    last[0], is_more = max(last[0], found), found > last[0]
    return is_more

  assert is_empty(server)
  with trivial.connected(server) as client:
    for _ in range(2):
      # From the beginning, or the answer before; and from the first byte.
      assert trivial.until(is_later)
      client.sendall(GET[:10])
      assert trivial.until(is_later)
      client.sendall(GET[10:])
      assert trivial.answer(client)[0] == 200


def test_an_answer_may_take_longer_than_a_request(hasty):
  with punctual(hasty, get(b'/wait?seconds=0.5')) as client:
    assert trivial.answer(client)[0] == 200


# Readers.


@pytest.fixture(scope='module')
def alone(application):
  """A server whose kernel waits for readers as long as they like."""
  with contextlib.ExitStack() as stack:
    with pytest.MonkeyPatch.context() as patch:
      patch.delattr(socket, 'TCP_USER_TIMEOUT', raising=False)
      made = server_lib.running(application.app, settings=_BRIEF)
      running = stack.enter_context(made)
    yield running


@contextlib.contextmanager
def reader(server, ask, buffer=4096):
  """Yields a client that has asked, and takes only so much unread."""
  with trivial.connected(server) as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.sendall(ask)
    yield client


def test_a_client_that_does_not_read_is_left(alone, application, paths):
  begun, kept = time.monotonic(), 0
  with reader(alone, get(b'/stream?size=50000&pause=0')) as client:
    while not paths or application.streams:
      assert time.monotonic() - begun < 60
      for one in list(alone.server_state.connections):
        kept = max(kept, one.transport.get_write_buffer_size())
      time.sleep(0.01)
    assert time.monotonic() - begun > _BRIEF.unread_seconds
    assert 0 < kept < 2**17
    with pytest.raises(ConnectionError):
      trivial.rest(client)


@pytest.mark.parametrize(
  'ask',
  [
    get(b'/large?size=9000000'),
    # Its connection has ended but for what lies unread; no time ends that
    # twice.
    get(b'/large?size=900000', b'Connection: close'),
  ],
)
def test_an_answer_that_is_written_and_not_read_is_left_too(alone, ask, paths):
  with reader(alone, ask) as client:
    assert trivial.until(lambda: paths)
    assert is_empty(alone)
    if b'close' in ask:
      with pytest.raises(ConnectionError):
        trivial.rest(client)


def read_slowly(client, seconds):
  """Reads a large answer for so long, and then its rest.

  Returns:
    Whether all of it came, and the most seconds between two pieces.
  """
  begun = last = time.monotonic()
  received, longest = 0, 0.0
  with contextlib.suppress(ConnectionError):
    while received < 900_000 and (piece := client.recv(2**14)):
      received += len(piece)
      if last - begun < seconds:
        time.sleep(0.02)
      longest, last = max(longest, time.monotonic() - last), time.monotonic()
  is_whole = received >= 900_000
  assert not is_whole or last - begun > seconds
  return is_whole, longest


def test_a_slow_reader_who_reads_is_waited_for(application):
  settings = server_lib.Settings(unread_seconds=0.4)
  with server_lib.running(application.app, settings=settings) as server:
    is_whole, longest = False, settings.unread_seconds
    while not is_whole:
      # A pause that the processor made says nothing.
      assert longest > settings.unread_seconds / 4
      with reader(server, get(b'/large?size=900000'), 2**15) as client:
        # Longer than an answer may lie unread.
        is_whole, longest = read_slowly(client, 1.5 * settings.unread_seconds)


def test_a_last_answer_is_waited_for_and_then_no_longer(
  application, monkeypatch
):
  # All of it is written at once, and read for longer than a client may linger.
  monkeypatch.setattr(edge, '_PIECE', 2**30)
  settings = server_lib.Settings(linger_seconds=0.2)
  ask = get(b'/large?size=900000', b'Connection: close')
  with (
    server_lib.running(application.app, settings=settings) as server,
    reader(server, ask, 2**15) as client,
  ):
    assert read_slowly(client, 3 * settings.linger_seconds)[0]
    # The client does not end its half.
    assert is_empty(server)


def test_the_kernel_waits_no_longer_either(server):
  assert is_empty(server)
  with trivial.connected(server) as client:
    client.sendall(GET)
    trivial.answer(client)
    (one,) = list(server.server_state.connections)
    connected = one.transport.get_extra_info('socket')
    option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    assert (
      connected.getsockopt(*option) == 1000 * server._settings.unread_seconds
    )
    # And sends at once what it has.
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# Answers before the request's end.


@pytest.mark.parametrize(
  'data, status',
  [
    ([posting(3_000_000), b'x' * 3_000_000], 413),
    ([posting(3_000_000, b'Connection: close'), b'x' * 3_000_000], 413),
    (posting(9).replace(b'/echo', b'/ignores'), 200),
  ],
)
def test_an_early_answer_is_seen_whatever_is_still_sent(
  server, caplog, data, status
):
  # A body is refused by its declared size while it is on its way: closing at
  # once would reset the connection, and the answer with it.
  begun = time.monotonic()
  for _ in range(5):
    assert exchanged(server, data) == [status]
  # Our half has ended before the clients have lingered.
  assert time.monotonic() - begun < 5 * server._settings.linger_seconds
  assert not caplog.records


def test_nobody_sends_for_ever_after_an_answer(alone):
  begun = time.monotonic()
  with trivial.connected(alone) as client, pytest.raises(ConnectionError):
    client.sendall(posting(999_999_999))
    while time.monotonic() < begun + 60:
      client.sendall(b'x' * 2**16)


def test_only_so_much_is_thrown_away(server, monkeypatch):
  monkeypatch.setattr(connection, '_MOST_THROWN', 2**20)
  sent = 0
  with trivial.connected(server) as client, pytest.raises(ConnectionError):
    client.sendall(posting(999_999_999))
    while True:
      sent += client.send(bytes(2**16))
  assert sent < 2**24


def test_a_client_waits_to_be_asked_for_its_body(server):
  expects = b'Expect: 100-continue'
  with trivial.connected(server) as client:
    client.sendall(posting(2, expects))
    assert client.recv(2**16).startswith(b'HTTP/1.1 100')
    client.sendall(b'{}')
    assert trivial.answer(client)[0] == 200
  assert exchanged(server, posting(2_000_000, expects)) == [413]


# Clients that leave.


@pytest.mark.parametrize('count', [1, 2])
def test_a_client_that_ends_its_half_gets_its_answers(server, count):
  wait, half = get(b'/wait?seconds=0.1'), GET[:9]
  for ask, wanted in (
    *((one * count, count) for one in (wait, GET, posting(2) + b'{}')),
    # Half a request is none, behind a whole one too.
    (half, 0),
    (wait + half, 1),
  ):
    received = trivial.exchange(server, ask, ends=True)
    answers = [x for x in trivial.statuses(received) if x != 100]
    assert answers == [200] * wanted
  assert is_empty(server)


@pytest.mark.parametrize(
  'how', ['at once', 'later', 'its half first', 'as 1.0']
)
def test_a_client_that_closes_has_left(server, application, paths, how):
  ask = get(b'/patient')
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
  assert trivial.until(lambda: paths) and is_empty(server)
  assert trivial.until(lambda: not application.streams)


def test_a_wish_for_another_protocol_is_ignored(server, caplog):
  ask = get(b'/', b'Connection: upgrade, close', b'Upgrade: websocket')
  assert exchanged(server, ask) == [200]
  assert not caplog.records


def test_a_fault_in_a_body_ends_what_waits_for_it(server, paths):
  with trivial.connected(server) as client:
    client.sendall(_CHUNKED + b'1\r\n{\r\n')
    assert trivial.until(lambda: server.server_state.tasks)
    client.sendall(b'zz\r\n')
    assert trivial.statuses(trivial.rest(client)) == [400]
    # While the client is still there.
    assert trivial.until(lambda: not server.server_state.tasks, 20)
  assert paths == []


def test_nothing_is_said_behind_a_refusal(server, caplog):
  # The application asks for a body that was refused with its first bytes.
  begun = _CHUNKED.replace(b'Host', b'Expect: 100-continue\r\nHost')
  assert exchanged(server, begun + b'zz\r\n') == [400]
  assert trivial.until(lambda: not server.server_state.tasks)
  assert not caplog.records


# Slots.


STREAM = get(b'/stream?pause=0.05')
# What a client may do that keeps the server waiting.
WAITING = {
  'nothing': b'',
  'half of a head': GET[:20],
  'half of a body': posting(9) + b'{',
  'half of a chunk': _CHUNKED + b'9\r\n{',
  'an answered request': GET,
  'a last request': _LAST,
}


def begin(client):
  """Asks for an answer that does not end."""
  client.sendall(STREAM)
  assert client.recv(99).startswith(b'HTTP/1.1 200 ')
  return client


def is_answered(client):
  client.sendall(GET)
  return trivial.answer(client) == (200, b'hello')


@pytest.mark.parametrize(
  'limits, count',
  [({'connections': 3}, 3), ({'connections': 9, 'connections_each': 2}, 2)],
)
def test_answers_are_limited_in_all_and_per_address(application, limits, count):
  settings = server_lib.Settings(**limits)
  with server_lib.running(application.app, settings=settings) as server:
    clients = [begin(trivial.connected(server)) for _ in range(count)]
    for _ in range(2):
      with trivial.connected(server) as client:
        assert trivial.statuses(trivial.rest(client)) == [503]
    clients[0].close()
    assert trivial.until(lambda: application.streams == count - 1)
    with trivial.connected(server) as again:
      assert is_answered(again)
    for client in clients:
      client.close()
    assert is_empty(server)


@pytest.mark.parametrize('kind', WAITING)
@pytest.mark.parametrize('is_metrics', [False, True])
def test_clients_that_wait_keep_nobody_out(application, kind, is_metrics):
  most = server_lib._SCRAPES
  settings = server_lib.Settings(
    connections=most, connections_each=most, linger_seconds=40.0
  )
  with (
    server_lib.running(
      application.app, settings=settings, metrics=application.app
    ) as server,
    contextlib.ExitStack() as stack,
  ):
    ports = server.port, server.metrics_port

    def connect(port=ports[is_metrics], sent=b''):
      address = '127.0.0.1', port
      client = stack.enter_context(socket.create_connection(address, 60))
      client.sendall(sent)
      return client

    elsewhere = connect(ports[not is_metrics])
    others = [connect() for _ in range(most - 1)]
    kept = begin(connect())
    for client in others:
      client.sendall(WAITING[kind])
      if WAITING[kind] in (GET, _LAST):
        assert trivial.answer(client)[0] == 200
    for _ in range(2):
      for _ in range(most):  # As many come again, and wait likewise.
        connect(sent=WAITING[kind])
      assert is_answered(connect())
    config = server._metrics if is_metrics else server.config
    slots = config.http_protocol_class.keywords['slots']
    assert slots.taken <= most
    assert len(server.server_state.connections) <= 2 * most + 2
    assert kept.recv(99)  # Whoever is answered has lost nothing.
    # Nor has who waits at the other port.
    assert is_answered(elsewhere)
    stack.close()
    assert trivial.until(lambda: not slots.taken)


def test_an_address_that_waits_gives_way_to_itself_alone(
  application, monkeypatch
):
  """Others' idle connections stay, where one address has its share."""
  named = iter(['a', 'b', 'b', 'b', 'b'])
  monkeypatch.setattr(connection.limits, 'network', lambda address: next(named))
  settings = server_lib.Settings(
    connections=4, connections_each=2, linger_seconds=0.2
  )
  with server_lib.running(application.app, settings=settings) as server:
    first, *theirs = (trivial.connected(server) for _ in range(5))
    assert trivial.rest(theirs[0]) == trivial.rest(theirs[1]) == b''
    for client in (first, *theirs[2:]):
      assert is_answered(client)
    for client in (first, *theirs):
      client.close()
    assert is_empty(server)


# What is left.


def left(server, application):
  """Returns what lives: tasks, file descriptors, connections, timers."""

  async def count():
    return len(asyncio.all_tasks()) - 1

  future = asyncio.run_coroutine_threadsafe(count(), application.loop)
  # The server's own sleep ends and begins ten times in a second.
  owners = [
    getattr(x._callback, '__self__', None)
    for x in list(application.loop._scheduled)
    if not x.cancelled()
  ]
  return {
    'tasks': future.result(),
    'files': len(os.listdir('/proc/self/fd')),
    'connections': len(server.server_state.connections),
    'timers': sum(isinstance(x, connection.Connection) for x in owners),
    'streams': application.streams,
  }


def disconnects(server, rng, count):
  """Leaves a server in the middle of all sorts of things."""
  body = posting(300) + b' ' * 300
  for _ in range(count):
    with trivial.connected(server) as client:
      kind = rng.randrange(4)
      if kind == 0:
        client.sendall(GET[: rng.randrange(len(GET) + 1)])
      elif kind == 1:
        client.sendall(body[: rng.randrange(len(body))])
      elif kind == 2:
        client.sendall(get(b'/wait?seconds=0.01'))
        time.sleep(rng.random() * 0.01)
      else:
        size = rng.choice([1, 100, 60_000])
        client.sendall(get(b'/stream?size=%d' % size))
        for _ in range(rng.randrange(6)):
          client.recv(rng.choice([1, 50, 2**16]))
      if rng.random() < 0.5:  # A reset instead of an end.
        linger = struct.pack('ii', 1, 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


@pytest.mark.parametrize(
  'count', [100, pytest.param(1000, marks=pytest.mark.slow)]
)
def test_disconnects_leave_nothing(server, hasty, application, count):
  trivial.exchange(server, _LAST)
  assert is_empty(server) and is_empty(hasty)
  gc.collect()
  before = left(server, application)
  disconnects(server, random.Random(6), count)
  trivial.until(lambda: left(server, application) == before)
  gc.collect()
  assert left(server, application) == before
  assert exchanged(server, _LAST) == [200]

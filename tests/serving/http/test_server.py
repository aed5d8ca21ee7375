"""The server: what every answer has, and how it stops."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from starlette import applications
from starlette import responses
from starlette import routing

from kaiju_jax.serving.http import edge
from kaiju_jax.serving.http import server as server_lib
from tests.serving import trivial


@pytest.fixture(scope='module')
def server(application):
  with server_lib.running(application.app) as running:
    yield running


def test_every_answer_says_what_a_browser_may_do_with_it(server):
  with httpx.Client(base_url=server.url) as client:
    answers = [
      client.get('/'),
      client.get('/nowhere'),
      client.post('/'),
      client.get('/fails'),
      client.get('/stream?count=1'),
    ]
  raw = trivial.exchange(server, b'nothing\r\n\r\n').decode()
  raw_headers = httpx.Headers(
    [line.split(': ', 1) for line in raw.split('\r\n')[1:] if ': ' in line]
  )
  assert [x.status_code for x in answers] == [200, 404, 405, 500, 200]
  for headers in (*(x.headers for x in answers), raw_headers):
    for name, value in edge.HEADERS:
      assert headers.get_list(name.decode()) == [value.decode()]
    assert 'server' not in headers
  policy = dict(edge.HEADERS)[b'content-security-policy'].decode()
  assert "frame-ancestors 'none'" in policy
  # A page has its own policy.
  headers = httpx.get(f'{server.url}/page').headers
  assert headers.get_list('content-security-policy') == ["default-src 'self'"]
  assert headers['x-content-type-options'] == 'nosniff'
  assert "script-src 'self';" in edge.PAGE_POLICY
  assert 'unsafe' not in edge.PAGE_POLICY and '*' not in edge.PAGE_POLICY


def test_what_fails_is_told_without_details(server, caplog):
  with httpx.Client(base_url=server.url) as client:
    for _ in range(5):  # On one connection.
      answer = client.get('/fails')
      assert answer.json()['error']['code'] == 'internal'
      assert 'planted' not in answer.text
      assert client.get('/').status_code == 200
  # The log has them.
  assert trivial.until(lambda: caplog.text.count('RuntimeError: planted') >= 5)


def test_what_fails_outside_of_every_handler_is_told_too(caplog):
  async def app(scope, receive, send):
    if scope['path'] == '/late':
      await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    raise RuntimeError('planted')

  with server_lib.running(edge.Edge(app, lambda: False)) as server:
    answer = httpx.get(server.url)
    assert answer.json()['error']['code'] == 'internal'
    late = trivial.GET.replace(b'/', b'/late', 1)
    received = trivial.exchange(server, late)
    # It breaks off: the last chunk, which is empty, never comes.
    assert not received.endswith(b'0\r\n\r\n')
  assert caplog.text.count('RuntimeError: planted') == 2


def test_nobody_says_where_he_comes_from(server):
  headers = {
    'X-Forwarded-For': '203.0.113.9',
    'Forwarded': 'for=203.0.113.9;proto=https',
    'X-Forwarded-Proto': 'https',
  }
  answer = httpx.get(f'{server.url}/client', headers=headers)
  assert answer.json() == ['127.0.0.1', 'http']


def test_long_answers_are_whole(server):
  for size in (0, 1, 2**16 - 1, 2**16, 2**16 + 1, 2**20 + 5):
    answer = httpx.get(f'{server.url}/large?size={size}')
    assert answer.content == b'x' * size
    assert answer.headers['content-length'] == str(size)
  assert httpx.head(f'{server.url}/large?size=200000').content == b''


def test_errors_of_the_protocol_have_the_common_form(server):
  received = trivial.exchange(server, b'GET / HTTP/2.0\r\n\r\n')
  head, _, body = received.partition(b'\r\n\r\n')
  assert b'content-type: application/json' in head
  error = json.loads(body)['error']
  assert error['message'] and error['type'] == 'invalid_request_error'


# Where it listens.


def test_the_port_is_known_and_its_own(server):
  with pytest.raises(OSError, match=rf'127\.0\.0\.1:{server.port}'):
    server_lib.Server(server.config.app, port=server.port)
  assert server.url == f'http://127.0.0.1:{server.port}'
  for host, url in (('0.0.0.0', '127.0.0.1'), ('localhost', 'localhost')):
    other = server_lib.Server(server.config.app, host)
    assert other.url == f'http://{url}:{other.port}'
    other.close()


@pytest.mark.skipif(not socket.has_ipv6, reason='IPv6 is not there')
def test_an_address_of_version_6(application):
  try:
    with server_lib.running(application.app, '::1') as server:
      assert httpx.get(server.url).text == 'hello'
      assert server.url == f'http://[::1]:{server.port}'
  except OSError as error:
    pytest.skip(f'IPv6 is not there: {error}')


def test_metrics_have_a_port_of_their_own_on_this_machine(application):
  async def metrics(request):
    return responses.PlainTextResponse('kaiju_points 1')

  app = applications.Starlette(routes=[routing.Route('/metrics', metrics)])
  with server_lib.running(application.app, metrics=app) as server:
    url = f'http://127.0.0.1:{server.metrics_port}/metrics'
    assert httpx.get(url).text == 'kaiju_points 1'
    assert httpx.get(f'{server.url}/metrics').status_code == 404
    assert httpx.get(url.replace('metrics', '')).status_code == 404
    (listener,) = server.servers[1].sockets
    assert listener.getsockname()[0] == '127.0.0.1'
    taken = server.metrics_port
    with pytest.raises(OSError, match=str(taken)):
      server_lib.Server(application.app, metrics=app, metrics_port=taken)
  with pytest.raises(httpx.ConnectError):
    httpx.get(url)


def test_an_application_that_does_not_start_is_an_error():
  def lifespan(app):
    raise ValueError('planted')

  app = applications.Starlette(lifespan=lifespan)
  with (
    pytest.raises(RuntimeError, match='failed to start'),
    server_lib.running(app),
  ):
    raise AssertionError('it runs')


# How it stops.


def ask(application, path, ask=httpx.get):
  """Returns a thread that asks, once it has begun, and its answers."""
  got = []
  thread = threading.Thread(target=lambda: got.append(ask(path, timeout=250)))
  thread.start()
  if application is not None:
    assert trivial.until(lambda: application.streams)
  return thread, got


def test_stopping_lets_answers_end_and_takes_no_new_ones(application):
  drained = []
  settings = server_lib.Settings(drain_seconds=5)
  with (
    server_lib.running(
      application.app, settings=settings, on_drain=drained.append
    ) as server,
    httpx.Client(base_url=server.url) as client,
  ):
    thread, got = ask(application, '/wait?seconds=0.4', client.get)
    with trivial.connected(server) as idle:
      server.stop()
      assert trivial.until(server._draining.is_set)
      assert drained == [5]
      refused = httpx.get(f'{server.url}/readyz')
      assert refused.status_code == 503
      assert refused.json()['error']['code'] == 'unavailable'
      assert refused.headers['connection'] == 'close'
      assert 'retry-after' in refused.headers
      # Whether it lives is another question; here nobody answers it.
      assert httpx.get(f'{server.url}/healthz').status_code == 404
      thread.join()
      assert got[0].text == 'waited'
      assert trivial.rest(idle) == b''
  with pytest.raises(httpx.ConnectError):
    httpx.get(server.url)


def test_what_does_not_end_in_time_is_ended(application, monkeypatch):
  monkeypatch.setattr(server_lib, '_LAST_WORDS', 0.3)
  settings = server_lib.Settings(drain_seconds=0.1)
  with contextlib.ExitStack() as stack:
    with server_lib.running(application.app, settings=settings) as server:
      slow = stack.enter_context(trivial.connected(server))
      slow.sendall(b'GET /wait?seconds=60 HTTP/1.1\r\nHost: a\r\n\r\n')
      stream = stack.enter_context(trivial.connected(server))
      stream.sendall(b'GET /stream HTTP/1.1\r\nHost: a\r\n\r\n')
      assert trivial.until(lambda: application.streams == 2)
      begun = time.monotonic()
    assert time.monotonic() - begun < 30
    assert application.streams == 0
    assert trivial.statuses(trivial.rest(slow)) == [503]
    received = trivial.rest(stream)
    # A stream breaks off: nothing says that it was whole.
    assert trivial.statuses(received) == [200]
    assert not received.endswith(b'0\r\n\r\n')


_PROGRAM = """
import threading
from kaiju_jax.serving.http import server as server_lib
from tests.serving import trivial
application = trivial.Application()
server = server_lib.Server(application.app)
print(server.url, flush=True)

def tell():
  trivial.until(lambda: application.streams, 60)
  print('asked', flush=True)

threading.Thread(target=tell).start()
server.run()
print('closed', server.signal, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_and_its_caller_goes_on(number):
  with subprocess.Popen(
    [sys.executable, '-c', _PROGRAM], stdout=subprocess.PIPE, text=True
  ) as process:
    url = process.stdout.readline().strip()
    thread, got = ask(None, f'{url}/wait?seconds=1')
    assert process.stdout.readline() == 'asked\n'
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=250)
    thread.join()
  assert got[0].text == 'waited'
  assert out == f'closed {int(number)}\n'
  assert process.returncode == 0


def test_who_stops_leaves_a_shared_listener_to_others():
  """New connections go to the other, while an open answer has its time."""
  made = [trivial.Application(), trivial.Application()]
  with (
    server_lib.listen('127.0.0.1', 0) as listener,
    server_lib.running(made[1].app, listener=listener.dup()) as other,
    server_lib.running(made[0].app, listener=listener.dup()) as one,
  ):
    assert one.port == other.port == listener.getsockname()[1]
    url = f'{one.url}/'
    # Either may take a connection: ask until the first has.
    while not made[0].streams:
      waiting, _ = ask(None, f'{url}wait?seconds=0.5')
      assert trivial.until(lambda: any(x.streams for x in made))
      if not made[0].streams:
        waiting.join()
    one.stop()
    assert trivial.until(one._draining.is_set)
    before = len(made[0].paths)
    assert all(httpx.get(url).status_code == 200 for _ in range(20))
    assert len(made[0].paths) == before
    waiting.join()

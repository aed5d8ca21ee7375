"""A trivial application, and raw sockets to speak to its server."""

import asyncio
import re
import socket
import time

from starlette import applications
from starlette import responses
from starlette import routing

from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors

GET = b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'
_STATUS = re.compile(rb'HTTP/1\.1 ([0-9]{3}) ')


class Clock:
  """Seconds that a test sets."""

  def __init__(self, now=1_000_000.0):
    self.now = now

  def __call__(self):
    return self.now


def _refuse(error):
  async def refuse(request):
    raise error

  return refuse


class Application:
  """Answers, and remembers what it was asked.

  Attributes:
    app: for a server.
    paths: the paths, in order.
    streams: streams that have begun and not ended.
    loop: the server's, once it has answered.
  """

  def __init__(self):
    self.paths = []
    self.streams = 0
    self.loop = None
    self.app = applications.Starlette(
      routes=[
        routing.Route('/', self._hello),
        routing.Route('/echo', self._echo, methods=['POST']),
        routing.Route('/stream', self._stream),
        routing.Route('/large', self._large),
        routing.Route('/wait', self._wait),
        routing.Route('/patient', self._patient),
        routing.Route('/fails', self._fails),
        routing.Route('/v1/fails', self._fails),
        routing.Route('/v1/away', _refuse(errors.unavailable('away'))),
        routing.Route('/v1/busy', _refuse(errors.busy('full', 1.0))),
        routing.Route('/v1/hello', self._hello),
        routing.Route('/smuggled', self._hello),
        routing.Route('/ignores', self._hello, methods=['POST']),
        routing.Route('/page', self._page),
        routing.Route('/client', self._client),
      ],
      exception_handlers=errors.HANDLERS,
    )

  def _note(self, request):
    self.paths.append(request.url.path)
    self.loop = asyncio.get_running_loop()

  async def _hello(self, request):
    self._note(request)
    return responses.PlainTextResponse('hello')

  async def _echo(self, request):
    bodies.media_type(request, [bodies.JSON])
    body = bodies.parse(await bodies.read(request))
    self._note(request)
    return responses.JSONResponse(body)

  async def _stream(self, request):
    self._note(request)
    size = int(request.query_params.get('size', 10))
    pause = float(request.query_params.get('pause', 0.001))

    async def pieces():
      self.streams += 1
      try:
        for _ in range(int(request.query_params.get('count', 1_000_000))):
          yield b'x' * size
          await asyncio.sleep(pause)
      finally:
        self.streams -= 1

    return responses.StreamingResponse(pieces(), media_type='text/event-stream')

  async def _large(self, request):
    self._note(request)
    return responses.Response(b'x' * int(request.query_params['size']))

  async def _wait(self, request):
    self._note(request)
    self.streams += 1
    try:
      await asyncio.sleep(float(request.query_params['seconds']))
    finally:
      self.streams -= 1
    return responses.PlainTextResponse('waited')

  async def _patient(self, request):
    self._note(request)
    self.streams += 1
    while (await request.receive())['type'] != 'http.disconnect':
      pass
    self.streams -= 1
    return responses.Response()

  async def _fails(self, request):
    self._note(request)
    raise RuntimeError('planted')

  async def _page(self, request):
    policy = {'Content-Security-Policy': "default-src 'self'"}
    return responses.HTMLResponse('<p>', headers=policy)

  async def _client(self, request):
    host, scheme = request.client.host, request.url.scheme
    return responses.JSONResponse([host, scheme])


def connected(server, timeout=60.0):
  """Returns a socket that is connected to a server."""
  return socket.create_connection(('127.0.0.1', server.port), timeout)


def answer(client):
  """Returns the next answer's status and body; its length must be told."""
  received = b''
  while b'\r\n\r\n' not in received:
    received += (piece := client.recv(2**16))
    assert piece, received
  head, _, body = received.partition(b'\r\n\r\n')
  (length,) = re.findall(rb'\r\ncontent-length: ([0-9]+)', head)
  while len(body) < int(length):
    body += (piece := client.recv(2**16))
    assert piece, received
  return statuses(head)[0], body


def rest(client):
  """Returns all that comes until the server ends its half."""
  received = b''
  while piece := client.recv(2**16):
    received += piece
  return received


def exchange(server, data, ends=False):
  """Sends bytes; returns what comes until the server closes.

  Args:
    server: a `server.Server`.
    data: bytes, or several pieces of them.
    ends: whether to end our half then.
  """
  with connected(server) as client:
    for piece in [data] if isinstance(data, bytes) else data:
      client.sendall(piece)
    if ends:
      client.shutdown(socket.SHUT_WR)
    return rest(client)


def statuses(received):
  """Returns the status of each answer."""
  return [int(x) for x in _STATUS.findall(received)]


def until(is_true, seconds=60.0):
  """Waits until something is true; returns whether it became so."""
  end = time.monotonic() + seconds
  while not is_true():
    if time.monotonic() > end:
      return False
    time.sleep(0.005)
  return True

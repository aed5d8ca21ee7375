"""Clients on raw sockets, which leave when they like."""

import asyncio
import json
import socket

from kaiju_jax.serving.http import edge
from kaiju_jax.serving.routes import api
from tests.serving import leftovers
from tests.serving import running

SEED = 33  # Whose replies have 44 tokens at least.
HELLO = [{'role': 'user', 'content': 'Hello'}]
SEVERAL = '/v1/chat/completions', {'messages': HELLO, 'n': 3, 'seed': SEED}


def connect(server, path, body):
  """Returns a socket that has sent a request of ann's."""
  port, data = server.server.port, json.dumps(body).encode()
  client = socket.create_connection(('127.0.0.1', port), timeout=100)
  client.sendall(
    b'POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n'
    b'Authorization: Bearer %s\r\nContent-Type: application/json\r\n'
    b'Content-Length: %d\r\n\r\n%s'
    % (path.encode(), server.tokens['ann'].encode(), len(data), data)
  )
  return client


class Client:
  """One request to a server's application.

  Args:
    server: as `running` has it.
    path: of the endpoint.
    body: of the request.
    leaves: after how many messages of the answer the client leaves; None for
      never.
  """

  def __init__(self, server, path, body, leaves=None):
    self.sent = []
    self._leaves = leaves
    self._left = asyncio.Event()
    self._body = json.dumps(
      {'model': running.MODEL, 'max_tokens': 40} | body
    ).encode()
    token = server.tokens['ann'].encode()
    self._app = edge.Edge(api.app(server.context), lambda: False)
    self._scope = {
      'type': 'http',
      'asgi': {'spec_version': '2.3'},
      'method': 'POST',
      'path': path,
      'raw_path': path.encode(),
      'root_path': '',
      'query_string': b'',
      'http_version': '1.1',
      'client': ('127.0.0.1', 1),
      'headers': [
        (b'host', b'127.0.0.1'),
        (b'authorization', b'Bearer ' + token),
        (b'content-type', b'application/json'),
        (b'content-length', b'%d' % len(self._body)),
      ],
    }
    self._came = iter([self._body])
    if leaves == 0:
      self._left.set()

  @property
  def status(self):
    return self.sent[0]['status'] if self.sent else None

  @property
  def said(self):
    return b''.join(message.get('body', b'') for message in self.sent)

  async def ask(self):
    await self._app(self._scope, self._receive, self._send)

  async def _receive(self):
    for body in self._came:
      return {'type': 'http.request', 'body': body, 'more_body': False}
    await self._left.wait()
    return {'type': 'http.disconnect'}

  async def _send(self, message):
    self.sent.append(message)
    if len(self.sent) == self._leaves:
      self._left.set()


async def idle(server, seconds):
  """Returns once nothing is left, which must be so within some seconds."""
  async with asyncio.timeout(seconds):
    while leftovers.of_context(server.context):
      await asyncio.sleep(0.01)

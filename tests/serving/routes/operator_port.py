"""A server with the port of operators."""

import contextlib
import dataclasses
import urllib.error
import urllib.request

from kaiju_jax.app import operate
from kaiju_jax.serving.http import loopback
from tests.serving import running


@dataclasses.dataclass
class Operated:
  """A server, and its operator's port."""

  server: running.Server
  key: str

  @property
  def port(self) -> int:
    return self.server.server.metrics_port

  @property
  def operator(self) -> operate.Server:
    return operate.Server(self.port, self.key)

  def use(self, folder):
    return self.operator.ask('gate', {'folder': str(folder)})

  def served(self):
    return self.operator.ask()['gate']['served']

  def status(self, path, headers, body=b'{}'):
    """Returns the status of a raw request."""
    headers = {'Content-Type': 'application/json'} | headers
    request = urllib.request.Request(
      f'http://127.0.0.1:{self.port}{path}', body, headers
    )
    try:
      with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status
    except urllib.error.HTTPError as error:
      return error.code

  def count(self, operation, result):
    labels = {'operation': operation, 'result': result}
    return self.server.count('operations_total', **labels)


@contextlib.contextmanager
def operated(path, serve=running.server, **options):
  """Yields a server, as `serve` makes it of a folder, a key and options."""
  folder = path / 'server'
  folder.mkdir()
  key = loopback.load_key(folder / loopback.OPERATOR_FILE)
  with serve(folder, operator=key, **options) as server:
    yield Operated(server, key)

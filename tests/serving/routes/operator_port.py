"""A server with the port of operators."""

import dataclasses
import urllib.error
import urllib.request

from kaiju_jax.app import operate
from tests.serving import running
from tests.serving.http import exposed


@dataclasses.dataclass
class Operated:
  """A server, and its operator's port."""

  server: running.Server
  port: int
  key: str

  @property
  def operator(self) -> operate.Server:
    return operate.Server(self.port, self.key)

  def use(self, folder):
    return self.operator.ask('gate', {'folder': str(folder)})

  def served(self):
    return self.operator.ask()['gate']['served']

  def status(self, path, headers, body=b'{}'):
    """Returns the status of a raw request."""
    request = urllib.request.Request(
      f'http://127.0.0.1:{self.port}{path}', body, headers
    )
    try:
      with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status
    except urllib.error.HTTPError as error:
      return error.code

  def count(self, operation, result):
    told = exposed.samples(self.server.context.metrics)
    labels = ('operation', operation), ('result', result)
    return told['kaiju_operations_total', labels]

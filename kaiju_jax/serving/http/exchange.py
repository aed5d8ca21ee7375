"""One request and its answer: its name, and what is freed at its end.

`edge.Edge` makes one for each request and closes it once the application has
returned, whichever way. So whatever a handler takes for longer than its own
run, such as the slot of an answer that streams, is handed to `at_end`, and no
refusal, fault or client that leaves can miss its release.
"""

from collections.abc import Callable
import contextlib
import secrets

from starlette import requests
from starlette import types


class Exchange:
  """What belongs to one request.

  Attributes:
    id: random; the answer's header x-request-id.
  """

  def __init__(self):
    self.id = secrets.token_hex(8)
    self._ends = contextlib.ExitStack()

  def at_end(self, release: Callable[[], None]) -> None:
    """Has `release` called when the answer has ended; the last one first."""
    self._ends.callback(release)

  def close(self) -> None:
    """Calls what `at_end` was given."""
    self._ends.close()


def begin(scope: types.Scope) -> Exchange:
  """Returns the exchange of a request that has come."""
  made = Exchange()
  scope['state'] = {**scope.get('state', {}), 'exchange': made}
  return made


def of(request: requests.Request) -> Exchange:
  """Returns the exchange of a request."""
  return request.state.exchange

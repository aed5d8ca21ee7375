"""The account of one request: its id, its figures for the log, its resources.

`edge.Edge` makes an exchange for each request, and closes and logs it once the
application has returned or failed. A handler that takes a resource for longer
than its own run, such as the slot of a streaming answer, passes the function
that frees it to `at_end`. So a refusal, a fault or a lost client frees it, too.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import hashlib
import hmac
import secrets

from starlette import requests
from starlette import types


@dataclasses.dataclass
class Exchange:
  """The account of one request, without any text of users.

  Attributes:
    id: random; the answer's header x-request-id.
    owner: a pseudonym of the owner; None until the owner is known.
    prompt: tokens of the prompts; None where the model was not used.
    cached: those of them that were in the cache.
    completion: tokens that were drawn.
    reasons: why it ended: OpenAI's finish_reason of each choice, the stage that
      refused it, the code of an error.
  """

  id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
  owner: str | None = None
  prompt: int | None = None
  cached: int | None = None
  completion: int | None = None
  reasons: list[str] = dataclasses.field(default_factory=list)

  def __post_init__(self):
    self._ends = contextlib.ExitStack()

  def note_owner(self, owner: str, key: bytes) -> None:
    """Notes the owner's pseudonym.

    Args:
      owner: the owner's name.
      key: the server's secret, without which names cannot be tried.
    """
    data = b'request\0' + owner.encode('utf-8', 'replace')
    self.owner = hmac.new(key, data, hashlib.sha256).hexdigest()[:16]

  def note_end(self, reason: str) -> None:
    """Notes a reason; each once."""
    if reason not in self.reasons:
      self.reasons.append(reason)

  def at_end(self, release: Callable[[], None]) -> None:
    """Registers a function for `close` to call; the last one runs first."""
    self._ends.callback(release)

  def close(self) -> None:
    """Calls the functions that `at_end` registered."""
    self._ends.close()


def open_exchange(scope: types.Scope) -> Exchange:
  """Returns the exchange of a request that has come."""
  made = Exchange()
  scope['state'] = {**scope.get('state', {}), 'exchange': made}
  return made


def find(request: requests.Request) -> Exchange:
  """Returns the exchange of a request."""
  return request.state.exchange


def blame(request: requests.Request, reason: str) -> None:
  """Notes the error that ended a request, unless a reason is known.

  Does nothing in an application without an `edge.Edge`.
  """
  found = getattr(request.state, 'exchange', None)
  if found is not None and not found.reasons:
    found.note_end(reason)


def route(scope: types.Scope) -> str:
  """Returns the template of a request's address, which contains no ids."""
  return getattr(scope.get('route'), 'path', 'none')


def method(scope: types.Scope) -> str:
  """Returns a request's method, or 'other': a client may send any word."""
  return scope['method'] if scope['method'] in _METHODS else 'other'


_METHODS = ('GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS')

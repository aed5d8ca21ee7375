"""One request and its answer: its name, its account, what is freed at its end.

`edge.Edge` makes one for each request, closes it once the application has
returned, whichever way, and logs it. So whatever a handler takes for longer
than its own run, such as the slot of an answer that streams, is handed to
`at_end`, and no refusal, fault or client that leaves can miss its release.
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
  """What belongs to one request. None of it is text that somebody wrote.

  Attributes:
    id: random; the answer's header x-request-id.
    owner: a pseudonym of who asks; None before that is known.
    prompt: tokens of the prompts; None where nothing was asked of a model.
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

  def asked_by(self, owner: str, key: bytes) -> None:
    """Notes who asks.

    Args:
      owner: whose token it was.
      key: the server's secret: without it nobody can try names.
    """
    data = b'request\0' + owner.encode('utf-8', 'replace')
    self.owner = hmac.new(key, data, hashlib.sha256).hexdigest()[:16]

  def note_end(self, reason: str) -> None:
    """Notes a reason; each once."""
    if reason not in self.reasons:
      self.reasons.append(reason)

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


def find(request: requests.Request) -> Exchange:
  """Returns the exchange of a request."""
  return request.state.exchange


def blame(request: requests.Request, reason: str) -> None:
  """Notes the error that ended a request, unless a reason is known.

  An application without an edge around it has nobody to tell.
  """
  found = getattr(request.state, 'exchange', None)
  if found is not None and not found.reasons:
    found.note_end(reason)


def route(scope: types.Scope) -> str:
  """Returns the template of a request's address, in which no id stands."""
  return getattr(scope.get('route'), 'path', 'none')


def method(scope: types.Scope) -> str:
  """Returns a request's method, or 'other': a client may send any word."""
  return scope['method'] if scope['method'] in _METHODS else 'other'


_METHODS = ('GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS')

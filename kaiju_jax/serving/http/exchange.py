"""The account of one request: its id, its line in the log, its resources.

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
import logging
import secrets
from typing import Any

from starlette import requests
from starlette import types

REQUESTS = logging.getLogger('kaiju_jax.requests')


@dataclasses.dataclass
class Exchange:
  """The account of one request, without any text of users."""

  # Random; the answer's header x-request-id.
  id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
  # A pseudonym of the owner; None until the owner is known.
  owner: str | None = None
  # Tokens of the prompts, None where the model was not used; those of them
  # that were in the cache; those that were drawn.
  prompt: int | None = None
  cached: int | None = None
  completion: int | None = None
  # Why it ended: OpenAI's finish_reason of each choice, the stage that refused
  # it, the code of an error.
  reasons: list[str] = dataclasses.field(default_factory=list)

  def __post_init__(self) -> None:
    self._ends = contextlib.ExitStack()

  def note_owner(self, owner: str, key: bytes) -> None:
    """Notes the owner's pseudonym.

    Args:
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

  def log(
    self,
    scope: types.Scope,
    status: int | None,
    first_byte: float | None,
    seconds: float,
  ) -> None:
    """Logs the request, which has ended.

    Args:
      status: the answer's status; None without an answer.
      first_byte: seconds until the answer's body began; None without one.
      seconds: seconds until the answer's end.
    """
    log_line(
      {
        'request': self.id,
        'owner': self.owner,
        'method': method(scope),
        'route': route(scope),
        'status': status,
        'first_byte': None if first_byte is None else round(first_byte, 4),
        'seconds': round(seconds, 4),
        'prompt': self.prompt,
        'cached': self.cached,
        'completion': self.completion,
        'reason': ','.join(self.reasons) or None,
      }
    )


def log_line(fields: dict[str, Any]) -> None:
  """Logs a line of plain data, which `log.py` formats."""
  if REQUESTS.isEnabledFor(logging.INFO):
    REQUESTS.info('%s', fields['request'], extra={'fields': fields})


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

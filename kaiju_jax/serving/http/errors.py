"""Errors that clients see, in OpenAI's format:

    {"error": {"message": …, "type": …, "param": …, "code": …}}

A handler raises an `ApiError`; `HANDLERS` answers it, and every other exception
of a handler. If the client did not cause the error, the answer has no details;
the log has them. In a stream that has begun, an error is an event, and no
`[DONE]` follows it.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
import json
import math
from typing import Any

from starlette import exceptions
from starlette import requests
from starlette import responses

from kaiju_jax.serving.http import exchange

# Messages quote what a client sent; this bounds an answer's size.
_LONGEST = 1000
INVALID = 'invalid_request_error'
SERVER = 'server_error'


class ApiError(Exception):
  """A failure that is reported to the client."""

  def __init__(
    self,
    status: int,
    message: str,
    type: str = INVALID,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
  ):
    super().__init__(message)
    self.status = status  # The answer's HTTP status.
    self.message = message  # What is wrong and what would be right.
    self.type = type  # OpenAI's kind of error.
    self.param = param  # The request's field that is wrong; None for none.
    self.code = code  # A constant that programs compare; None for none.
    self.headers: dict[str, str] = dict(
      headers or {}
    )  # Additional headers of the answer.


def invalid(
  message: str, param: str | None = None, code: str | None = None
) -> ApiError:
  """Returns a 400: the request is wrong; `param` names the field."""
  return ApiError(400, message, INVALID, param, code)


def too_long(message: str, param: str, context: int | None = None) -> ApiError:
  """Returns a 400: a text is too long for the model or for its field.

  Args:
    param: the request's field.
    context: the most tokens of the model's prompt and reply, where they are
      exceeded. Clients look for OpenAI's sentence about them.
  """
  if context is not None:
    message += f" This model's maximum context length is {context} tokens."
  return invalid(message, param, 'context_length_exceeded')


def unauthorized(message: str) -> ApiError:
  """Returns a 401: there is no token, or an invalid one."""
  challenge = {'WWW-Authenticate': 'Bearer'}
  return ApiError(401, message, INVALID, None, 'invalid_api_key', challenge)


def forbidden(message: str, code: str = 'forbidden') -> ApiError:
  """Returns a 403: the caller may not do this."""
  return ApiError(403, message, 'permission_error', None, code)


def missing(message: str, param: str | None = None) -> ApiError:
  """Returns a 404: it does not exist, or belongs to another owner."""
  return ApiError(404, message, INVALID, param, 'not_found')


def conflict(message: str, param: str | None = None) -> ApiError:
  """Returns a 409: something changed meanwhile."""
  return ApiError(409, message, INVALID, param, 'conflict')


def too_large(message: str) -> ApiError:
  """Returns a 413: the body is larger than allowed."""
  return ApiError(413, message, INVALID, None, 'request_too_large')


def unsupported_type(message: str) -> ApiError:
  """Returns a 415: the body has a type that the endpoint does not take."""
  return ApiError(415, message, INVALID, None, 'unsupported_media_type')


def rate_limited(message: str, seconds: float) -> ApiError:
  """Returns a 429: the owner's limit is reached for `seconds`."""
  return ApiError(
    429,
    message,
    'rate_limit_error',
    None,
    'rate_limit_exceeded',
    retry_after(seconds),
  )


def busy(message: str, seconds: float) -> ApiError:
  """Returns a 429: the server is too busy; retry after `seconds`."""
  return ApiError(
    429, message, SERVER, None, 'server_busy', retry_after(seconds)
  )


def internal() -> ApiError:
  """Returns a 500: the server failed; only the log says why."""
  return ApiError(
    500, 'The server failed to answer this request.', SERVER, None, 'internal'
  )


def unavailable(message: str, seconds: float | None = None) -> ApiError:
  """Returns a 503: the server cannot answer now."""
  headers = {} if seconds is None else retry_after(seconds)
  return ApiError(503, message, SERVER, None, 'unavailable', headers)


def retry_after(seconds: float) -> dict[str, str]:
  """Returns the header that says when to ask again, in whole seconds."""
  return {'Retry-After': str(max(1, math.ceil(seconds)))}


def data(error: ApiError) -> dict[str, Any]:
  """Returns an error as plain data."""
  message = error.message
  if len(message) > _LONGEST:
    message = f'{message[: _LONGEST - 1]}…'
  return {
    'error': {
      'message': message,
      'type': error.type,
      'param': error.param,
      'code': error.code,
    }
  }


def body(error: ApiError) -> bytes:
  """Returns an error as JSON in ASCII.

  A message may quote what UTF-8 cannot hold, such as a lone surrogate.
  """
  return json.dumps(data(error)).encode('ascii')


def event(error: ApiError) -> bytes:
  """Returns an error as the last event of a stream."""
  return b'data: %s\n\n' % body(error)


def response(error: ApiError) -> responses.Response:
  """Returns an error as an answer."""
  return responses.Response(
    body(error), error.status, error.headers, 'application/json'
  )


def describe(error: Exception) -> ApiError:
  """Returns the `ApiError` that reports an exception to the client."""
  if isinstance(error, ApiError):
    return error
  if isinstance(error, exceptions.HTTPException):
    return _of_http(error)
  return internal()


_CODES = {404: 'not_found', 405: 'method_not_allowed'}
_MESSAGES = {
  404: 'There is no such address.',
  405: 'This address does not take this method.',
}


def _of_http(error: exceptions.HTTPException) -> ApiError:
  """Converts an exception of starlette's, such as for an unknown address."""
  status = error.status_code
  return ApiError(
    status,
    _MESSAGES.get(status, error.detail),
    INVALID if status < 500 else SERVER,
    None,
    _CODES.get(status),
    error.headers,
  )


async def _answer(
  request: requests.Request, error: Exception
) -> responses.Response:
  reported = describe(error)
  exchange.blame(request, reported.code or reported.type)
  return response(reported)


async def _answer_nobody(
  request: requests.Request, error: Exception
) -> responses.Response:
  """Gives an answer that nobody reads, because the client has left."""
  exchange.blame(request, 'disconnected')
  return response(invalid('The client left before it was answered.'))


# The argument `exception_handlers` of a starlette application. The one for
# Exception answers; starlette raises it again, so that the server logs it.
HANDLERS: dict[
  Any,
  Callable[[requests.Request, Exception], Awaitable[responses.Response]],
] = {
  ApiError: _answer,
  exceptions.HTTPException: _answer,
  requests.ClientDisconnect: _answer_nobody,
  Exception: _answer,
}

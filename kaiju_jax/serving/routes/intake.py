"""Intake: who asks, and what the body of the request says."""

from typing import TypeVar

from starlette import requests

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import parsing

_Kind = TypeVar('_Kind', bound=parsing.Fields)


async def authorize(
  request: requests.Request,
) -> tuple[context_lib.Context, auth.Caller]:
  """Returns the server's parts and the caller, and counts the request.

  What the request's task runs in threads has the caller's turns from now on.

  Raises:
    errors.ApiError: 401 or 403 without access; 429 for too many requests; 503
      while the server stops.
  """
  context: context_lib.Context = request.app.state.context
  found = context.access.caller(request)
  exchange_lib.find(request).note_owner(found.owner, context.secret)
  fair_threads.OWNER.set(found.owner)
  context.limits.request(found.owner, found.rate)
  if not context.is_ready:
    raise errors.unavailable('the server is being stopped.')
  return context, found


async def body(
  request: requests.Request,
  context: context_lib.Context,
  who: auth.Caller,
  most: int = bodies.MOST,
) -> bytes:
  """Reads a request's body, and counts its bytes against the owner's limits.

  Args:
    request: a request whose body has not been read.
    context: the server's parts.
    who: the caller.
    most: the largest size, in bytes.

  Raises:
    errors.ApiError: 413 for a larger body; 429 when the owner's limits are
      used up.
  """
  found = await bodies.read(request, most)
  context.limits.text(who.owner, len(found), who.rate)
  return found


async def parse_fields(
  request: requests.Request,
  context: context_lib.Context,
  who: auth.Caller,
  kind: type[_Kind],
) -> _Kind:
  """Reads a request's body as JSON, and returns its checked fields.

  Args:
    request: a request whose body has not been read.
    context: the server's parts.
    who: the caller.
    kind: a class of `fields.py`.

  Raises:
    errors.ApiError: 400, 413, 415 or 429.
  """
  bodies.media_type(request, [bodies.JSON])
  found = await body(request, context, who)
  return await context.run_aside(
    len(found), lambda: parsing.parse(kind, bodies.parse(found, kind.VALUES))
  )

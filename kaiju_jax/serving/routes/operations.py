"""Operators' commands, on the port of the metrics, for this machine alone.

    GET  /operations                 what is served
    POST /operations/gate            {"folder": …}: a gate and its thresholds
    POST /operations/gate/rollback   {"served": …}: those before them

Every program of this machine reaches that port, so that a command takes the
operator's key, which only the user who started the server can read
(`local_key.py`). A request that is open keeps what it began with. Commands run
one after another; each is a line of the log and is counted, refused ones too.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
import time
from typing import Any

from starlette import requests
from starlette import responses
from starlette import routing
from starlette import types

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import log
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.safety import moderation

_MOST = 2**16  # Bytes of a command.

_Command = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Operations:
  """The operators' commands of one server.

  Args:
    context: the server's parts.
    key: the operator's.

  Raises:
    ValueError: the key has not the form of one.
  """

  def __init__(self, context: context_lib.Context, key: str):
    self._context = context
    self._access = auth.Access(None, key=key)
    self._running = asyncio.Lock()
    self._commands: dict[str, tuple[tuple[str, ...], _Command]] = {
      'gate': (('folder',), self._use_gate),
      'gate/rollback': (('served',), self._roll_gate_back),
    }
    for name in self._commands:
      for result in 'done', 'refused', 'failed':
        context.metrics.operations.labels(name, result)

  def routes(self) -> list[routing.Route]:
    """Returns the routes of all commands."""
    return [
      routing.Route('/operations', self.show, methods=['GET']),
      *(
        routing.Route(f'/operations/{name}', self.command, methods=['POST'])
        for name in self._commands
      ),
    ]

  async def show(self, request: requests.Request) -> responses.Response:
    """GET /operations: describes what is served."""
    self._access.caller(request)
    return responses.JSONResponse(
      {'object': 'operations', 'gate': self._describe_gate()}
    )

  async def command(self, request: requests.Request) -> responses.Response:
    """POST /operations/NAME: runs a command, and answers what it changed."""
    name = request.scope['route'].path.removeprefix('/operations/')
    fields, run = self._commands[name]
    line = {'request': exchange_lib.find(request).id, 'operation': name}
    begun, result = time.perf_counter(), 'failed'
    try:
      self._access.caller(request)
      bodies.media_type(request, [bodies.JSON])
      body = _check(bodies.parse(await bodies.read(request, _MOST)), fields)
      async with self._running:
        told = await run(body)
      line |= told
      result = 'done'
    except errors.ApiError as error:
      line['message'] = error.message
      result = 'refused'
      raise
    finally:
      seconds = round(time.perf_counter() - begun, 4)
      self._context.metrics.operations.labels(name, result).inc()
      log.operation({**line, 'result': result, 'seconds': seconds})
    return responses.JSONResponse({'object': 'operation', **told})

  async def _use_gate(self, body: Mapping[str, Any]) -> dict[str, Any]:
    moderator = self._context.moderator
    try:
      await asyncio.to_thread(moderator.use, body['folder'], may_close=False)
    except (OSError, ValueError) as error:
      raise errors.invalid(str(error), 'folder') from error
    return self._describe_gate()

  async def _roll_gate_back(self, body: Mapping[str, Any]) -> dict[str, Any]:
    try:
      self._context.moderator.rollback(body['served'])
    except RuntimeError as error:
      raise errors.conflict(str(error), 'served') from error
    return self._describe_gate()

  def _describe_gate(self) -> dict[str, Any]:
    moderator = self._context.moderator
    return {
      'mode': moderator.mode,
      'served': _describe(moderator.version),
      'before': _describe(moderator.before),
    }


def app(context: context_lib.Context, key: str) -> types.ASGIApp:
  """Returns the application of the metrics' port, with operators' commands.

  Raises:
    ValueError: see `Operations`.
  """
  return context.metrics.app(*Operations(context, key).routes())


def _describe(version: moderation.Version | None) -> dict[str, str] | None:
  """Returns a version's names, which tell thresholds apart, too."""
  if version is None:
    return None
  return {
    'id': version.id,
    'folder': version.folder,
    'gate': version.gate.version,
  }


def _check(body: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
  """Returns a body that has these fields, each a string, and no others."""
  for name in [*fields, *body]:
    if name not in fields:
      raise errors.invalid(f'{name:.80}: must be {", ".join(fields)}.', name)
    value = body.get(name)
    if not isinstance(value, str) or not value or '\0' in value:
      raise errors.invalid(
        f'{name}={value!r:.80}: must be a string that is not empty.', name
      )
  return body

"""Operators' commands, on the port of the metrics, for this machine alone.

    GET  /operations                 what is served, and by which replicas
    POST /operations/gate            a gate and its thresholds, of a folder
    POST /operations/gate/rollback   those before them
    POST /operations/rollout         warms replicas, and opens them by steps
    POST /operations/rollback        takes their share back, at once
    POST /operations/share           sets it
    POST /operations/drain           takes a replica's conversations off it
    POST /operations/remove          takes a drained or lost replica out

`commands.py` has their fields. Every program of this machine reaches that port,
so that a command takes the operator's key, which only the user who started the
server can read (`local_key.py`). A request that is open keeps what it began
with. Each command is a line of the log and is counted, refused ones too.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
import time
from typing import Any
from typing import NamedTuple

from starlette import requests
from starlette import responses
from starlette import routing
from starlette import types

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import log
from kaiju_jax.serving.routes import commands
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import parsing
from kaiju_jax.serving.routes import prefixes
from kaiju_jax.serving.routing import rollout as rollout_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.routing import router as router_lib
from kaiju_jax.serving.safety import moderation

_MOST = 2**16  # Bytes of a command.


class _Command(NamedTuple):
  """A command: its fields, and what it does."""

  fields: type[parsing.Fields]
  run: Callable[[Any], Awaitable[dict[str, Any]]]


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
    self._commands = {
      'gate': _Command(commands.Gate, self._use_gate),
      'gate/rollback': _Command(commands.GateRollback, self._roll_gate_back),
      'rollout': _Command(commands.Rollout, self._roll_out),
      'rollback': _Command(commands.Which, self._roll_back),
      'share': _Command(commands.Share, self._set_share),
      'drain': _Command(commands.Drain, self._drain),
      'remove': _Command(commands.Which, self._remove),
    }
    for name in self._commands:
      for result in 'done', 'refused', 'failed':
        context.metrics.operations.labels(name, result)
    self._rollouts = rollouts_of(context)
    self._router = None if self._rollouts is None else context.engines

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
    await self._ask_replicas()
    return responses.JSONResponse(
      {
        'object': 'operations',
        'gate': self._describe_gate(),
        **self._describe_fleet(),
      }
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
      body = bodies.parse(await bodies.read(request, _MOST))
      told = await run(parsing.parse(fields, body))
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

  async def _use_gate(self, body: commands.Gate) -> dict[str, Any]:
    moderator = self._context.moderator
    try:
      await asyncio.to_thread(moderator.use, body.folder, may_close=False)
    except (OSError, ValueError) as error:
      raise errors.invalid(str(error), 'folder') from error
    return self._describe_gate()

  async def _roll_gate_back(
    self, body: commands.GateRollback
  ) -> dict[str, Any]:
    try:
      self._context.moderator.rollback(body.served)
    except RuntimeError as error:
      raise errors.conflict(str(error), 'served') from error
    return self._describe_gate()

  async def _roll_out(self, body: commands.Rollout) -> dict[str, Any]:
    plan = rollout_lib.Plan(hold=body.hold, requests=body.requests)
    return self._change(
      lambda rollouts: rollouts.start(body.of, plan, body.replaces)
    )

  async def _roll_back(self, body: commands.Which) -> dict[str, Any]:
    names = self._change(lambda rollouts: rollouts.roll_back(body.of))
    return {'of': body.of, 'changed': names, **self._describe_fleet()}

  async def _set_share(self, body: commands.Share) -> dict[str, Any]:
    names = self._change(
      lambda rollouts: rollouts.set_share(body.of, body.share)
    )
    return {'of': body.of, 'changed': names, **self._describe_fleet()}

  async def _drain(self, body: commands.Drain) -> dict[str, Any]:
    (name,) = self._change(lambda rollouts: rollouts.close(body.of))
    moved = await self._router.drain_one(name, body.seconds)
    await self._ask_replicas()
    return {'of': name, 'moved': moved, **self._describe_fleet()}

  async def _remove(self, body: commands.Which) -> dict[str, Any]:
    replica = self._change(lambda rollouts: rollouts.remove(body.of))
    await asyncio.to_thread(replica.stop)
    return {'of': body.of, **self._describe_fleet()}

  def _change(self, change: Callable[[rollouts_lib.Rollouts], Any]) -> Any:
    """Changes the fleet.

    Raises:
      errors.ApiError: 409; there is one engine alone, or it is refused.
    """
    if self._rollouts is None:
      raise errors.conflict('of: this server has one engine, and no replicas.')
    try:
      return change(self._rollouts)
    except ValueError as error:
      raise errors.conflict(str(error), 'of') from error

  async def _ask_replicas(self) -> None:
    """Learns the replicas' loads, which age where no requests come."""
    if self._router is not None:
      await self._router.refresh()

  def _describe_gate(self) -> dict[str, Any]:
    moderator = self._context.moderator
    return {
      'mode': moderator.mode,
      'served': _describe(moderator.version),
      'before': _describe(moderator.before),
    }

  def _describe_fleet(self) -> Mapping[str, Any]:
    if self._router is None:
      return {'replicas': [], 'rollouts': []}
    return {
      'replicas': [one._asdict() for one in self._router.describe()],
      'rollouts': self._rollouts.describe(),
    }


def rollouts_of(
  context: context_lib.Context,
) -> rollouts_lib.Rollouts | None:
  """Returns the rollouts of a server; None for one without a router."""
  router = context.engines
  if context.rollouts is None and isinstance(router, router_lib.Router):
    context.rollouts = rollouts_lib.Rollouts(
      router,
      lambda: prefixes.list_public(context.store, context.model.digest),
      lambda state: log.operation({'operation': 'step', **state}),
    )
  return context.rollouts


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

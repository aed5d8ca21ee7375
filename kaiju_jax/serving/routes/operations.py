"""Operators' commands, on the port of the metrics, for this machine alone.

    GET  /operations                 what is served, and by which replicas
    POST /operations/gate            a gate and its thresholds, of a folder
    POST /operations/gate/rollback   those before them
    POST /operations/rollout         warms replicas, and opens them by steps
    POST /operations/rollback        takes their share back, at once
    POST /operations/share           sets it
    POST /operations/drain           takes a replica's conversations off it
    POST /operations/remove          takes a drained or lost replica out

Every program of this machine reaches that port, so that a command takes the
operator's key, which only the user who started the server can read
(`loopback.py`). A request that is open keeps what it began with. Each command
is a line of the log and is counted, refused ones too.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import time
from typing import Annotated
from typing import Any
from typing import NamedTuple

import pydantic
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
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routing import rollout as rollout_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.routing import router as router_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import sharing

_MOST = 2**16  # Bytes of a command.
# Characters of one query for public prefixes, and of all; our guess.
_PREFIX_PAGE, _PREFIXES = 1000, 100_000
_Name = Annotated[
  str, pydantic.StringConstraints(min_length=1, max_length=4096)
]
_Share = Annotated[float, pydantic.Field(ge=0, le=1)]
_Seconds = Annotated[float, pydantic.Field(ge=0, le=24 * 3600)]
# A drain ends within two minutes (source 003), with what is moved afterwards.
_DRAINS = 100.0


class _UseGate(parse.Fields):
  """Serves a folder's gate and thresholds."""

  folder: Annotated[_Name, pydantic.StringConstraints(pattern=r'^[^\x00]+$')]


class _RollGateBack(parse.Fields):
  """Serves the gate before; `served` is the id that is to go."""

  served: _Name


class _Which(parse.Fields):
  """Names a replica, or the first digits of a build."""

  of: _Name


class _SetShare(_Which):
  """Sets to which part of new conversations replicas are open."""

  share: _Share


class _DrainOne(_Which):
  """Takes a replica's conversations off it; `seconds` for running replies."""

  seconds: Annotated[float, pydantic.Field(ge=0, le=_DRAINS)] = 60.0


class _RollOut(_Which):
  """Warms replicas, and opens them by steps; `hold` seconds each.

  With `replaces` the others close to new conversations at the end. `requests`
  is how many each step is judged by.
  """

  hold: _Seconds = rollout_lib.Plan.hold
  requests: Annotated[int, pydantic.Field(ge=0)] = rollout_lib.Plan.requests
  replaces: bool = False


class _Command(NamedTuple):
  """A command: its fields, and what it does."""

  fields: type[parse.Fields]
  run: Callable[[Any], Awaitable[dict[str, Any]]]


class Operations:
  """The operators' commands of one server.

  Args:
    key: the operator's.

  Raises:
    ValueError: the key has not the form of one.
  """

  def __init__(self, context: context_lib.Context, key: str):
    self._context = context
    self._access = auth.Access(None, key=key)
    self._commands = {
      'gate': _Command(_UseGate, self._use_gate),
      'gate/rollback': _Command(_RollGateBack, self._roll_gate_back),
      'rollout': _Command(_RollOut, self._roll_out),
      'rollback': _Command(_Which, self._roll_back),
      'share': _Command(_SetShare, self._set_share),
      'drain': _Command(_DrainOne, self._drain),
      'remove': _Command(_Which, self._remove),
    }
    for name in self._commands:
      for result in 'done', 'refused', 'failed':
        context.metrics.operations.labels(name, result)
    self._rollouts = rollouts_of(context)
    self._router = None if self._rollouts is None else context.engines

  def routes(self) -> list[routing.Route]:
    """Returns the routes of all"""
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
      changed = await run(parse.check_fields(fields, body))
      line |= changed
      result = 'done'
    except errors.ApiError as error:
      line['message'] = error.message
      result = 'refused'
      raise
    finally:
      seconds = round(time.perf_counter() - begun, 4)
      self._context.metrics.operations.labels(name, result).inc()
      log.operation({**line, 'result': result, 'seconds': seconds})
    return responses.JSONResponse({'object': 'operation', **changed})

  async def _use_gate(self, body: _UseGate) -> dict[str, Any]:
    moderator = self._context.moderator
    try:
      await asyncio.to_thread(moderator.use, body.folder, may_close=False)
    except (OSError, ValueError) as error:
      raise errors.invalid(str(error), 'folder') from error
    return self._describe_gate()

  async def _roll_gate_back(self, body: _RollGateBack) -> dict[str, Any]:
    try:
      self._context.moderator.rollback(body.served)
    except RuntimeError as error:
      raise errors.conflict(str(error), 'served') from error
    return self._describe_gate()

  async def _roll_out(self, body: _RollOut) -> dict[str, Any]:
    plan = rollout_lib.Plan(hold=body.hold, requests=body.requests)
    return self._change(
      lambda rollouts: rollouts.start(body.of, plan, body.replaces)
    )

  async def _roll_back(self, body: _Which) -> dict[str, Any]:
    names = self._change(lambda rollouts: rollouts.roll_back(body.of))
    return {'of': body.of, 'changed': names, **self._describe_fleet()}

  async def _set_share(self, body: _SetShare) -> dict[str, Any]:
    names = self._change(
      lambda rollouts: rollouts.set_share(body.of, body.share)
    )
    return {'of': body.of, 'changed': names, **self._describe_fleet()}

  async def _drain(self, body: _DrainOne) -> dict[str, Any]:
    (name,) = self._change(lambda rollouts: rollouts.close(body.of))
    moved = await self._router.drain_one(name, body.seconds)
    await self._ask_replicas()
    return {'of': name, 'moved': moved, **self._describe_fleet()}

  async def _remove(self, body: _Which) -> dict[str, Any]:
    replica = self._change(lambda rollouts: rollouts.remove(body.of))
    await asyncio.to_thread(replica.stop)
    return {'of': body.of, **self._describe_fleet()}

  def _change(self, change: Callable[[rollouts_lib.Rollouts], Any]) -> Any:
    """Changes the fleet."""
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
      lambda: list_public(context.store.blocking, context.model.digest),
      lambda state: log.operation({'operation': 'step', **state}),
    )
  return context.rollouts


def app(context: context_lib.Context, key: str) -> types.ASGIApp:
  """Returns the application of the metrics' port, with commands.

  Raises:
    ValueError: see `Operations`.
  """
  return context.metrics.app(*Operations(context, key).routes())


def _describe(version: moderation.Version | None) -> dict[str, str] | None:
  """Returns a version's names; its id covers the thresholds, too."""
  if version is None:
    return None
  return {
    'id': version.id,
    'folder': version.folder,
    'gate': version.gate.version,
  }


def list_public(
  store: conversing.Store, tokenizer: str
) -> list[rollouts_lib.Prefix]:
  """Returns the live prefixes of public and built-in characters.

  Args:
    store: blocks, so that an event loop calls this in a thread.
    tokenizer: digest of the model's; prefixes of another one are left out.

  Raises:
    characters.Unavailable: the store cannot be reached.
  """
  found = []
  for one in _list_characters(store):
    # It may have been removed, or made private, since it was listed.
    with contextlib.suppress(characters.Missing):
      version = store.live(characters.BUILT_IN, one.id)
      tree = sharing.find_tree(store, characters.BUILT_IN, version)
      # It may have been hidden since.
      is_everybodys = sharing.is_public(store, tree)
      if is_everybodys and version.tokenizer == tokenizer:
        found.append(rollouts_lib.Prefix(tree.salt, version.tokens))
  return found


def _list_characters(store: conversing.Store) -> Iterator[characters.Character]:
  """Yields the characters that nobody in particular sees."""
  after, count = '', 0
  while True:
    page = store.characters(characters.BUILT_IN, _PREFIX_PAGE, after)
    yield from page
    count += len(page)
    if len(page) < _PREFIX_PAGE or count >= _PREFIXES:
      return
    after = characters.cursor(page[-1])

"""Sends operators' commands to a server of this machine."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import operator
import pathlib
from typing import Annotated
from typing import Any
import urllib.error
import urllib.request

from absl import app

from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.serving.http import loopback

# Seconds: a drain waits for replies.
_TIMEOUT = 300.0


class Refused(RuntimeError):
  """The server refused a command; says why."""


def load_key(folder: str) -> str:
  """Returns the operator's key of a server.

  Raises:
    FileNotFoundError: the folder is no server's that takes commands.
    OSError: the key cannot be read.
    ValueError: others may read it, or the file is damaged.
  """
  path = pathlib.Path(folder) / loopback.OPERATOR_FILE
  if not path.is_file():
    raise FileNotFoundError(
      f'{path}: no key; a server draws it at its first start with'
      ' --metrics_port. Name its folder (--folder).'
    )
  return loopback.load_key(path)


CHANGES = (
  *('safety', 'safety_rollback', 'rollout', 'rollback', 'share', 'drain'),
  'remove',
)


class Server:
  """A server on this machine, by the port of its metrics."""

  def __init__(self, port: int, key: str):
    self.port: int = port
    self._key = key

  def ask(
    self, name: str = '', body: Mapping[str, Any] | None = None
  ) -> dict[str, Any]:
    """Returns the answer to a command of `routes/operations.py`.

    Args:
      name: the command's; by default, what is served.
      body: the command's fields.

    Raises:
      Refused: the server refused, or did not answer.
    """
    request = urllib.request.Request(
      f'http://127.0.0.1:{self.port}/operations{"/" if name else ""}{name}',
      None if body is None else json.dumps(body).encode(),
      {
        'Content-Type': 'application/json',
        'Authorization': f'Bearer {self._key}',
      },
    )
    # A proxy, which the environment may name, would see the key.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
      with opener.open(request, timeout=_TIMEOUT) as answer:
        return json.load(answer)
    except urllib.error.HTTPError as error:
      raise Refused(f'--port={self.port}: {_message(error)}') from error
    except (OSError, ValueError) as error:
      raise Refused(
        f'--port={self.port}: no answer ({error}); must be the --metrics_port'
        ' of a server on this machine.'
      ) from error

  def roll_gate_back(self) -> dict[str, Any]:
    """Serves the gate before the one that is served now; raises `Refused`."""
    served = self.ask()['gate']['served']
    if served is None:
      raise Refused(f'--port={self.port}: it is unmoderated, without a gate.')
    return self.ask('gate/rollback', {'served': served['id']})


def change(servers: Sequence[Server], command: Callable[[Server], Any]) -> None:
  """Changes servers one after the other.

  Raises:
    Refused: one has refused; names those that have changed already.
  """
  done: list[str] = []
  for server in servers:
    try:
      command(server)
    except Refused as error:
      before = f' Changed already: --port={",".join(done)}.' if done else ''
      raise Refused(f'{error}{before}') from error
    done.append(str(server.port))


def describe(state: Mapping[str, Any]) -> list[Any]:
  """Returns lines and a table, for a report, about what is served."""
  gate = state['gate']
  lines = [f'gate    {gate["mode"]}']
  for name in 'served', 'before':
    if gate[name] is not None:
      lines.append(f'{name:7} {gate[name]["id"]}  {gate[name]["folder"]}')
  rows = [
    [
      one['name'],
      one['build'][:12],
      _condition(one),
      f'{one["share"]:g}',
      f'{one["load"]:,.0f}',
      str(one['running']),
    ]
    for one in state['replicas']
  ]
  if rows:
    head = ['replica', 'build', 'state', 'share', 'load', 'running']
    lines.append(report.Table(rows, head))
  for one in state['rollouts']:
    why = f': {one["reason"]}' if one['reason'] else ''
    lines.append(
      f'rollout of {one["of"]}: {one["state"]}, share {one["share"]:g},'
      f' {one["prefixes"]} prefixes warmed{why}'
    )
  return lines


def _condition(replica: Mapping[str, Any]) -> str:
  if not replica['is_alive']:
    return 'lost'
  return 'draining' if replica['is_closing'] else 'serves'


def _message(error: urllib.error.HTTPError) -> str:
  try:
    return json.load(error)['error']['message']
  except (KeyError, TypeError, ValueError):
    return f'status {error.code}; must be the --metrics_port of a server.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
  """What is changed in which server; at most one change at a time."""

  # The server's --metrics_port; of several ingresses, all of them.
  port: Annotated[tuple[int, ...], flags.Numbers(below=65_536)]
  # The server's folder, with its operator's key.
  folder: str = 'runs/server'
  # Serve the gate and the certified thresholds of this folder.
  safety: str = ''
  # Serve the gate and the thresholds before those.
  safety_rollback: bool = False
  # Warm a replica, or a build, and open it to 10, 50 and 100 % of its share of
  # new conversations.
  rollout: str = ''
  # Seconds of each of --rollout's steps.
  hold: Annotated[float, flags.Bounds(0.0)] = 60.0
  # Fewest requests by which each of --rollout's steps is judged; another build
  # should have 50 or more.
  requests: flags.NonNegative = 0
  # Close the other replicas at the end of --rollout.
  replaces: bool = False
  # Take a replica's share, or a build's, back at once.
  rollback: str = ''
  # NAME:SHARE, to which part of new conversations it is open.
  share: str = ''
  # Take all of a replica's conversations off it.
  drain: str = ''
  # Of running replies at a --drain, then they move.
  seconds: Annotated[float, flags.Bounds(0.0, 100.0)] = 60.0
  # Take a drained or lost replica out, and stop it.
  remove: str = ''

  def __post_init__(self) -> None:
    if len(self.changes) > 1:
      names = ', '.join(f'--{name}' for name in self.changes)
      raise app.UsageError(f'{names}: must be one at a time.')

  @property
  def changes(self) -> list[str]:
    """The names of the changes that are wanted."""
    return [name for name in CHANGES if getattr(self, name)]

  def command_of(self, name: str) -> tuple[str, dict[str, Any]]:
    """Returns a change's command for the server, and the command's fields."""
    if name == 'safety':
      # The server has a working folder of its own.
      return 'gate', {'folder': str(pathlib.Path(self.safety).resolve())}
    of = getattr(self, name)
    if name == 'share':
      of, _, share = of.rpartition(':')
      if not of:
        raise ValueError(
          f'--share={share}: must be NAME:SHARE, such as one:0.5.'
        )
      return name, {'of': of, 'share': float(share)}
    more = {
      'rollout': {
        'hold': self.hold,
        'requests': self.requests,
        'replaces': self.replaces,
      },
      'drain': {'seconds': self.seconds},
    }
    return name, {'of': of, **more.get(name, {})}


def apply(wanted: Change) -> list[Server]:
  """Changes what servers serve, one server after the other; returns them.

  Raises:
    OSError, RuntimeError, ValueError: as `load_key`, `change` and the server.
  """
  key = load_key(wanted.folder)
  servers = [Server(port, key) for port in wanted.port]
  for name in wanted.changes:
    if name == 'safety_rollback':
      change(servers, Server.roll_gate_back)
    else:
      change(servers, operator.methodcaller('ask', *wanted.command_of(name)))
  return servers

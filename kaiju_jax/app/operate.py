"""Sends operators' commands to a server of this machine."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import json
import pathlib
from typing import Any
import urllib.error
import urllib.request

from kaiju_jax.reporting import report
from kaiju_jax.serving.http import local_key

# Seconds: a drain waits for replies.
_TIMEOUT = 300.0


class Refused(RuntimeError):
  """An error: the server did not do it; says why."""


def load_key(folder: str) -> str:
  """Returns the operator's key of a server.

  Raises:
    FileNotFoundError: the folder is no server's that takes commands.
    OSError: the key cannot be read.
    ValueError: others may read it, or the file is damaged.
  """
  path = pathlib.Path(folder) / local_key.OPERATOR
  if not path.is_file():
    raise FileNotFoundError(
      f'{path}: no key; a server draws it at its first start with'
      ' --metrics_port. Name its folder (--folder).'
    )
  return local_key.load(path)


class Server:
  """A server on this machine.

  Args:
    port: of its metrics.
    key: its operator's.

  Attributes:
    port: the same.
  """

  def __init__(self, port: int, key: str):
    self.port, self._key = port, key

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
  """Returns the lines and the table, for `report.show`, of what is served."""
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

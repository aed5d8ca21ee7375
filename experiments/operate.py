"""Changes what a running server serves, or takes it back, without a restart.

    python -m experiments.operate --port=9100
    python -m experiments.operate --port=9100 --safety=runs/moderated
    python -m experiments.operate --port=9100 --safety_rollback
    python -m experiments.operate --port=9100 --rollout=kaiju-2 --hold=60
    python -m experiments.operate --port=9100 --rollout=b7c1f0 --replaces
    python -m experiments.operate --port=9100 --rollback=b7c1f0
    python -m experiments.operate --port=9100 --drain=kaiju-1

--port is the server's --metrics_port, on this machine (--port=9100,9101 for two
ingresses, which change one after the other), and --folder its folder, where its
operator's key lies. Without a change it prints what is served. A gate
comes with its thresholds, from one folder; requests that are open end with the
gate that they began with. A rollback serves the gate before the one that is
served; a second rollback takes that back. The other changes are of a fleet's
replicas, each named by its name or by the first digits of its build.
"""

from collections.abc import Sequence
import pathlib

from absl import app
from absl import flags

from kaiju_jax.runs import command

_PORT = flags.DEFINE_list(
  'port', [], "The server's --metrics_port; of several ingresses, all of them."
)
_FOLDER = flags.DEFINE_string(
  'folder', 'runs/server', "The server's folder, with its operator's key."
)
_SAFETY = flags.DEFINE_string(
  'safety', '', 'Serve the gate and the certified thresholds of this folder.'
)
_SAFETY_ROLLBACK = flags.DEFINE_bool(
  'safety_rollback', False, 'Serve the gate and the thresholds before those.'
)
_ROLLOUT = flags.DEFINE_string(
  'rollout',
  '',
  'Warm a replica, or a build, and open it to 10, 50 and 100 % of its share of'
  ' new conversations.',
)
_HOLD = flags.DEFINE_float(
  'hold', 60.0, "Seconds of each of --rollout's steps.", 0.0
)
_REQUESTS = flags.DEFINE_integer(
  'requests',
  0,
  "Fewest requests by which each of --rollout's steps is judged; another build"
  ' should have 50 or more.',
  0,
)
_REPLACES = flags.DEFINE_bool(
  'replaces', False, 'Close the other replicas at the end of --rollout.'
)
_ROLLBACK = flags.DEFINE_string(
  'rollback', '', "Take a replica's share, or a build's, back at once."
)
_SHARE = flags.DEFINE_string(
  'share', '', 'NAME:SHARE, to which part of new conversations it is open.'
)
_DRAIN = flags.DEFINE_string(
  'drain', '', "Take all of a replica's conversations off it."
)
_SECONDS = flags.DEFINE_float(
  'seconds',
  60.0,
  'Of running replies at a --drain, then they move.',
  0.0,
  100.0,
)
_REMOVE = flags.DEFINE_string(
  'remove', '', 'Take a drained or lost replica out, and stop it.'
)
_CHANGES = (
  *(_SAFETY, _SAFETY_ROLLBACK, _ROLLOUT, _ROLLBACK, _SHARE, _DRAIN, _REMOVE),
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _PORT)
  changes = [flag for flag in _CHANGES if flag.value]
  if len(changes) > 1:
    names = ', '.join(f'--{flag.name}' for flag in changes)
    raise app.UsageError(f'{names}: must be one at a time.')
  from kaiju_jax.app import operate
  from kaiju_jax.reporting import report

  key = operate.load_key(_FOLDER.value)
  ports = command.numbers(_PORT, int, below=65_536)
  servers = [operate.Server(port, key) for port in ports]
  if _SAFETY_ROLLBACK.value:
    operate.change(servers, operate.Server.roll_gate_back)
  elif changes:
    name, body = _command(changes[0].name)
    operate.change(servers, lambda server: server.ask(name, body))
  for server in servers:
    report.Report().add(*operate.describe(server.ask())).show()


def _command(name: str) -> tuple[str, dict]:
  """Returns a flag's command for the server, and the command's fields."""
  if name == 'safety':
    # The server has a working folder of its own.
    return 'gate', {'folder': str(pathlib.Path(_SAFETY.value).resolve())}
  of = flags.FLAGS[name].value
  if name == 'share':
    of, _, share = of.rpartition(':')
    if not of:
      raise ValueError(f'--share={share}: must be NAME:SHARE, such as one:0.5.')
    return name, {'of': of, 'share': float(share)}
  more = {
    'rollout': {
      'hold': _HOLD.value,
      'requests': _REQUESTS.value,
      'replaces': _REPLACES.value,
    },
    'drain': {'seconds': _SECONDS.value},
  }
  return name, {'of': of, **more.get(name, {})}


if __name__ == '__main__':
  command.run(main, RuntimeError)

"""Changes what a running server serves, or takes it back, without a restart.

    python -m experiments.operate --port=9100
    python -m experiments.operate --port=9100 --safety=runs/moderated
    python -m experiments.operate --port=9100 --safety_rollback

--port is the server's --metrics_port, on this machine, and --folder its folder,
where its operator's key lies. Without a change it prints what is served. A gate
comes with its thresholds, from one folder; requests that are open end with the
gate that they began with. A rollback serves the gate before the one that is
served; a second rollback takes that back.
"""

from collections.abc import Sequence

from absl import app
from absl import flags

from kaiju_jax.runs import command

_PORT = flags.DEFINE_integer(
  'port', None, "The server's --metrics_port.", 1, 65_535
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
_CHANGES = _SAFETY, _SAFETY_ROLLBACK


def main(argv: Sequence[str]) -> None:
  command.check(argv, _PORT)
  changes = [flag for flag in _CHANGES if flag.value]
  if len(changes) > 1:
    names = ', '.join(f'--{flag.name}' for flag in changes)
    raise app.UsageError(f'{names}: must be one at a time.')
  import pathlib

  from kaiju_jax.runs import operate

  server = operate.Server(_PORT.value, operate.load_key(_FOLDER.value))
  if _SAFETY.value:
    # The server has a working folder of its own.
    folder = str(pathlib.Path(_SAFETY.value).resolve())
    server.ask('gate', {'folder': folder})
  elif _SAFETY_ROLLBACK.value:
    server.roll_gate_back()
  print('\n'.join(operate.describe(server.ask())))


if __name__ == '__main__':
  command.run(main, RuntimeError)

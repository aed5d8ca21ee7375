"""How long does a command take to its first step and its first token?

Runs `experiments.benchmarks.startup` in a process of its own, because the
commands that it starts need the device.
"""

from collections.abc import Callable
import json
import pathlib
import subprocess
import sys
from typing import Any

from . import setting as setting_lib

_COMMANDS = 'train', 'generate'
_ROOT = pathlib.Path(__file__).resolve().parents[3]


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, str]]:
  """Returns the commands that are started."""
  return {name: (90, name) for name in _COMMANDS[: 1 if setting.dry else None]}


def measure(setting: setting_lib.Setting, case: str) -> dict[str, Any]:
  """Returns the seconds of every start.

  Raises:
    RuntimeError: the benchmark failed; it has said why.
  """
  path = pathlib.Path(setting.out).resolve() / f'startup_{case}.json'
  words = [sys.executable, '-m', 'experiments.benchmarks.startup']
  words += [f'--command={case}', '--repeats=1', f'--json={path}']
  words += ['--rehearse'] * setting.dry
  done = subprocess.run(words, cwd=_ROOT)
  if done.returncode:
    raise RuntimeError(f'{" ".join(words[2:])}: status {done.returncode}')
  found = json.loads(path.read_text())
  path.unlink()
  return {'command': case, 'starts': found[case]}


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns none: the commands compile the tiny configuration."""
  del setting, device
  return {}

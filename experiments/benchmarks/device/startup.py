"""How long does a command take to its first step and its first token?

Runs `experiments.benchmarks.startup` in a process of its own, because the
commands that it starts need the device.
"""

import json
import pathlib
import subprocess
import sys
from typing import Any

from kaiju_jax.kernels import timing

from . import setting as setting_lib

_COMMANDS = 'train', 'generate'
_ROOT = pathlib.Path(__file__).resolve().parents[3]


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, str]]:
  """Returns the commands that are started."""
  return {name: (120, name) for name in _COMMANDS[: 1 if setting.dry else None]}


def measure(setting: setting_lib.Setting, case: str) -> dict[str, Any]:
  """Returns the processor and wall seconds of every start.

  Raises:
    RuntimeError: the benchmark failed; it has said why.
  """
  path = pathlib.Path(setting.out).resolve() / f'startup_{case}.json'
  words = [sys.executable, '-m', 'experiments.benchmarks.startup']
  repeats = 1 if setting.dry else min(3, setting.repeats)
  words += [f'--command={case}', f'--repeats={repeats}', f'--json={path}']
  words += ['--rehearse'] * setting.dry
  done = subprocess.run(words, cwd=_ROOT)
  if done.returncode:
    raise RuntimeError(f'{" ".join(words[2:])}: status {done.returncode}')
  found = json.loads(path.read_text())
  path.unlink()
  starts = {
    name: [timing.spread(seconds) for seconds in zip(*rounds)]
    for name, rounds in found[case].items()
  }
  return {'command': case, 'starts': starts}

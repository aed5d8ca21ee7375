"""The commands that README and docstrings show have flags that exist."""

import ast
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# A module's flags are those that its import defines; an ablation leaves
# --config.FIELD=VALUE to its runs.
_PARSE = """
import importlib, sys
from absl import flags
importlib.import_module(sys.argv[1])
left = flags.FLAGS(sys.argv[1:], known_only=True)[1:]
left = [argument for argument in left if not argument.startswith('--config.')]
sys.exit(f'no such flags: {left}' if left else 0)
"""


def texts():
  yield (ROOT / 'README.md').read_text()
  for path in sorted((ROOT / 'experiments').rglob('*.py')):
    yield ast.get_docstring(ast.parse(path.read_text())) or ''


def commands():
  """Each command's words; an option's brackets and an ellipsis are no part."""
  found = {}
  for text in texts():
    text = text.replace('\\\n', ' ')
    for line in re.findall(r'python -m (experiments\.[^\n`#]*)', text):
      words = shlex.split(re.sub(r'[\[\]…]', ' ', line))
      if '--config=CONFIG:ARM' not in words:
        found[' '.join(words)] = words
  return found


COMMANDS = commands()


def parse(words):
  return subprocess.run(
    [sys.executable, '-c', _PARSE, *words],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )


def test_commands_of_every_script_are_found():
  scripts = {
    words[0].removeprefix('experiments.') for words in COMMANDS.values()
  }
  assert {'train', 'needle', 'ablate', 'describe', 'bench_step'} <= scripts


@pytest.mark.parametrize('command', COMMANDS)
def test_the_flags_parse(command):
  done = parse(COMMANDS[command])
  assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize(
  'command',
  [
    'experiments.benchmarks.step --table=short,long',
    'experiments.train --work=runs',
    'experiments.train --config=experiments/configs/tiny.py'
    ' --config.model.window=x',
  ],
)
def test_a_planted_slip_is_found(command):
  assert parse(command.split()).returncode

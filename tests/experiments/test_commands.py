"""The commands that pages and docstrings show have flags that exist."""

import ast
import pathlib
import re
import shlex

import pytest

from tests import pages
from tests.experiments import forked

ROOT = pathlib.Path(__file__).parents[2]


def texts():
  """Yields pages and docstrings, each `kaiju NAME` as the module it runs."""
  for page, text in pages.pages().items():
    if not page.startswith('experiments/results'):  # Of their own date.
      kaiju = re.compile(r'(^|`|^\w+=\S+ )kaiju (?=[a-z])', re.M)
      yield kaiju.sub(r'\1python -m experiments.', text)
  for path in sorted((ROOT / 'experiments').rglob('*.py')):
    yield ast.get_docstring(ast.parse(path.read_text())) or ''


def _config_here(word):
  """A config that another command writes has the fields of any other."""
  name, _, path = word.partition('=')
  written = name == '--config' and '/' in path
  if written and not (ROOT / path.split(':')[0]).exists():
    return '--config=tiny'
  return word


def commands():
  """Each command's words; an option's brackets and an ellipsis are no part."""
  found = {}
  for text in texts():
    text = text.replace('\\\n', ' ')
    for line in re.findall(r'python -m (experiments\.[^\n`#]*)', text):
      words = shlex.split(re.sub(r'[\[\]…]', ' ', line))
      words = [_config_here(word) for word in words]
      if not {'--config=CONFIG:ARM', 'experiments.COMMAND'} & {*words}:
        found[' '.join(words)] = words
  return found


COMMANDS = commands()


SLIPS = [
  'experiments.benchmarks.decode --shape=small',
  'experiments.train --work=runs',
  'experiments.train --config=experiments/configs/tiny.py'
  ' --config.model.window=x',
]


@pytest.fixture(scope='module')
def parsed():
  """Each command's outcome: its module's flags are all that it may use.

  An ablation leaves --config.FIELD=VALUE to its runs.
  """
  words = {**COMMANDS, **{slip: slip.split() for slip in SLIPS}}
  found = sorted(words, key=lambda command: words[command][0])
  return dict(zip(found, forked.run([words[x] for x in found], mode='parse')))


def test_commands_of_every_script_are_found():
  scripts = {
    words[0].removeprefix('experiments.') for words in COMMANDS.values()
  }
  assert {'train', 'needle', 'ablate', 'describe', 'benchmarks.step'} <= scripts


@pytest.mark.parametrize('command', COMMANDS)
def test_the_flags_parse(command, parsed):
  assert parsed[command].returncode == 0, parsed[command].stderr[-500:]


@pytest.mark.parametrize('command', SLIPS)
def test_a_planted_slip_is_found(command, parsed):
  assert parsed[command].returncode

"""The list of commands, and `--help` of each: at once, without jax."""

import pathlib
import re
import resource
import subprocess
import sys

import pytest

from experiments import __main__ as index
from tests.experiments import forked

pytestmark = pytest.mark.versions

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = 'experiments', 'experiments/benchmarks'
SCRIPTS = {
  '.'.join((path.parent / path.stem).relative_to(ROOT / 'experiments').parts)
  for folder in FOLDERS
  for path in (ROOT / folder).glob('*.py')
  if '.run(main' in path.read_text()
} | {
  '.'.join(path.parent.relative_to(ROOT / 'experiments').parts)
  for path in (ROOT / 'experiments').rglob('[a-z]*/__main__.py')
}
SLIPS = {
  'trian': "'trian' is no command. Did you mean train or uptrain?",
  'bench': "'bench' is no command.",
  '--seeds': "'--seeds' is no command.",
}


def test_the_index_lists_the_commands_that_exist():
  assert set(index.COMMANDS) == SCRIPTS
  assert len(index.COMMANDS) == len(SCRIPTS)


@pytest.fixture(scope='module')
def helps():
  words = [['experiments', name, '--help'] for name in index.COMMANDS]
  return dict(zip(index.COMMANDS, forked.run(words)))


@pytest.mark.parametrize('name', index.COMMANDS)
def test_help_imports_no_jax(name, helps):
  assert not helps[name].jax
  assert name.rpartition('.')[2] in helps[name].stdout
  assert index.line(name) in helps[name].stdout
  assert 'flags:' in helps[name].stdout


FLAG = re.compile(r'(?ms)^  (?:-\w,)?--(?:\[no\])?(\w+): (.*?)(?=^  -|\Z|\n\n)')
# A server's folder holds no model; only training writes a workdir, and the rows
# of a step are a run's.
ALLOWED = {
  *((name, 'workdir') for name in ('train', 'rows')),
  *((name, 'folder') for name in ('serve', 'feedback', 'operate', 'drift')),
}


@pytest.mark.parametrize('name', index.COMMANDS)
def test_flags_have_one_spelling_and_a_sentence(name, helps):
  found = dict(FLAG.findall(helps[name].stdout))
  assert found
  for flag, text in found.items():
    said, _, facts = text.partition('\n    (')
    said = ' '.join(said.split()).partition('; repeat this option')[0]
    assert said.endswith('.'), (flag, said)
    assert said != 'See above.', flag
    if flag in ('workdir', 'checkpoint', 'folder', 'root'):
      assert (name, flag) in ALLOWED, flag
    if flag == 'seeds':
      assert 'a comma separated list' in facts


def test_each_command_that_plays_a_model_plays_what_is_served(helps):
  """In a cache with the same bounds."""
  found = {name: dict(FLAG.findall(one.stdout)) for name, one in helps.items()}
  played = {name for name in found if {'kv', 'cache'} <= found[name].keys()}
  assert played >= {
    *('serve', 'judge', 'gate', 'generate', 'harness', 'persona', 'recall'),
    *('synthesize', 'chat_facts'),
  }
  for name in played:
    for flag in 'int8', 'kv', 'dtype', 'cache', 'length':
      assert found[name][flag] == found['serve'][flag], (name, flag)


@pytest.fixture(scope='module')
def said():
  """What `kaiju` says of no command and of wrong ones, by either name."""
  commands = [
    [module, *words]
    for module in ('experiments', 'kaiju_jax.experiments')
    for words in ([], ['--help'], *([slip] for slip in SLIPS))
  ]
  done = forked.run(commands)
  return {tuple(words): one for words, one in zip(commands, done)}


def test_no_command_lists_all(said):
  printed = {said[words].stdout for words in said if words[-1] not in SLIPS}
  assert printed == {index.index() + '\n'}
  (text,) = printed
  for name in index.COMMANDS:
    assert f'  {name} ' in text and index.line(name) in text
    assert len(index.line(name)) > 20


@pytest.mark.parametrize('slip', SLIPS)
@pytest.mark.parametrize('module', ['experiments', 'kaiju_jax.experiments'])
def test_an_unknown_command_is_one_line(said, module, slip):
  done = said[module, slip]
  assert done.returncode == 1 and not done.stdout
  assert SLIPS[slip] in done.stderr
  assert len(done.stderr.splitlines()) == 1


def test_a_config_goes_by_its_name():
  """Arms behind a colon, and with the package's own name for the commands."""
  named, by_path = forked.run(
    [
      ['kaiju_jax.experiments', 'describe', '--config=ternary:int8'],
      [
        'experiments.describe',
        '--config=experiments/configs/ternary.py:int8',
      ],
    ]
  )
  assert named.returncode == 0, named.stderr
  assert named.stdout == by_path.stdout


def test_the_list_and_a_help_take_less_than_a_second():
  """Of the processor: other work on the machine is not the script's."""
  for words in [], ['train', '--help']:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
      [sys.executable, '-m', 'experiments', *words],
      cwd=ROOT,
      capture_output=True,
      timeout=250,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert spent < 1

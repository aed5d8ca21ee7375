"""A run's environment, and the command that made it."""

import os
import sys

import pytest

from kaiju_jax.training import environment

ARGUMENTS = ['train', '--config=tiny', '--config.data.path=my texts']
TYPED = "train --config=tiny '--config.data.path=my texts'"


@pytest.fixture
def path(tmp_path, monkeypatch):
  """A folder on PATH, alone, with the programs kaiju and python3."""
  for name in 'kaiju', 'python3':
    (tmp_path / name).write_text('')
    (tmp_path / name).chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path))
  # A worker of pytest-xdist has no file of its own.
  main = sys.modules['__main__']
  monkeypatch.setattr(main, '__file__', 'kaiju', raising=False)
  return tmp_path


@pytest.mark.parametrize(
  'words, typed',
  [
    # A console script's first line names its interpreter, which nobody typed.
    (['{path}/python3', '{path}/kaiju'], 'kaiju'),
    (['{path}/python3', '-m', 'experiments'], 'python3 -m experiments'),
    (['python3', '-m', 'experiments'], 'python3 -m experiments'),
    (['/opt/python3', '-m', 'experiments'], '/opt/python3 -m experiments'),
    (['/opt/python3', '/opt/kaiju'], '/opt/python3 /opt/kaiju'),
    (['{path}/python3', 'mine.py'], 'python3 mine.py'),
  ],
)
def test_the_command_is_that_which_was_typed(path, monkeypatch, words, typed):
  words = [word.format(path=path) for word in words]
  monkeypatch.setattr(sys, 'orig_argv', [*words, *ARGUMENTS])
  assert environment.typed_command() == f'{typed} {TYPED}'


def test_a_program_without_a_file_has_no_command(monkeypatch):
  monkeypatch.delattr(sys.modules['__main__'], '__file__', raising=False)
  monkeypatch.setattr(sys, 'orig_argv', ['python', '-c', 'x = 1' + os.linesep])
  assert environment.typed_command() is None

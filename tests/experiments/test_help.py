"""`--help` of every experiment is instant: no jax is imported for it."""

import pathlib
import resource
import subprocess
import sys

import pytest

from tests.experiments import forked

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = 'experiments', 'experiments/benchmarks'
SCRIPTS = sorted(
  '.'.join((path.parent / path.stem).relative_to(ROOT).parts)
  for folder in FOLDERS
  for path in (ROOT / folder).glob('*.py')
  if 'app.run(' in path.read_text()
)


def test_the_scripts_are_found():
  names = {script.removeprefix('experiments.') for script in SCRIPTS}
  assert {'train', 'needle', 'ablate', 'describe'} <= names
  assert 'benchmarks.step' in names


@pytest.fixture(scope='module')
def helps():
  done = forked.run([[script, '--help'] for script in SCRIPTS])
  return dict(zip(SCRIPTS, done))


@pytest.mark.parametrize('script', SCRIPTS)
def test_help_imports_no_jax(script, helps):
  assert not helps[script].jax
  assert script.rpartition('.')[2] in helps[script].stdout
  assert 'flags:' in helps[script].stdout


def test_help_takes_less_than_a_second():
  """Of the processor: other work on the machine is not the script's."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  subprocess.run(
    [sys.executable, '-m', 'experiments.train', '--help'],
    cwd=ROOT,
    capture_output=True,
    timeout=60,
  )
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  assert after.ru_utime + after.ru_stime < before.ru_utime + before.ru_stime + 1

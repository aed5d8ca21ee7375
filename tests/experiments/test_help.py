"""`--help` of every experiment is instant: no jax is imported for it."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted(
  path.stem
  for path in (ROOT / 'experiments').glob('*.py')
  if 'app.run(' in path.read_text()
)
_PROBE = """
import runpy, sys, time
started = time.perf_counter()
sys.argv = [sys.argv[1], '--help']
try:
  runpy.run_module(sys.argv[0], run_name='__main__')
except SystemExit:
  pass
print('SECONDS', time.perf_counter() - started)
print('JAX', 'jax' in sys.modules)
"""


def test_the_scripts_are_found():
  assert {'train', 'needle', 'ablate', 'describe'} <= set(SCRIPTS)


@pytest.mark.parametrize('script', SCRIPTS)
def test_help_imports_no_jax_and_is_quick(script):
  # The quickest of three: other work on the machine is not the script's.
  seconds = []
  for _ in range(3):
    done = subprocess.run(
      [sys.executable, '-c', _PROBE, f'experiments.{script}'],
      cwd=ROOT,
      capture_output=True,
      text=True,
      timeout=60,
      check=True,
    )
    assert 'JAX False' in done.stdout
    assert f'experiments.{script}' in done.stdout
    seconds.append(float(done.stdout.split('SECONDS ')[1].split()[0]))
    if seconds[-1] <= 1:
      break
  assert min(seconds) <= 1

"""The kernels' folder is importable by one name, and harmless by others."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-c', code],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.parametrize(
  'code, message',
  [
    ('from kernels import dispatch', 'imported as kaiju_jax.kernels'),
    ('import kernels; kernels.dispatch', 'imported as kaiju_jax.kernels'),
    ('import kernels.dispatch', "No module named 'kernels.dispatch'"),
  ],
)
def test_no_module_is_loaded_twice(code, message):
  done = run(code)
  assert done.returncode and message in done.stderr


def test_under_the_name_kernels_it_has_no_version():
  done = run('import kernels; print(getattr(kernels, "__version__", "none"))')
  assert done.stdout == 'none\n', done.stderr

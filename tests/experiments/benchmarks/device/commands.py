"""Starts the command, on a CPU, with the flags that all tests give."""

import os
import pathlib
import subprocess
import sys

from kaiju_jax.storage import files

ROOT = pathlib.Path(__file__).parents[4]


def words(out: pathlib.Path, *flags: str) -> list[str]:
  command = [sys.executable, '-m', 'experiments.benchmarks.device', '--dry']
  return [*command, f'--out={out}', *flags]


def environment() -> dict[str, str]:
  return os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}


def run(out: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    words(out, *flags),
    cwd=ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=280,
  )


def statuses(out: pathlib.Path, name: str) -> dict[str, str]:
  """Returns a slice's cases and what became of them."""
  cases = files.read_json(out / f'{name}.json')['cases']
  return {case: found['status'] for case, found in cases.items()}

"""The README's Python blocks run as they stand."""

import pathlib
import re
import subprocess
import sys

import pytest

README = (pathlib.Path(__file__).parents[1] / 'README.md').read_text()
BLOCKS = re.findall(r'```python\n(.*?)```', README, re.S)


def test_there_are_blocks():
  assert len(BLOCKS) >= 3


@pytest.mark.parametrize('block', BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs(block, tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', block],
    capture_output=True,
    text=True,
    timeout=300,
    cwd=tmp_path,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout


def test_named_files_exist():
  root = pathlib.Path(__file__).parents[1]
  for path in re.findall(r'\]\(([\w/.]+)\)', README):
    assert (root / path).exists(), path

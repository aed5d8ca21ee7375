"""The README's Python blocks run as they stand."""

import contextlib
import io
import os
import pathlib
import re

import pytest

README = (pathlib.Path(__file__).parents[1] / 'README.md').read_text()
ALL = re.findall(r'```python\n(.*?)```', README, re.S)
# Three run elsewhere: `test_wheel.py` trains in an environment that has only
# the wheel, `test_squinch_alone.py` runs the loop of another trainer, and
# `serving/test_first_minute.py` has a server for the client.
(INSTALLED,) = [block for block in ALL if 'train.train(' in block]
(LOOP,) = [block for block in ALL if 'squinch.transform' in block]
(CLIENT,) = [block for block in ALL if 'openai.OpenAI' in block]
BLOCKS = [block for block in ALL if block not in (INSTALLED, LOOP, CLIENT)]


def test_there_are_blocks():
  assert len(BLOCKS) >= 3


@pytest.mark.parametrize(
  'block',
  [
    # These compile a model's programs: the others take a second or two.
    pytest.param(
      block, id=str(n), marks=[pytest.mark.slow] * ('init_params' in block)
    )
    for n, block in enumerate(BLOCKS)
  ],
)
def test_block_runs(block, tmp_path, monkeypatch):
  """In this process, which has the eight devices that a block may ask for."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(os, 'environ', dict(os.environ))
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(compile(block, 'README.md', 'exec'), {'__name__': '__main__'})
  assert printed.getvalue()


def test_named_files_exist():
  root = pathlib.Path(__file__).parents[1]
  for path in re.findall(r'\]\(([\w/.]+)\)', README):
    assert (root / path).exists(), path

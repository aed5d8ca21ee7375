"""The replay's command prints and writes what each cache has of a trace."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_all_caches_are_compared_on_the_named_trace(tmp_path):
  out = tmp_path / 'found.json'
  run = subprocess.run(
    [sys.executable, '-m', 'experiments.replay', '--requests=60', '--live=4']
    + ['--swipes=.2', '--fractions=1/2', f'--json={out}'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert run.returncode == 0, run.stderr
  ((name, found),) = json.loads(out.read_text()).items()
  assert name == 'mature, 4 live, 0.2 swipes' and name in run.stdout
  (row,) = found['rows']
  assert set(row['rates']) == {'points', 'lru', 'blocks', 'foresight'}
  assert sum(found['causes'].values()) == 60
  for cache, rate in row['rates'].items():
    assert 0 <= rate <= found['oracle'] < 1
    assert row['of_oracle'][cache] == pytest.approx(rate / found['oracle'])

"""The replay's command prints and writes what each cache has of a trace."""

import json

import pytest

from tests.experiments import forked


@pytest.mark.slow
def test_all_caches_are_compared_on_the_named_trace(tmp_path):
  out = tmp_path / 'found.json'
  words = 'experiments.replay --requests=60 --live=4 --swipes=.2'
  words += f' --fractions=1/2 --json={out}'
  (run,) = forked.run([words.split()])
  assert run.returncode == 0, run.stderr
  ((name, found),) = json.loads(out.read_text()).items()
  assert name == 'mature, 4 live, 0.2 swipes' and name in run.stdout
  (row,) = found['rows']
  assert set(row['rates']) == {'points', 'lru', 'blocks', 'foresight'}
  assert sum(found['causes'].values()) == 60
  for cache, rate in row['rates'].items():
    assert 0 <= rate <= found['oracle'] < 1
    assert row['of_oracle'][cache] == pytest.approx(rate / found['oracle'])

"""Contenders take turns, the least counts, and figures are kept."""

import pytest

from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import ceilings
from kaiju_jax.kernels import timing
from kaiju_jax.storage import files
from tests.experiments import forked


def test_the_least_of_all_turns_counts_after_the_warm_up():
  calls = []

  def run(name, figures):
    figures = iter(figures)
    return lambda: calls.append(name) or next(figures)

  runs = {
    'a': run('a', [(0, 0), (3, 1), (2, 5)]),
    'b': run('b', [(0, 0), (1, 1), (1, 2)]),
  }
  found = harness.take_turns(runs, 2, warm=True)
  assert found == {'a': [2, 1], 'b': [1, 1]}
  assert ''.join(calls) == 'ab' * 3


def test_a_row_that_was_timed_and_one_that_was_not():
  row = benchmark.Row('toy', 'tiny', 'ours', 2.0, 100.0, 10.0, max_error=0.5)
  timed = row._replace(spread=timing.Spread(2.0, 1.0, 3.0, 3))
  peer = timed._replace(implementation='xla', seconds=3.0, is_peer=True)
  rates = ceilings.Ceilings(100.0, 200.0, 10.0)
  cells = '2e+03 (1e+03–3e+03)', '50%', '5.0e-01', 'xla 1.50'
  assert harness.row_cells(timed, [timed, peer], rates) == cells
  assert harness.row_cells(timed, [], None) == (cells[0], '', cells[2], '')
  problem = row._replace(problem='no')
  assert harness.row_cells(problem, [], rates)[0] == 'not timed: no'


@pytest.mark.slow
def test_kernels_are_counted_on_a_cpu(tmp_path):
  path = tmp_path / 'new' / 'kernels.json'
  words = 'experiments.benchmarks.kernels', '--kernel=squinch', f'--json={path}'
  (done,) = forked.run([list(words)], imported=forked.JAX)
  assert done.returncode == 0, done.stderr
  assert 'ms (least' not in done.stdout
  found = files.read_json(path)
  assert found['ceilings'] is None and found['versions']['jax']
  assert {row['seconds'] for row in found['rows']} == {None}
  assert found['rows'][0]['bytes'] > 1e6

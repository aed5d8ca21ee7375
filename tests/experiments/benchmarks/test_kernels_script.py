"""One command that runs every benchmark, and outlives any that fails."""

import importlib.util

import pytest

from tests.experiments import commands

bench_kernels = commands.imported('experiments.benchmarks.kernels')


@pytest.mark.parametrize('autotune', [False, True])
def test_every_part_is_a_module(tmp_path, autotune):
  every = bench_kernels.parts(tmp_path, autotune)
  for words in every.values():
    assert words[0] == '-m'
    assert importlib.util.find_spec(words[1]), words[1]
  assert len(every) == 4 * (1 + autotune) + 2


def test_parts_are_chosen_by_their_beginning(tmp_path):
  every = bench_kernels.parts(tmp_path, False)
  assert list(bench_kernels.choose(every, ['squ', 'block'])) == [
    'squinch',
    'block_13b',
    'block_110b',
  ]
  assert bench_kernels.choose(every, None) == every
  with pytest.raises(ValueError, match="--only: 'matmul' begins none of visib"):
    bench_kernels.choose(every, ['squinch', 'matmul'])


@pytest.mark.parametrize(
  ('script', 'limit', 'problem', 'said'),
  [
    ('print(6 * 7)', 60, None, '42\n'),
    ('print("before"); raise SystemExit(3)', 60, 'status 3', 'before\n'),
    (
      'import time; print("before", flush=True); time.sleep(60)',
      2,
      'not done after 2 s',
      'before\n',
    ),
  ],
)
def test_what_a_part_said_is_kept(tmp_path, script, limit, problem, said):
  found = bench_kernels.run_part('part', ['-c', script], tmp_path, limit)
  assert found == problem
  assert (tmp_path / 'part.txt').read_text() == said

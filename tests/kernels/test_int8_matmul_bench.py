"""What the benchmark of int8 matmuls counts and times."""

import pytest

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.int8_matmul import autotune
from kaiju_jax.kernels.int8_matmul import bench
from kaiju_jax.kernels.int8_matmul import blocks

OF_CPU = ['xla', 'numba_cpu'][: 2 if blocks.numba_cpu() else 1]


def measure(shapes):
  return [
    row
    for label, shape in shapes.items()
    for row in benchmark.measure(bench.subjects(label, shape), 1)
  ]


@pytest.mark.parametrize(
  ('kernel', 'expected'),
  [
    # x as bf16, the weight, its scales, y as bf16.
    ('matmul', 2 * 4 * 8 + 8 * 3 + 4 * 3 + 2 * 4 * 3),
    # x as codes with a scale a row.
    ('codes', 4 * 8 + 8 * 3 + 4 * (3 + 4) + 2 * 4 * 3),
  ],
)
def test_bytes_are_those_of_operands_and_result(kernel, expected):
  assert bench.bytes_moved(kernel, bench.Shape(4, 8, 3, 'first')) == expected


def test_a_cpu_counts_and_does_not_time():
  rows = measure(bench.SHAPES)
  assert {row.shape.split()[0] for row in rows} == {'13b', '34b', '110b'}
  assert len(rows) == len(bench.SHAPES) * 2 * (len(OF_CPU) + 2)
  assert all(row.seconds is None and row.operations > 1e9 for row in rows)


@pytest.mark.slow
def test_implementations_agree_and_stand_beside_their_peers():
  shapes = {
    'first': bench.Shape(32, 128, 128, 'first'),
    'last': bench.Shape(32, 128, 128, 'last', nonnegative=True),
  }
  with dispatch.interpret():
    rows = measure(shapes)
  rows = [row for row in rows if row.problem is None]
  ours = {row.implementation for row in rows if not row.is_peer}
  assert ours == {*OF_CPU, 'pallas_gpu', 'pallas_tpu'}
  assert {row.implementation for row in rows if row.is_peer} == {
    bench.BF16,
    bench.S8,
  }
  assert all(row.seconds > 0 for row in rows)
  assert all(row.max_error == 0 for row in rows if not row.is_peer)


@pytest.mark.slow
def test_the_fastest_tile_is_found_and_taken(monkeypatch):
  shape = bench.Shape(32, 64, 64, 'first')
  tiles = [blocks.Gpu(32, 32, 32, 4, 2), blocks.Gpu(16, 64, 32, 4, 2)]
  monkeypatch.setattr(autotune, 'candidates', lambda shape: tiles)
  with dispatch.compiling_for('gpu'), dispatch.interpret():
    jobs = autotune.jobs({'toy': shape})
    (job,) = jobs.values()
    found = tuned.search(job.candidates, job.prepare(), 1)
  assert list(jobs) == [blocks.key(*shape[:4])]
  assert blocks.Gpu(**found.best) in tiles
  monkeypatch.setattr(tuned, 'winner', lambda *_: tiles[1]._asdict())
  assert blocks.gpu(*shape[:4]) == tiles[1]
  with tuned.trying(tiles[0]):
    assert blocks.gpu(*shape[:4]) == tiles[0]

"""Squinch's benchmark and its candidates for tiles, interpreted at toy size."""

import pytest

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.squinch import autotune
from kaiju_jax.kernels.squinch import bench
from kaiju_jax.kernels.squinch import blocks

TOY = bench.Shape(parts=4, rows=64, columns=8)


def test_bytes_are_counted_by_hand():
  # 512 numbers: bf16 in and 6 bits out; 6 bits in and a quarter of f32 out.
  assert bench.bytes_moved('encode', TOY) == 1024 + 384
  assert bench.bytes_moved('decode_sum', TOY) == 384 + 512


def test_the_presets_layers_are_there():
  assert len(bench.SHAPES) == 12
  assert bench.SHAPES['13b hidden'] == (8, 5120, 3072)
  assert bench.SHAPES['34b queries'] == (16, 7168, 896)
  assert bench.SHAPES['110b vocabulary'] == (64, 12_288, 8192)
  for parts, rows, _ in bench.SHAPES.values():
    assert rows % (8 * parts) == 0


@pytest.mark.slow
def test_every_implementation_is_timed_and_compared():
  with dispatch.interpret():
    rows = benchmark.measure(bench.subjects('toy', TOY), 1)
  assert [(row.kernel, row.implementation) for row in rows] == [
    (f'squinch {kernel}', implementation)
    for kernel in ('encode', 'decode_sum')
    for implementation in ('reference', 'pallas_gpu', 'pallas_tpu')
  ]
  for row in rows:
    assert row.seconds > 0 and row.max_error == 0
    assert row.shape == 'toy (4, 64, 8)'


def test_a_difference_is_told(monkeypatch):
  def encode(shape, operands, implementation):
    return operands['packed_NPGC'] ^ (implementation != 'reference')

  monkeypatch.setattr(bench, 'KERNELS', {'encode': encode})
  with dispatch.interpret():
    rows = benchmark.measure(bench.subjects('toy', TOY), 1)
  assert [row.max_error for row in rows] == [0, 1, 1]


def test_winners_are_found(monkeypatch):
  few = [blocks.Threads(8, 1, 2), blocks.Threads(4, 1, 1)]
  monkeypatch.setattr(autotune, 'candidates', lambda *case: few)
  shapes = {label: TOY for _, label, _ in autotune.CASES}
  with dispatch.interpret(), dispatch.compiling_for('gpu'):
    jobs = autotune.jobs(shapes)
    found = {
      name: tuned.search(job.candidates, job.prepare(), 1)
      for name, job in jobs.items()
    }
  assert set(found) == {'itemsize=2 kind=encode', 'kind=decode parts=4'}
  for each in found.values():
    assert blocks.Threads(**each.best) in few and not each.refused


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
def test_candidates_read_sources_together_that_divide_them(platform):
  for parts in 1, 8, 24:
    sizes = autotune.candidates(platform, 'decode', parts)
    assert {size.N for size in sizes} == {
      n for n in (1, 2, 4, 8, 16) if parts % n == 0
    }
  assert {s.N for s in autotune.candidates(platform, 'encode', 8)} == {1}

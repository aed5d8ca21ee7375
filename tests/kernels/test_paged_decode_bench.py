"""What the benchmark of paged decode counts, and that it runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.paged_decode import autotune
from kaiju_jax.kernels.paged_decode import bench
from kaiju_jax.kernels.paged_decode import blocks

_SMALL = {
  'causal': bench.BenchShape(3, 2, 64, 16),
  'window': bench.BenchShape(3, 2, 64, 16, window=9),
}


def measure(name):
  return benchmark.measure(bench.subjects(name, _SMALL[name]), 1)


def _counts(shape):
  return bench.counts(shape, bench.layout(shape))


def test_rows_of_several_lengths():
  shape = bench.BenchShape(2, 3, 64, 8, ragged=True)
  assert bench.lengths(shape).tolist() == [8, 36, 64]
  # 36 tokens are four pages and a half.
  assert _counts(shape) == bench.Counts(108, 108, 8 + 40 + 64, 8 + 32 + 64)


def test_a_window_and_a_ring():
  # The last nine of 64 tokens: one slot of page 2, and page 3 from 56 on.
  window = bench.BenchShape(1, 1, 64, 8, window=9)
  assert _counts(window) == bench.Counts(9, 9, 16, 8)
  # A ring of 64 slots whose newest token is 95, at slot 31.
  ring = window._replace(ring=True)
  where = bench.layout(ring)
  assert where.position_BM[0].tolist() == [*range(64, 96), *range(32, 64)]
  assert _counts(ring) == bench.Counts(9, 9, 16, 8)
  # The page of three sinks stays, and the 56 slots behind it turn.
  pinned = ring._replace(sinks=3)
  where = bench.layout(pinned)
  assert where.position_BM[0, :8].tolist() == [*range(8)]
  assert sorted(where.position_BM[0, 8:].tolist()) == [*range(40, 96)]
  assert _counts(pinned) == bench.Counts(12, 12, 24, 8)


def test_beams_share_the_prompt():
  shape = bench.BenchShape(2, 1, 512, 64, queries=2)
  # 256 tokens that both see, 128 that each sees alone: two pages each.
  assert _counts(shape) == bench.Counts(768, 512, 512, 256)


def test_the_least_bytes_of_an_int8_cache():
  shape = bench.BenchShape(3, 2, 64, 16)
  keys = 2 * 64 * 2 * (128 + 4)
  queries, outputs = 2 * 3 * (128 + 4), 2 * 3 * (256 + 4)
  counted = _counts(shape)
  assert bench.least_bytes(shape, counted, 'int8') == keys + queries + outputs
  half = 2 * 64 * 2 * 256 + 2 * 3 * 256 + outputs
  assert bench.least_bytes(shape, counted, 'bfloat16') == half


@pytest.mark.parametrize('name', bench.SHAPES)
def test_every_shape_visits_little_more_than_is_seen(name):
  shape = bench.SHAPES[name]
  # A few rows say the same of all.
  counted = _counts(shape._replace(batch=min(shape.batch, 2)))
  assert counted.slots <= counted.visited
  if shape.window is None:
    assert counted.visited <= 1.02 * counted.slots
  else:
    rows = counted.slots // shape.window
    pages = 2 if shape.sinks else 1
    assert counted.visited - counted.slots <= rows * pages * shape.slots


def test_without_an_accelerator_nothing_runs_and_counts_are_there():
  rows = measure('window')
  assert {row.seconds for row in rows} == {None}
  assert [row.tiles for row in rows] == [(32, 18), (32, 18), None]
  own = bench.default(bench.TINY)
  assert [row.implementation for row in rows[:2]] == [
    f'{own}, int8',
    'xla, bfloat16',
  ]


@pytest.mark.slow
def test_timed_rows_have_seconds_peers_and_errors():
  with dispatch.compiling_for('gpu'), dispatch.interpret():
    rows = measure('causal')
  assert {row.implementation: row.is_peer for row in rows} == {
    'pallas_gpu, int8': False,
    'pallas_gpu, bfloat16': True,
    'xla, int8': False,
    'jax.nn xla': True,
    'jax.nn cudnn': True,
    'plan': False,
  }
  # Only cuDNN is not here, and says so.
  timed = {row.implementation: row for row in rows if row.problem is None}
  assert timed.keys() == {row.implementation for row in rows} - {'jax.nn cudnn'}
  for row in timed.values():
    assert 0 < row.spread.least <= row.seconds <= row.spread.most
  # Codes reach about three; bfloat16 keeps eight bits.
  assert all(row.max_error < 0.05 for row in rows[:3])
  assert len(benchmark.times_as_fast(rows[0], rows)) == 2


@pytest.mark.parametrize('implementation', ['pallas_gpu', 'pallas_tpu'])
@pytest.mark.parametrize('cache', bench.CACHES)
def test_candidates_fit_and_hold_the_rule(implementation, cache):
  for shape in bench.SHAPES.values():
    tiled = bench.block_shape(shape, cache)
    if blocks.misfit(implementation, tiled):
      continue
    found = autotune.candidates(implementation, tiled)
    assert len(set(found)) == len(found) <= 72
    assert blocks.rule(implementation, tiled) in found
    for sizes in found:
      blocks.check(implementation, tiled, sizes)


@pytest.mark.slow
def test_the_fastest_tiles_are_found(monkeypatch):
  candidates = [blocks.Sizes(16, 32, 1, 4, 3), blocks.Sizes(16, 16, 2, 4, 3)]
  monkeypatch.setattr(autotune, 'candidates', lambda *_: candidates)
  monkeypatch.setattr(bench, 'CACHES', ('int8',))
  with dispatch.compiling_for('gpu'), dispatch.interpret():
    [(name, job)] = autotune.jobs({'window': _SMALL['window']}).items()
    each = tuned.search(job.candidates, job.prepare(), 1)
  tiled = bench.block_shape(_SMALL['window'], 'int8')
  assert name == blocks.key('pallas_gpu', tiled)
  # Any of the three may be the fastest on this machine at this moment.
  rule = blocks.rule('pallas_gpu', tiled)
  assert blocks.Sizes(**each.best) in [rule, *candidates] and not each.refused


def test_what_was_tuned_goes_before_the_rule(tmp_path, monkeypatch):
  monkeypatch.setattr(blocks, '__file__', str(tmp_path / 'blocks.py'))
  shape = bench.block_shape(bench.SHAPES['13b, 32 × 32k'], 'int8')
  best = blocks.Sizes(64, 32, 7, 8, 3)
  assert blocks.sizes('pallas_gpu', shape) == blocks.rule('pallas_gpu', shape)
  tuned.write(
    tmp_path,
    jax.devices()[0].device_kind,
    blocks.key('pallas_gpu', shape),
    tuned.SearchResult(best._asdict(), 1e-3, {}),
  )
  assert blocks.sizes('pallas_gpu', shape._replace(P=7)) == best
  assert blocks.sizes('pallas_gpu', shape._replace(B=1)) != best
  assert blocks.sizes('pallas_tpu', shape) != best


def test_layouts_are_what_decode_takes():
  where = bench.layout(_SMALL['causal'])
  assert sorted(np.ravel(where.table_BN)) == [*range(8)]
  assert {field.dtype for field in where} == {jnp.dtype('int32')}


@pytest.mark.parametrize('sinks', [0, 1, 4, 5])
@pytest.mark.parametrize('window', [2, 4, 9, 32])
def test_the_slots_that_are_counted_are_those_of_the_widest_query(
  window, sinks
):
  shape = blocks.Shape(1, 1, 128, 12, 12, 4, 1, window, sinks=sinks)
  widest = 0
  for position in range(48):
    seen = {*range(max(0, position - window + 1), position + 1), *range(sinks)}
    widest = max(widest, 4 * len({slot // 4 for slot in seen}))
  assert widest <= blocks.count_visited(shape) <= min(widest + 4, 48)

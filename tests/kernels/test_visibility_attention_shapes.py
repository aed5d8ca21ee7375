"""What the benchmark counts, and that its contenders compute the same."""

import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import autotune
from kaiju_jax.kernels.visibility_attention import bench
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import peers
from kaiju_jax.kernels.visibility_attention import shapes
from kaiju_jax.model import presets

ROWS = ['causal', 'packed', 'chat']
TOY = shapes.Shape(96, 2, 32, window=20)
slow = pytest.mark.slow


@pytest.mark.parametrize('rows', ROWS)
@pytest.mark.parametrize('window, sinks', [(None, 0), (50, 0), (50, 4)])
def test_pairs_are_those_of_the_dense_mask(rows, window, sinks):
  shape = shapes.Shape(700, 1, window=window, rows=rows, batch=2)
  row = visibility_lib.Visibility(*shapes.ranges(shape))
  visibility_lib.check(row, 700)
  dense_BLM = visibility_lib.as_dense(row, window, sinks)
  assert shapes.pairs(shape._replace(sinks=sinks)) == dense_BLM.sum()


def test_a_chat_is_a_tree_that_branches():
  shape = shapes.Shape(4000, 1, rows='chat')
  row = visibility_lib.Visibility(*shapes.ranges(shape))
  sees_LM = visibility_lib.as_dense(row)[0]
  # A token's parent is the last before it that it sees.
  parents = [
    int(np.flatnonzero(sees_LM[token, :token])[-1]) if token else -1
    for token in range(4000)
  ]
  for ours, theirs in zip(row, visibility_lib.tree(parents)):
    np.testing.assert_array_equal(ours, theirs)
  branches = np.unique(parents, return_counts=True)[1]
  assert (branches > 1).sum() > 1


def test_shapes_are_those_of_the_presets():
  for name, shape in shapes.SHAPES.items():
    preset = presets.preset(name.split(',')[0])
    split = presets.MESHES.get(name.split(',')[0], (1, 1))[1]
    assert shape.heads == preset.num_heads // split
    assert (shape.head_dim, shape.length) == (
      preset.head_dim,
      preset.max_length,
    )
    assert shape.window in (None, preset.window)


@pytest.mark.parametrize('rows', ROWS)
def test_on_a_cpu_there_are_counts_and_no_times(rows):
  shape = TOY._replace(rows=rows, coded=True)
  with tuned.trying(blocks.Tiles(16, 16, 4, 2)):
    rows = benchmark.measure(bench.subjects('toy', shape), 1)
  forward, of_tpu, backward, _ = rows
  assert [row.implementation for row in rows] == [
    'pallas_gpu',
    'pallas_tpu',
  ] * 2
  pairs = shapes.pairs(shape)
  assert forward.operations == 4 * 2 * 32 * pairs
  assert backward.operations == 2.5 * forward.operations
  # q, out, k and v; a scale and an lse of four bytes.
  assert forward.bytes == 96 * (2 * (32 + 4 + 64 + 4) + 2 * (32 + 4))
  # A TPU's one tile holds it all.
  assert of_tpu.tiles == (1, 1) and of_tpu.operations == forward.operations
  for row in forward, backward:
    assert row.seconds is row.max_error is None
    visited, needed = row.tiles
    assert 0 < needed <= visited < 96 * 2 // 16 * 96 // 16 * 2
  assert backward.tiles == tuple(2 * n for n in forward.tiles)


@slow
@pytest.mark.parametrize(
  ('name', 'coded'),
  [('chunked', True), ('pallas_gpu', False), ('pallas_gpu', True)],
)
def test_errors_are_against_the_reference(name, coded):
  shape = TOY._replace(rows='packed', coded=coded)
  with dispatch.interpret(), tuned.trying(blocks.Tiles(32, 32, 4, 2)):
    errors = bench.errors(shape, name)
  assert len(errors) == 2
  assert all(0 < error < 0.03 for error in errors.values())


@pytest.mark.parametrize(
  ('rows', 'masked'),
  [pytest.param('chat', True, marks=slow), ('causal', False)],
)
def test_a_peer_computes_the_same(rows, masked):
  shape = TOY._replace(rows=rows)
  (q, k, v), _, dout_BLHK, dlse_BLH = bench.operands(shape)

  def theirs_of(part):
    peer = peers._jax(shape, part, 'xla', masked)
    return peer.run(*peer.operands({'peers': (q, k, v, dout_BLHK)}))

  forward, backward = bench.calls(shape, 'chunked')
  results = forward((q, k, v), {})
  cotangents = *results, dout_BLHK, jnp.zeros_like(dlse_BLH)
  ours = [results[0], *backward((q, k, v), {}, cotangents)]
  theirs = [theirs_of('forward'), *theirs_of('backward')]
  for x, y in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(
      np.float32(x), np.float32(y), atol=0.05 * float(jnp.abs(y).max())
    )


@slow
@pytest.mark.parametrize('kind', ['forward', 'dkv'])
def test_a_search_traces_each_candidate_anew(kind, monkeypatch):
  calls = []
  chosen = blocks.gpu

  def gpu(name, **shape):
    calls.append((name, chosen(name, **shape).keys))
    return chosen(name, **shape)

  monkeypatch.setattr(blocks, 'gpu', gpu)
  tried = [blocks.Tiles(32, keys, 4, 2) for keys in (16, 32)]
  with dispatch.interpret():
    run = autotune._prepare(TOY, kind)
    found = tuned.search([each._asdict() for each in tried], run, 1)
  assert (
    blocks.Tiles(**found.best) in tried
    and found.seconds > 0
    and not found.refused
  )
  assert [keys for name, keys in calls if name == kind][-2:] == [16, 32]


@slow
def test_a_tpus_winners_are_written_and_taken(tmp_path, monkeypatch):
  """As on a TPU, but interpreted: what is fast here means nothing."""
  monkeypatch.setattr(
    autotune, 'candidates', lambda kind: [blocks.TpuTiles(128, 128)]
  )
  monkeypatch.setattr(blocks, '__file__', str(tmp_path / 'blocks.py'))
  with dispatch.interpret(), dispatch.compiling_for('tpu'):
    [(key, job)] = autotune.jobs({'toy': TOY}).items()
    found = tuned.search(job.candidates, job.prepare(), 1)
    tuned.write(tmp_path, tuned.device_kind(), key, found)
  assert found.best == {'rows': 128, 'keys': 128}
  sizes = {'length': 96, 'memory': 96, 'heads': TOY.heads, 'window': TOY.window}
  assert blocks.tpu(head_dim=TOY.head_dim, itemsize=2, **sizes) == (128, 128)


def test_candidates_of_every_kernel_are_blocks_of_its_own():
  for kind in (*autotune.kinds('gpu'), *autotune.kinds('tpu')):
    tried = autotune.candidates(kind)
    assert len(set(tried)) == len(tried) > 1
    with tuned.trying(tried[0]):
      assert tuned.find('', type(tried[0]), '', kind) is tried[0]


@slow
def test_a_contender_that_cannot_run_here_is_named_and_left_out():
  # Interpreted on a CPU, which has one kernel of ours and XLA's attention.
  with dispatch.interpret(), tuned.trying(blocks.Tiles(32, 32, 4, 2)):
    rows = benchmark.measure(bench.subjects('toy', TOY), 1)
  timed = {row.implementation for row in rows if row.seconds}
  assert {'chunked', 'jax xla'} <= timed
  problems = {row.implementation: row.problem for row in rows}
  assert 'cudnn' not in timed and problems['cudnn']

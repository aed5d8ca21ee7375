"""Paged decode against a dense softmax over pages laid side by side.

The oracle gathers and attends with numpy in float64, under the dense mask. The
folder's own reference stands beside the kernels as one more implementation.
"""

import functools

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.kernels.visibility_attention import api as attention_api
from kaiju_jax.kernels.visibility_attention import operands
from kaiju_jax.kernels.visibility_attention import reference
from tests.device import checks
from tests.device import decode as shared
from tests.kernels import dense
from tests.kernels import interpreted

_SCALE = shared.SCALE
_ROWS, _LOGICAL, _SLOTS = shared.ROWS, shared.LOGICAL, shared.SLOTS
_POOL, _LENGTH, _K = shared.POOL, shared.LENGTH, shared.K
CASES, CODED = shared.CASES, shared.CODED

_merge = dense.quick_jit(api.merge)

implementations = pytest.mark.parametrize('implementation', api.RUNS_ON)


def _parameters(cases, quick=()):
  """Returns implementations times cases; numba's are those per token."""
  return [
    each
    for each in interpreted.parameters(api.RUNS_ON, cases, quick)
    if each.values[0] != 'numba_cpu' or ', per token' in each.id
  ]


_KINDS = {'all, per token': True, 'floats': False}
kernels = pytest.mark.parametrize(
  'implementation', ['pallas_gpu', 'pallas_tpu']
)


def _sizes(implementation, keys=16, splits=2):
  """Small tiles, so that there are several."""
  R = {'pallas_gpu': 16, 'pallas_tpu': 32}.get(implementation, 8)
  return blocks.Sizes(R, keys, splits)


@functools.partial(jax.jit, static_argnames=('window', 'sinks'))
def _jitted_plan(table_BN, visibility, **seen):
  return api.make_plan(table_BN, *visibility, pages=_POOL, **seen)


def _plan(case):
  seen = {'window': case.window, 'sinks': case.sinks}
  return _jitted_plan(case.table_BN, case.visibility, **seen)


@functools.cache
def _jitted(implementation, window, sinks, sizes, dtype):
  """One function for all cases that differ in arrays alone."""

  @dense.quick_jit
  def run(arrays, table_BN, visibility, options):
    return api.decode(
      *arrays,
      table_BN,
      *visibility,
      window=window,
      sinks=sinks,
      scale=_SCALE,
      sizes=sizes,
      dtype=dtype,
      implementation=implementation,
      **options,
    )

  return run


def _draw(case, implementation, level=None):
  """Returns a case, operands, their scales, and the floats they stand for.

  Where numba decodes they are codes, and pages have twice as many slots.
  """
  is_coded = implementation == 'numba_cpu'
  if is_coded:
    case = case._replace(table_BN=case.table_BN[:, 1::2])
  arrays = shared.operands(case)
  if level is not None:
    arrays = checks.at_level(arrays, level, _SCALE)
  if not is_coded:
    return case, arrays, {}, arrays
  codes, scales, values = checks.encode(arrays)
  return case, codes, scales | {'dtype': jnp.float32}, values


def _decode(case, implementation, arrays, *, sizes=None, dtype=None, **options):
  if implementation == 'numba_cpu' and not dispatch.numba_cpu(api.__package__):
    pytest.skip('needs the extra cpu and an x86 CPU with AVX2')
  sizes = sizes or _sizes(implementation)
  if interpreted.is_interpreted(implementation):
    # With the plan given, one compiled kernel serves whatever it lists.
    options.setdefault('plan', _plan(case))
  run = _jitted(implementation, case.window, case.sinks, sizes, dtype)
  with dispatch.interpret():
    return run(arrays, case.table_BN, case.visibility, options)


def _gather(case, pool):
  x = pool[np.clip(case.table_BN, 0, _POOL - 1)]
  return x.reshape(len(x), -1, *pool.shape[2:])


def _oracle(case, q_BLHK, k_PSK, v_PSK):
  """out and lse of the gathered pages; zero where a query sees nothing."""
  k_BMK, v_BMK = _gather(case, k_PSK), _gather(case, v_PSK)
  return dense.attend(shared.mask(case), q_BLHK, k_BMK, v_BMK, _SCALE)


def _close(actual, expected, tolerance=2e-5):
  """Absolute error against the largest value of each tensor."""
  for a, e in zip(actual, expected, strict=True):
    assert a.shape == e.shape
    error = np.abs(np.float64(a) - np.float64(e)).max()
    assert error <= tolerance * max(1, np.abs(np.float64(e)).max())


# The quick ones share a compiled kernel. The others differ in the plan alone,
# in the number of heads, or in a window: with it, codes are quick tests.
@pytest.mark.versions
@pytest.mark.parametrize(
  ('implementation', 'case'),
  interpreted.parameters(
    api.RUNS_ON,
    CASES,
    quick=('several lengths', 'shared pages', 'absent pages'),
  ),
)
def test_output_and_lse(implementation, case):
  for level in None, *checks.LEVELS:
    drawn, arrays, scales, values = _draw(case, implementation, level)
    results = _decode(drawn, implementation, arrays, **scales)
    tolerance = 2e-5 if level is None else 1e-4
    _close(results, _oracle(drawn, *values), tolerance)


@pytest.mark.parametrize('name', ['absent pages', 'beams, window'])
def test_the_definition_is_visibility_attention_over_gathered_pages(name):
  case = CASES[name]
  q_BLHK, k_PSK, v_PSK = shared.operands(case)
  start_BM, limit_BM, *rest = case.visibility
  limit_BM = np.where(shared.present(case), limit_BM, start_BM)
  attend = dense.quick_jit(
    functools.partial(
      reference.forward, window=case.window, scale=_SCALE, dtype=jnp.float32
    )
  )
  expected = attend(
    q_BLHK,
    _gather(case, k_PSK),
    _gather(case, v_PSK),
    operands.Ranges(start_BM, limit_BM, *rest),
    operands.Scales(),
  )
  _close(_decode(case, 'reference', (q_BLHK, k_PSK, v_PSK)), expected, 1e-6)


@implementations
def test_a_row_that_sees_nothing_is_zero(implementation):
  case, arrays, scales, _ = _draw(CASES['absent pages'], implementation)
  sees_B = shared.mask(case).any(axis=(1, 2))
  assert sees_B.tolist() == [True, False, True]
  out_BLHK, lse_BLH = _decode(case, implementation, arrays, **scales)
  np.testing.assert_array_equal(out_BLHK[1], 0)
  np.testing.assert_array_equal(lse_BLH[1], 0)


@pytest.mark.slow
@kernels
def test_splits_do_not_change_the_result(implementation):
  case = CASES['beams']
  arrays = shared.operands(case)
  two, five = (
    _decode(
      case,
      implementation,
      arrays,
      sizes=_sizes(implementation, splits=splits),
    )
    for splits in (2, 5)
  )
  _close(two, five, 1e-6)


@pytest.mark.parametrize(
  ('implementation', 'slots', 'keys'),
  [
    pytest.param('pallas_gpu', 32, 16, marks=pytest.mark.slow),
    pytest.param('pallas_gpu', 8, 32, marks=pytest.mark.slow),
    pytest.param('pallas_tpu', 8, 40, marks=pytest.mark.slow),
    ('xla', 8, 40),
  ],
)
def test_tiles_of_other_sizes_than_pages(implementation, slots, keys):
  case = CASES['several queries, window']
  case = case._replace(
    table_BN=shared.pages(4, _LENGTH // slots).astype(np.int32)
  )
  arrays = shared.operands(case)
  sizes = _sizes(implementation, keys)
  results = _decode(case, implementation, arrays, sizes=sizes)
  _close(results, _oracle(case, *arrays))


@pytest.mark.parametrize(
  ('implementation', 'q_codes', 'per'),
  _parameters(
    {
      'all, per token': (True, 'token'),
      'keys, per token': (False, 'token'),
      'all, per channel': (True, 'channel'),
    },
    quick=('all, per token',),
  ),
)
def test_codes(implementation, q_codes, per):
  case = CODED
  drawn = [(*shared.draw_codes(case, q_codes, per), 2e-5)]
  if q_codes and per == 'token':
    floats = shared.operands(case)
    for level in checks.LEVELS:
      far = checks.at_level(floats, level, _SCALE)
      drawn.append((*checks.encode(far), 1e-4))
  for arrays, scales, values, tolerance in drawn:
    results = _decode(
      case,
      implementation,
      arrays,
      sizes=_sizes(implementation, 32),
      dtype=jnp.float32,
      **scales,
    )
    _close(results, _oracle(case, *values), tolerance)


@pytest.mark.parametrize(('implementation', 'coded'), _parameters(_KINDS))
def test_half_precision(implementation, coded):
  case, sizes, scales = CODED, _sizes(implementation, 32), {}
  arrays = [jnp.asarray(x, jnp.bfloat16) for x in shared.operands(case)]
  values = [np.float32(x) for x in arrays]
  if coded:
    arrays, scales, values = shared.draw_codes(case, True, 'token')
  out_BLHK, lse_BLH = _decode(
    case, implementation, arrays, sizes=sizes, **scales
  )
  assert out_BLHK.dtype == jnp.bfloat16
  expected_BLHK, expected_BLH = _oracle(case, *values)
  # Weights, values and output each keep eight bits; logits keep them all.
  _close([out_BLHK], [expected_BLHK], 2**-7)
  _close([lse_BLH], [expected_BLH], 2e-5 if coded else 2**-7)


@pytest.mark.parametrize(
  ('implementation', 'coded'), _parameters(_KINDS, quick=_KINDS)
)
def test_what_unseen_slots_and_foreign_pages_hold_does_not_matter(
  implementation, coded
):
  case = CODED if coded else CASES['shared pages']
  (q, k, v), options = shared.operands(case), {}
  if coded:
    (q, k, v), options, _ = shared.draw_codes(case, True, 'token')
    options |= {'sizes': _sizes(implementation, 32), 'dtype': jnp.float32}
  clean = _decode(case, implementation, (q, k, v), **options)
  seen_PS = shared.find_seen(case)
  # Some slots of visited pages are unseen.
  assert 0 < seen_PS[seen_PS.any(axis=1)].mean() < 0.9
  garbage = np.int8(77) if coded else np.float32(np.nan)
  k, v = (np.where(seen_PS[..., None], x, garbage) for x in (k, v))
  if coded:
    for name in 'k_scale', 'v_scale':
      options[name] = np.where(seen_PS, options[name], np.float32(np.nan))
  dirty = _decode(case, implementation, (q, k, v), **options)
  for a, e in zip(dirty, clean):
    np.testing.assert_array_equal(a, e)


@implementations
def test_a_nan_among_visible_keys_is_not_taken_for_blindness(implementation):
  case, (q, k, v), scales, _ = _draw(CASES['several lengths'], implementation)
  clean = _decode(case, implementation, (q, k, v), **scales)
  held = scales['k_scale'] if scales else k
  held[case.table_BN[2, 3], 1] = np.nan
  for a, e in zip(_decode(case, implementation, (q, k, v), **scales), clean):
    assert np.isnan(a[2]).all()
    np.testing.assert_array_equal(a[:2], e[:2])


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_a_plan_holds_the_pages_with_a_visible_slot_and_no_other(case):
  plan = _plan(case)
  dense_BLNS = shared.mask(case).reshape(
    *shared.mask(case).shape[:2], _LOGICAL, _SLOTS
  )
  for row in range(_ROWS):
    seen_NS = dense_BLNS[row].any(axis=0)
    whole_N = dense_BLNS[row].all(axis=(0, 2))
    visited = np.flatnonzero(seen_NS.any(axis=1))
    expected = sorted(visited, key=lambda n: (not whole_N[n], n))
    count = int(plan.count_B[row])
    assert plan.logical_BN[row, :count].tolist() == expected
    assert plan.full_B[row] == whole_N.sum()
    pages = case.table_BN[row, expected]
    assert plan.page_BN[row, :count].tolist() == pages.tolist()
    assert set(plan.logical_BN[row, count:].tolist()) <= set(
      expected[-1:] or [0]
    )


def test_a_plan_drawn_out():
  # Pages of two slots; the query is 5, and looks back 4: it sees 2, 3, 4, 5.
  #              absent   0  1    4  5    2  3    6  7    -  3
  table = np.array([[9, 0, 3, 1, 2, 4]])
  position = np.array([[4, 5, 0, 1, 4, 5, 2, 3, 6, 7, 0, 3]])
  limit = np.array([[9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 9]])
  query = np.array([[5]])
  arrays = table, position, limit, query, query, position
  plan = api.make_plan(*(x.astype(np.int32) for x in arrays), pages=5, window=4)
  assert plan.count_B.tolist() == [3]
  assert plan.full_B.tolist() == [2]
  assert plan.logical_BN.tolist() == [[2, 3, 5, 5, 5, 5]]
  assert plan.page_BN.tolist() == [[3, 1, 4, 4, 4, 4]]


@pytest.mark.parametrize('implementation', [*api.RUNS_ON][1:])
def test_only_what_the_plan_lists_is_read(implementation):
  case, arrays, scales, values = _draw(CASES['several lengths'], implementation)
  plan, last = _plan(case), case.table_BN.shape[1] - 1
  assert plan.count_B.tolist() == [1, 1, last + 1]
  # A page of eight slots is all that row 1 sees.
  assert plan.full_B.tolist() == [0, int(last == 7), last]
  run = functools.partial(
    _decode, implementation=implementation, arrays=arrays, **scales
  )
  _close(run(case, plan=plan), _oracle(case, *values))
  # Without the last page of row 2.
  shorter = plan._replace(count_B=plan.count_B - np.array([0, 0, 1], np.int32))
  table_BN = case.table_BN.copy()
  table_BN[2, last] = -1
  expected = _oracle(case._replace(table_BN=table_BN), *values)
  _close(run(case, plan=shorter), expected)
  if implementation != 'xla':
    # Ranges of pages seen whole are not looked at.
    limit_BM = case.visibility.limit_BM.copy()
    limit_BM[2, :48] = 0
    visibility = case.visibility._replace(limit_BM=limit_BM)
    blind = case._replace(visibility=visibility)
    _close(run(blind, plan=plan), _oracle(case, *values))


@pytest.mark.parametrize('name', ['absent pages', 'beams', 'window, one head'])
def test_merge_of_two_parts_of_the_pages(name):
  case = CASES[name]
  arrays = shared.operands(case)
  parts = []
  for side in np.s_[:4], np.s_[4:]:
    table_BN = np.full_like(case.table_BN, -1)
    table_BN[:, side] = case.table_BN[:, side]
    parts += _decode(case._replace(table_BN=table_BN), 'xla', arrays)
  blind = [np.all(lse == 0, axis=(1, 2)) for lse in parts[1::2]]
  if name == 'window, one head':
    assert blind[0].any() and blind[1].any()
  if name == 'absent pages':
    assert (blind[0] & blind[1]).tolist() == [False, True, False]
  merged = _merge(*parts)
  _close(merged, _oracle(case, *arrays))


def test_merge_with_a_chunk_that_is_not_in_the_pool():
  """A chunk of five tokens behind rows of several lengths, one empty."""
  case = shared.case(shared.pages(), shared.causal([9, 40, 0]), heads=3)
  length_B1 = np.array([[9], [40], [0]], np.int32)
  token_BL = length_B1 + np.arange(5, dtype=np.int32)
  visibility = case.visibility._replace(
    coordinate_BL=token_BL, position_BL=token_BL
  )
  case = case._replace(visibility=visibility, window=12)
  random = np.random.default_rng(5)
  q_BLHK, k_PSK, v_PSK = shared.operands(case)
  k_BLK, v_BLK = random.normal(size=(2, _ROWS, 5, _K)).astype(np.float32)
  limit_BL = np.full_like(token_BL, _LENGTH)
  chunk = token_BL, limit_BL, token_BL, token_BL, token_BL
  attend = dense.quick_jit(
    functools.partial(
      attention_api.forward,
      window=12,
      scale=_SCALE,
      implementation='reference',
    )
  )
  merged = _merge(
    *_decode(case, 'xla', (q_BLHK, k_PSK, v_PSK)),
    *attend(q_BLHK, k_BLK, v_BLK, *chunk),
  )
  beside = [
    np.concatenate([getattr(visibility, name), own], axis=1)
    for name, own in zip(
      ('start_BM', 'limit_BM', 'position_BM'), chunk[:2] + chunk[4:]
    )
  ]
  expected = attend(
    q_BLHK,
    np.concatenate([_gather(case, k_PSK), k_BLK], axis=1),
    np.concatenate([_gather(case, v_PSK), v_BLK], axis=1),
    *beside[:2],
    token_BL,
    token_BL,
    beside[2],
  )
  _close(merged, expected)


def test_merge_of_literals():
  out_a = np.array([[1.0, 0], [4, 4], [0, 0], [0, 0], [8, 0], [8, 0]])
  out_b = np.array([[0.0, 1], [0, 0], [2, 6], [0, 0], [0, 8], [0, 8]])
  log3 = np.log(3)
  lse_a = np.array([log3, -5.0, 0.0, 0.0, -300.0, 300.0])
  lse_b = np.array([0.0, 0.0, -90.0, 0.0, -300.0, -300.0])
  out, lse = _merge(*(np.float32(x) for x in (out_a, lse_a, out_b, lse_b)))
  np.testing.assert_allclose(
    out,
    [[0.75, 0.25], [4.0, 4.0], [2.0, 6.0], [0.0, 0.0], [4.0, 4.0], [8.0, 0.0]],
    rtol=1e-6,
  )
  np.testing.assert_allclose(
    lse, [np.log(4), -5.0, -90.0, 0.0, np.log(2) - 300, 300.0], rtol=1e-6
  )
  for a, b in (np.nan, 1.0), (0.0, np.nan):
    pair = _merge(*(np.float32(x) for x in ([[a]], [a], [[b]], [b])))
    assert all(np.isnan(x).all() for x in pair)


@pytest.mark.versions
@pytest.mark.slow
@kernels
def test_rows_and_heads_on_several_devices(implementation):
  """Rows of a batch over one axis, heads over the other, the pool whole."""
  case = CASES['beams']
  case = case._replace(
    table_BN=case.table_BN[:2],
    visibility=visibility_lib.Visibility(*(x[:2] for x in case.visibility)),
    heads=4,
  )
  arrays = shared.operands(case)
  mesh = jax.make_mesh(
    (2, 2), ('rows', 'heads'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  rows, whole = PartitionSpec('rows'), PartitionSpec()
  heads = PartitionSpec('rows', None, 'heads')

  @dense.quick_jit
  @functools.partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=(heads, whole, whole, *(rows,) * 6),
    out_specs=(heads, heads),
    check_vma=False,
  )
  def run(*arrays):
    return api.decode(
      *arrays,
      window=case.window,
      scale=_SCALE,
      sizes=_sizes(implementation),
      implementation=implementation,
    )

  with dispatch.interpret():
    results = run(*arrays, case.table_BN, *case.visibility)
  _close(results, _oracle(case, *arrays))


@pytest.mark.slow
def test_copies_of_pages_do_not_race(monkeypatch, capfd):
  """A TPU's memories simulated: no buffer is read before its copy is there."""
  parameters = pltpu.InterpretParams(
    detect_races=True,
    dma_execution_mode='on_wait',
    uninitialized_memory='nan',
    out_of_bounds_reads='raise',
  )
  monkeypatch.setattr(dispatch, 'interpreting', lambda: parameters)
  case = CASES['absent pages']
  case = case._replace(table_BN=shared.ABSENT[[1, 0, 2]].astype(np.int32))
  arrays = shared.operands(case)
  results = dense.quick_jit(
    functools.partial(
      api.decode,
      window=None,
      scale=_SCALE,
      sizes=_sizes('pallas_tpu'),
      implementation='pallas_tpu',
    )
  )(*arrays, case.table_BN, *case.visibility)
  _close(results, _oracle(case, *arrays))
  assert 'RACE DETECTED' not in capfd.readouterr().out

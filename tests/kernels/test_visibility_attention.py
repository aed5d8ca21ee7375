"""Every implementation against one oracle: a dense softmax in float32.

The oracle's own forward pass is `jax.nn.dot_product_attention` with the dense
mask; its lse is numpy's in float64.
"""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks

_SCALE = 0.3
_TILES = blocks.Tiles(rows=32, keys=32, warps=4, stages=2)


# Interpreters of their own, and tests: Mosaic GPU's and Triton's.
_ELSEWHERE = 'mosaic_gpu', 'triton_kernel'


@pytest.fixture(params=[x for x in api.RUNS_ON if x not in _ELSEWHERE])
def implementation(request):
  """Each of them; those of another platform are interpreted, in small tiles."""
  with dispatch.interpreted(), blocks.trying(_TILES):
    yield request.param


class Case(NamedTuple):
  """A mask and the shape of the heads that look through it."""

  visibility: visibility_lib.Visibility
  window: int | None
  heads: int
  head_dim: int = 8


def _slots(queries, slots, seed):
  """Queries that are not the keys: a shuffled cache with empty slots."""
  random = np.random.default_rng(seed)
  position_M = random.permutation(slots)
  coordinate_L = np.sort(random.integers(0, slots, queries))
  empty_M = random.random(slots) < 0.3
  fields = (
    position_M,
    np.where(empty_M, position_M, slots),
    coordinate_L,
    coordinate_L,
    position_M,
  )
  return visibility_lib.Visibility(
    *(field.astype(np.int32)[None] for field in fields)
  )


_TREE = [-1, *range(60), 20, *range(61, 120), 90, *range(121, 140), -1, 141]
_TREE_BESIDE_SPAN = visibility_lib.side_by_side(
  [visibility_lib.tree(_TREE), visibility_lib.bidirectional(70, [(10, 60)])],
  220,
)

# Cases of the same shape and window share a compiled function.
CASES = {
  'causal': Case(visibility_lib.causal(220), None, 2),
  'window': Case(visibility_lib.causal(220), 24, 2),
  'less than a block, window longer than the row': Case(
    visibility_lib.causal(11), 999, 2
  ),
  'window of one, one head, odd length': Case(visibility_lib.causal(137), 1, 1),
  'packed rows with padding, window': Case(
    visibility_lib.concatenate(
      [
        visibility_lib.documents([50, 3, 77], 190),
        visibility_lib.documents([190], 190),
        visibility_lib.documents([], 190),
      ]
    ),
    33,
    3,
  ),
  'tree beside a span': Case(_TREE_BESIDE_SPAN, None, 2),
  'tree beside a span, window': Case(_TREE_BESIDE_SPAN, 24, 2),
  'many heads': Case(visibility_lib.causal(41), None, 96),
  'few queries, many slots': Case(_slots(5, 300, seed=1), None, 3),
  'many queries, few slots, window': Case(_slots(300, 70, seed=2), 9, 1),
}


def _one_ahead(length):
  """Queries that stand one coordinate after the key of the same index."""
  visibility = visibility_lib.causal(length + 1)
  return visibility._replace(
    **{
      name: getattr(visibility, name)[:, :-1]
      for name in ('start_BM', 'limit_BM', 'position_BM')
    },
    **{
      name: getattr(visibility, name)[:, 1:]
      for name in ('coordinate_BL', 'position_BL')
    },
  )


# With blocks of 32, one visible pair lies just inside each kind of bound, and
# no list is so long that the others reach the block anyhow.
EDGES = {
  'a key starts at the last query of a block': Case(_one_ahead(128), 33, 1),
  'a key ends after the first query of a block': Case(
    visibility_lib.documents([33, 32, 32, 31], 128), None, 1
  ),
  'a window ends at the last key of a block': Case(
    visibility_lib.causal(128), 34, 1
  ),
}

cases = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


def _operands(case, seed=0):
  """Normal q, k, v; queries and keys large enough for a sharp softmax."""
  random = np.random.default_rng(seed)
  B, M = case.visibility.start_BM.shape
  L = case.visibility.coordinate_BL.shape[1]
  shapes = (
    (L, case.heads, case.head_dim),
    (M, case.head_dim),
    (M, case.head_dim),
  )
  return [
    random.normal(size=(B, *s), scale=2).astype(np.float32) for s in shapes
  ]


def _cotangents(case, seed=1):
  random = np.random.default_rng(seed)
  B, L = case.visibility.coordinate_BL.shape
  dout_BLHK = random.normal(size=(B, L, case.heads, case.head_dim))
  dlse_BLH = random.normal(size=(B, L, case.heads))
  return dout_BLHK.astype(np.float32), dlse_BLH.astype(np.float32)


def _masks(case):
  dense_BLM = visibility_lib.as_dense(case.visibility, case.window)
  return dense_BLM, dense_BLM.any(axis=-1)


@jax.jit
def _jax_attention(q_BLHK, k_BMK, v_BMK, dense_BLM):
  return jax.nn.dot_product_attention(
    q_BLHK,
    k_BMK[:, :, None],
    v_BMK[:, :, None],
    mask=dense_BLM[:, None],
    scale=_SCALE,
    implementation='xla',
  )


def _oracle(case, q_BLHK, k_BMK, v_BMK):
  """out by jax.nn, lse by numpy; zero where a query sees nothing."""
  dense_BLM, sees_BL = _masks(case)
  out_BLHK = _jax_attention(q_BLHK, k_BMK, v_BMK, dense_BLM)
  logits_BLHM = _SCALE * np.einsum(
    'BLHK,BMK->BLHM', np.float64(q_BLHK), np.float64(k_BMK)
  )
  logits_BLHM = np.where(dense_BLM[:, :, None], logits_BLHM, -np.inf)
  lse_BLH = np.logaddexp.reduce(logits_BLHM, axis=-1)
  return (
    np.where(sees_BL[..., None, None], out_BLHK, 0),
    np.where(sees_BL[..., None], lse_BLH, 0),
  )


@jax.jit
def _dense_gradients(operands, dense_BLM, dout_BLHK, dlse_BLH):
  """Gradients of an independent dense softmax; every query must see a key."""

  def dense(q_BLHK, k_BMK, v_BMK):
    logits_BLHM = _SCALE * jnp.einsum('BLHK,BMK->BLHM', q_BLHK, k_BMK)
    logits_BLHM = jnp.where(dense_BLM[:, :, None], logits_BLHM, -jnp.inf)
    out_BLHK = jnp.einsum('BLHM,BMK->BLHK', jax.nn.softmax(logits_BLHM), v_BMK)
    return out_BLHK, jax.nn.logsumexp(logits_BLHM, axis=-1)

  return jax.vjp(dense, *operands)[1]((dout_BLHK, dlse_BLH))


def _oracle_gradients(case, operands, dout_BLHK, dlse_BLH):
  """Gradients by q, k, v. Blind queries see all there, and count nothing."""
  dense_BLM, sees_BL = _masks(case)
  return _dense_gradients(
    operands,
    dense_BLM | ~sees_BL[..., None],
    np.where(sees_BL[..., None, None], dout_BLHK, 0),
    np.where(sees_BL[..., None], dlse_BLH, 0),
  )


def _attend(case, implementation, *operands):
  return api.attention(
    *operands,
    *case.visibility,
    window=case.window,
    scale=_SCALE,
    implementation=implementation,
  )


@functools.cache
def _runner(window, implementation):
  """Compiled once for each shape; `implementation`'s fixture is around it."""

  @jax.jit
  def run(visibility, operands, cotangents):
    case = Case(visibility, window, heads=0)
    results, pull = jax.vjp(
      lambda *operands: _attend(case, implementation, *operands), *operands
    )
    return results, pull(cotangents)

  return run


def _attend_and_pull(case, implementation, operands, cotangents):
  run = _runner(case.window, implementation)
  return run(case.visibility, operands, cotangents)


def _close(actual, expected, tolerance=2e-5):
  """Absolute error against the largest value of each tensor."""
  for a, e in zip(actual, expected, strict=True):
    assert a.shape == e.shape
    error = np.abs(np.float64(a) - np.float64(e)).max()
    assert error <= tolerance * max(1, np.abs(e).max())


@cases
def test_output_lse_and_gradients(implementation, case):
  operands, cotangents = _operands(case), _cotangents(case)
  results, gradients = _attend_and_pull(
    case, implementation, operands, cotangents
  )
  _close(results, _oracle(case, *operands))
  _close(gradients, _oracle_gradients(case, operands, *cotangents))


@pytest.mark.parametrize('case', EDGES.values(), ids=EDGES)
def test_edges_of_blocks(implementation, case):
  assert blocks.sizes(128, 128, case.heads, case.window)[:2] == (32, 32)
  test_output_lse_and_gradients(implementation, case)


def test_lse_alone_has_a_gradient(implementation):
  case = CASES['packed rows with padding, window']
  operands, (dout_BLHK, dlse_BLH) = _operands(case), _cotangents(case)
  cotangents = np.zeros_like(dout_BLHK), dlse_BLH
  _, (dq, dk, dv) = _attend_and_pull(case, implementation, operands, cotangents)
  expected = _oracle_gradients(case, operands, *cotangents)
  _close((dq, dk), expected[:2])
  assert np.abs(dq).max() > 0.1 and np.abs(dk).max() > 0.1
  assert not np.any(dv)


def test_a_query_that_sees_nothing_is_zero_and_has_no_gradient(implementation):
  case = CASES['packed rows with padding, window']
  _, sees_BL = _masks(case)
  assert 0 < (~sees_BL).sum() < sees_BL.size and not sees_BL[2].any()
  operands = _operands(case)
  dout_BLHK, dlse_BLH = _cotangents(case)
  (out_BLHK, lse_BLH), gradients = _attend_and_pull(
    case,
    implementation,
    operands,
    # Only blind queries have a cotangent, so nothing may have a gradient.
    (
      np.where(sees_BL[..., None, None], 0, dout_BLHK),
      np.where(sees_BL[..., None], 0, dlse_BLH),
    ),
  )
  assert not out_BLHK[~sees_BL].any() and not lse_BLH[~sees_BL].any()
  for gradient in gradients:
    np.testing.assert_array_equal(gradient, 0)


def _codes(random, shape):
  return random.integers(-127, 128, shape).astype(np.int8)


def _coded(case, q_codes, per, seed=3):
  """Random codes and scales, and the float32 values that they stand for."""
  random = np.random.default_rng(seed)
  q, k, v = _operands(case)
  B, M, K = k.shape
  k, v = _codes(random, k.shape), _codes(random, v.shape)
  shape = (B, M) if per == 'token' else (K,)
  scales = {
    'k_scale': random.uniform(0.01, 0.03, shape).astype(np.float32),
    'v_scale': random.uniform(0.01, 0.03, shape).astype(np.float32),
    'q_scale_BLH': None,
  }

  def spread(scale):
    return scale[..., None] if per == 'token' else scale[None, None]

  values = [q, k * spread(scales['k_scale']), v * spread(scales['v_scale'])]
  if q_codes:
    q = _codes(random, q.shape)
    q_scale_BLH = random.uniform(0.01, 0.03, q.shape[:-1]).astype(np.float32)
    scales['q_scale_BLH'] = q_scale_BLH
    values[0] = q * q_scale_BLH[..., None]
  return (q, k, v), scales, values


@pytest.mark.parametrize(
  ('q_codes', 'per', 'case_name'),
  [
    (True, 'token', 'packed rows with padding, window'),
    (True, 'channel', 'packed rows with padding, window'),
    (False, 'token', 'few queries, many slots'),
  ],
)
def test_codes_mean_what_they_stand_for(
  implementation, q_codes, per, case_name
):
  case = CASES[case_name]
  arrays, scales, values = _coded(case, q_codes, per)
  cotangents = _cotangents(case)
  keywords = {
    'window': case.window,
    'scale': _SCALE,
    'implementation': implementation,
    **scales,
  }

  @jax.jit
  def run(arrays):
    results = api.forward(
      *arrays, *case.visibility, dtype=jnp.float32, **keywords
    )
    return results, api.backward(
      *arrays, *case.visibility, *results, *cotangents, **keywords
    )

  results, gradients = run(arrays)
  _close(results, _oracle(case, *values))
  _close(gradients, _oracle_gradients(case, values, *cotangents), 5e-5)


@pytest.mark.parametrize('scale', [-0.3, 0])
@pytest.mark.parametrize('coded', [True, False])
def test_any_scale_of_logits_and_queries_of_zeros(implementation, scale, coded):
  case = CASES['few queries, many slots']
  arrays, scales, _ = _coded(case, q_codes=True, per='token')
  scales['q_scale_BLH'][:, 2:] = 0
  if not coded:
    arrays, scales = _operands(case), {}

  def forward(name, scale):
    return api.forward(
      *arrays,
      *case.visibility,
      window=case.window,
      scale=scale,
      dtype=jnp.float32,
      implementation=name,
      **scales,
    )

  results = jax.jit(forward, static_argnums=(0, 1))(implementation, scale)
  _close(results, forward('reference', scale))


def test_values_may_become_floats_before_the_kernel():
  case = CASES['packed rows with padding, window']
  arrays, scales, _ = _coded(case, q_codes=True, per='token')
  keywords = {'window': case.window, 'scale': _SCALE, 'dtype': jnp.float32}

  def forward(first):
    with (
      dispatch.interpreted(),
      blocks.trying(_TILES),
      blocks.trying(blocks.Values(first)),
    ):
      run = jax.jit(
        lambda arrays: api.forward(
          *arrays,
          *case.visibility,
          implementation='pallas_gpu',
          **keywords,
          **scales,
        )
      )
      return run(arrays), run.lower(arrays).as_text()

  before, text_before = forward(True)
  within, text_within = forward(False)
  _close(before, within)
  assert text_before != text_within


def test_codes_meet_in_an_integer_dot(implementation):
  case = CASES['window']
  arrays, scales, _ = _coded(case, q_codes=True, per='token')

  def forward(arrays, scales):
    return api.forward(
      *arrays,
      *case.visibility,
      window=case.window,
      scale=_SCALE,
      implementation=implementation,
      **scales,
    )

  lowered = jax.jit(forward).lower(arrays, scales)
  text = lowered.as_text()
  dots = re.findall(r'dot_general.*: (\(.*)', text)
  kinds = {'·'.join(re.findall(r'x(i8|i32|f32|bf16)>', dot)) for dot in dots}
  # Values are codes too, so PV is in bfloat16 and its sum in float32.
  assert kinds == {'i8·i8·i32', 'bf16·bf16·f32'}
  assert lowered.out_info[0].dtype == jnp.bfloat16


def test_bfloat16(implementation):
  case = CASES['packed rows with padding, window']
  operands = [jnp.bfloat16(x) for x in _operands(case)]
  rounded = [np.float32(x) for x in operands]
  dout_BLHK, dlse_BLH = _cotangents(case)
  dout_BLHK = jnp.bfloat16(dout_BLHK)
  results, gradients = _attend_and_pull(
    case, implementation, operands, (dout_BLHK, dlse_BLH)
  )
  assert [x.dtype for x in (*results, *gradients)] == [
    *(jnp.bfloat16, jnp.float32),
    *(jnp.bfloat16,) * 3,
  ]
  _close(results, _oracle(case, *rounded), 0.01)
  expected = _oracle_gradients(case, rounded, np.float32(dout_BLHK), dlse_BLH)
  _close(gradients, expected, 0.02)


def test_inside_scan_checkpoint_and_shard_map(implementation):
  rows = [visibility_lib.documents([30, 60], 96), visibility_lib.causal(96)]
  case = Case(visibility_lib.concatenate(rows * 4), 20, 2)

  def gradients(visibility, *operands):
    local = case._replace(visibility=visibility)

    def loss(x_BLHK, k_BMK, v_BMK):
      def layer(x_BLHK, _):
        out_BLHK, lse_BLH = _attend(local, implementation, x_BLHK, k_BMK, v_BMK)
        return x_BLHK + out_BLHK, lse_BLH

      x_BLHK, lse_NBLH = jax.lax.scan(
        jax.checkpoint(layer), x_BLHK, None, length=2
      )
      return jnp.sum(x_BLHK**2) + jnp.sum(jnp.sin(lse_NBLH))

    return jax.grad(loss, argnums=(0, 1, 2))(*operands)

  mesh = jax.make_mesh(
    (8,), ('fsdp',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  split = PartitionSpec('fsdp')
  sharded = jax.shard_map(
    gradients,
    mesh=mesh,
    in_specs=split,
    out_specs=split,
    # What varies over a mesh is not tracked through a Pallas kernel.
    check_vma=not implementation.startswith('pallas'),
  )
  arguments = case.visibility, *_operands(case)
  _close(jax.jit(sharded)(*arguments), jax.jit(gradients)(*arguments))


def _largest_array(implementation, length):
  """Elements of the largest array that the compiled op and gradient hold."""
  case = Case(visibility_lib.causal(length), None, 2, head_dim=16)
  operands, cotangents = _operands(case), _cotangents(case)

  def run(operands, cotangents):
    results, pull = jax.vjp(
      lambda *operands: _attend(case, implementation, *operands), *operands
    )
    return results, pull(cotangents)

  text = jax.jit(run).lower(operands, cotangents).compile().as_text()
  return max(
    np.prod([int(size) for size in shape.split(',')])
    for shape in re.findall(r'\b[a-z]+[0-9]*\[([0-9,]+)\]', text)
  )


def test_chunked_never_holds_queries_by_keys():
  length = 2048
  assert _largest_array('reference', length) >= length**2
  assert _largest_array('chunked', length) < length**2 / 4


@pytest.mark.parametrize('name', ['chunked', 'pallas_gpu'])
def test_what_no_query_of_a_block_sees_is_skipped(name):
  case = Case(visibility_lib.causal(512), 32, 1)
  q_BLHK, k_BMK, v_BMK = _operands(case)
  # Zero weight times NaN is NaN: finite outputs never met these values.
  v_BMK[:, 192:256] = np.nan
  with dispatch.interpreted(), blocks.trying(_TILES):
    out_BLHK, _ = _attend(case, name, q_BLHK, k_BMK, v_BMK)
  finite_L = np.isfinite(out_BLHK).all(axis=(0, 2, 3))
  sees_L = visibility_lib.as_dense(case.visibility, 32)[0, :, 192:256].any(1)
  assert not finite_L[sees_L].any()
  assert blocks.sizes(512, 512, 1, 32)[:2] == _TILES[:2] == (32, 32)
  assert finite_L[: 192 - 64].all() and finite_L[256 + 32 + 64 :].all()


def test_without_a_name_the_platform_chooses():
  assert blocks.implementation('gpu', 4096, 4096, 128) == 'pallas_gpu'
  assert blocks.implementation('gpu', 4096, 4096, 512) == 'chunked'
  assert blocks.implementation('cpu', 4096, 4096, 128) == 'chunked'
  assert blocks.implementation('cpu', 64, 64, 128) == 'reference'


@pytest.mark.parametrize('kind', blocks.GPU_KINDS)
@pytest.mark.parametrize('rows', [1, 12, 100, 65536])
@pytest.mark.parametrize('memory', [1, 40, 32768])
@pytest.mark.parametrize('width', [(64, 2), (128, 2), (256, 2), (256, 4)])
def test_gpu_tiles_are_powers_of_two_about_the_shape(kind, rows, memory, width):
  tiles = blocks.gpu(
    kind,
    rows=rows,
    memory=memory,
    window=None,
    head_dim=width[0],
    itemsize=width[1],
    integer_dot=False,
  )
  for size, total in (tiles.rows, rows), (tiles.keys, memory):
    assert size >= 16 and size & (size - 1) == 0
    assert size < max(17, 2 * total)


@pytest.mark.parametrize('length', [1, 7, 64, 65, 130, 511, 8192])
@pytest.mark.parametrize('window', [None, 1, 24, 256, 4096])
def test_block_sizes_cover_a_length_with_little_to_spare(length, window):
  sizes = blocks.sizes(length, 2 * length, 4, window)
  for size, total in (sizes.I, length), (sizes.J, 2 * length):
    count = -(-total // size)
    assert 1 <= size <= 256
    assert count * size - total < 8 * count
  assert sizes.Z >= 1


def _arguments(**changes):
  case = Case(visibility_lib.causal(6), None, 2)
  q_BLHK, k_BMK, v_BMK = _operands(case)
  arguments = {'q_BLHK': q_BLHK, 'k_BMK': k_BMK, 'v_BMK': v_BMK}
  arguments |= case.visibility._asdict()
  return arguments | {'window': None, 'scale': 1.0} | changes


_INT8 = np.zeros((1, 6, 8), np.int8)
_FLOAT = np.ones((1, 6, 8), np.float32)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'q_BLHK': _FLOAT}, r'q_BLHK has shape \(1, 6, 8\): expected 4 dims'),
    ({'v_BMK': _FLOAT[:, :5]}, r'v_BMK.*\(1, 5, 8\): expected \(1, 6, 8\)'),
    ({'k_BMK': _FLOAT[..., :4]}, r'k_BMK.*\(1, 6, 4\): expected \(1, 6, 8\)'),
    ({'limit_BM': np.zeros((1, 5), np.int32)}, r'limit_BM has shape \(1, 5\)'),
    ({'start_BM': np.zeros((1, 6))}, 'start_BM is float64: expected int32'),
    ({'v_BMK': np.zeros((1, 6, 8), np.int32)}, 'v_BMK is int32.*int8 codes'),
    ({'window': 0}, 'window=0.*at least 1'),
    ({'window': 2.5}, 'float'),
    ({'scale': float('nan')}, 'scale=nan'),
    ({'dtype': np.int32}, 'dtype=int32: expected a float'),
    ({'k_BMK': _FLOAT[:, :0]}, r'k_BMK.*\(1, 0, 8\): expected at least one'),
    ({'scale': np.ones(2)}, 'scale=array'),
    ({'k_BMK': _INT8}, r'k_scale is missing.*\(1, 6\) or \(8,\)'),
    (
      {'k_BMK': _INT8, 'k_scale': np.ones(6, np.float32)},
      r'k_scale has shape \(6,\): expected \(1, 6\) or \(8,\)',
    ),
    (
      {'v_BMK': _INT8, 'v_scale': np.ones(8, np.int32)},
      'v_scale is int32: expected a float',
    ),
    ({'v_scale': np.ones(8, np.float32)}, 'v_scale is given, but v is float32'),
    (
      {'q_scale_BLH': np.ones((1, 6, 2), np.float32)},
      'q_scale_BLH is given, but q is float32',
    ),
    ({'implementation': 'cuda'}, "'cuda' is unknown: cpu runs .*reference"),
    (
      {'implementation': 'pallas_gpu'},
      "'pallas_gpu' runs on gpu: cpu runs reference, chunked",
    ),
  ],
)
def test_bad_arguments_are_named(changes, message):
  with pytest.raises((ValueError, TypeError), match=message):
    api.forward(**_arguments(**changes))


def test_codes_have_no_gradient_of_their_own():
  changes = {'v_BMK': _INT8}
  with pytest.raises(TypeError, match='v_BMK is int8: codes carry no gradient'):
    api.attention(**_arguments(**changes))

"""Every implementation against one oracle: a dense softmax in float32.

The oracle's output and lse are numpy's in float64, and it is itself held to
`jax.nn.dot_product_attention` with the dense mask.
"""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import softmax
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import operands
from tests.device import attention as shared
from tests.device import checks
from tests.kernels import dense
from tests.kernels import interpreted

_TILES = shared.TILES
Case, CASES, SHAPES = shared.Case, shared.CASES, shared.SHAPES
WINDOW = shared.WINDOW

# Mosaic GPU and Triton have interpreters and tests of their own.
_ELSEWHERE = 'mosaic_gpu', 'triton_kernel'
_HERE = [name for name in api.RUNS_ON if name not in _ELSEWHERE]


@pytest.fixture
def small_tiles():
  """Kernels of another platform are interpreted, in small tiles."""
  with dispatch.interpret(), tuned.trying(_TILES):
    yield


@pytest.fixture(params=_HERE)
def implementation(request, small_tiles):
  """Every implementation."""
  return request.param


@pytest.fixture(params=interpreted.parameters(_HERE))
def quick_in_xla(request, small_tiles):
  """Every implementation; those that are interpreted are slow tests."""
  return request.param


def _check(case, implementation):
  """Holds both passes to the oracles, with logits near zero and far from it."""
  cotangents = shared.cotangents(case)
  for level in None, *checks.LEVELS:
    arrays = shared.operands(case)
    if level is not None:
      arrays = shared.at_level(case, level)
    results, gradients = dense.attend_and_pull(
      case, implementation, arrays, cotangents
    )
    # The last digit of 300 is worth as much as that of the weights' logarithm.
    tolerance = 2e-5 if level is None else 2e-4
    dense.close(results, dense.oracle(case, *arrays), tolerance)
    expected = dense.gradients(case, arrays, *cotangents)
    dense.close(gradients, expected, tolerance)


def test_the_oracle_is_jaxs_attention():
  case = WINDOW
  arrays, (dense_BLM, sees_BL) = (
    shared.operands(case),
    dense.masks(case),
  )
  q_BLHK, k_BMK, v_BMK = arrays
  attend = functools.partial(jax.nn.dot_product_attention, scale=dense.SCALE)
  out_BLHK = dense.quick_jit(attend)(
    q_BLHK,
    k_BMK[:, :, None],
    v_BMK[:, :, None],
    mask=dense_BLM[:, None],
  )
  found_BLHK = np.where(sees_BL[..., None, None], out_BLHK, 0)
  dense.close([found_BLHK], dense.oracle(case, *arrays)[:1])


@pytest.mark.versions
@pytest.mark.parametrize(
  ('implementation', 'case'),
  interpreted.parameters(_HERE, CASES, quick=('rows of every kind, window',)),
)
@pytest.mark.usefixtures('small_tiles')
def test_output_lse_and_gradients(implementation, case):
  _check(case, implementation)


@pytest.mark.parametrize(
  'case',
  [
    pytest.param(
      case, id=name, marks=[pytest.mark.slow] * ('slots' not in name)
    )
    for name, case in SHAPES.items()
  ],
)
def test_other_shapes(quick_in_xla, case):
  # The definition has no blocks that a shape could fill in part.
  if quick_in_xla != 'reference':
    _check(case, quick_in_xla)


# Documents of 30, 3 and 37 tokens: sinks within the window, before it, and more
# than it holds.
@pytest.mark.parametrize(
  'sinks', [pytest.param(1, marks=pytest.mark.slow), 4, 40]
)
def test_sinks(quick_in_xla, sinks):
  _check(WINDOW._replace(sinks=sinks), quick_in_xla)


@pytest.mark.parametrize(
  ('length', 'window'),
  [
    *((1, None), (31, 20), (33, None), (37, 20), (65, None)),
    *(
      pytest.param(L, w, marks=pytest.mark.slow)
      for L in (999, 1000, 1030)
      for w in (None, 256)
    ),
  ],
)
def test_lengths_that_are_no_whole_blocks(length, window):
  rows = [
    visibility_lib.causal(length),
    visibility_lib.documents([length - length // 3], length),
  ]
  case = Case(visibility_lib.concatenate(rows), window, 2)
  _check(case, 'chunked')


def test_edges_of_blocks(quick_in_xla):
  assert blocks.sizes(128, 128, 1, shared.EDGE_WINDOW)[:2] == (32, 32)
  for visibility in shared.EDGES.values():
    _check(Case(visibility, shared.EDGE_WINDOW, 1), quick_in_xla)


def test_lse_alone_has_a_gradient(implementation):
  case = WINDOW
  arrays, (dout_BLHK, dlse_BLH) = shared.operands(case), shared.cotangents(case)
  cotangents = np.zeros_like(dout_BLHK), dlse_BLH
  _, (dq, dk, dv) = dense.attend_and_pull(
    case, implementation, arrays, cotangents
  )
  expected = dense.gradients(case, arrays, *cotangents)
  dense.close((dq, dk), expected[:2])
  assert np.abs(dq).max() > 0.1 and np.abs(dk).max() > 0.1
  assert not np.any(dv)


def test_a_sink_logit_is_one_more_key_without_a_value():
  case = WINDOW._replace(window=9, sinks=2)
  (q, k, v), (dout, dlse) = shared.operands(case), shared.cotangents(case)
  dense_BLM, sees_BL = dense.masks(case)
  rows = len(k)
  # Each row has logits of its own, as heads of keys that are folded do.
  logit_BH = np.float32([[-3, 2], [0, 9], [1, 1], [0.5, -40], [4, 70]])

  def sunk(logit_BH):
    """A last key and a last channel of q·k, in which the logit lies."""
    logits = dense.SCALE * np.einsum('BLHK,BMK->BLHM', q, k)
    logits = jnp.where(dense_BLM[:, :, None], logits, -jnp.inf)
    sink = jnp.broadcast_to(logit_BH[:, None, :, None], logits[..., :1].shape)
    logits = jnp.concatenate([logits, sink], axis=-1)
    zero = np.zeros((rows, 1, v.shape[-1]), np.float32)
    out = jnp.einsum(
      'BLHM,BMK->BLHK',
      jax.nn.softmax(logits),
      np.concatenate([v, zero], axis=1),
    )
    lse = jax.nn.logsumexp(logits, axis=-1)
    sees_BL1 = sees_BL[..., None]
    return jnp.where(sees_BL1[..., None], out, 0), jnp.where(sees_BL1, lse, 0)

  def ours(logit_BH):
    results = dense.call(case, 'reference', q, k, v)
    return softmax.add_logit(*results, logit_BH)

  def weighted(attend, logit_BH):
    out, lse = attend(logit_BH)
    return (out * dout).sum() + (lse * dlse).sum(), (out, lse)

  def of(attend):
    run = jax.value_and_grad(functools.partial(weighted, attend), has_aux=True)
    return dense.quick_jit(run)(logit_BH)

  (_, found), slope_BH = of(ours)
  (_, wanted), expected = of(sunk)
  for a, b in zip(found, wanted):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(slope_BH, expected, rtol=1e-4, atol=1e-4)
  assert np.abs(slope_BH[[0, 1, 3], [0, 1, 0]]).min() > 0.01
  # One logit per head is that of every row.
  out, _ = dense.quick_jit(ours)(logit_BH[0])
  np.testing.assert_array_equal(out[0], found[0][0])
  assert not np.allclose(out[1], found[0][1])


def test_a_query_that_sees_nothing_is_zero_and_has_no_gradient(implementation):
  case = WINDOW
  _, sees_BL = dense.masks(case)
  assert 0 < (~sees_BL).sum() < sees_BL.size and not sees_BL[2].any()
  arrays = shared.operands(case)
  dout_BLHK, dlse_BLH = shared.cotangents(case)
  (out_BLHK, lse_BLH), gradients = dense.attend_and_pull(
    case,
    implementation,
    arrays,
    # Only blind queries have a cotangent, so nothing may have a gradient.
    (
      np.where(sees_BL[..., None, None], 0, dout_BLHK),
      np.where(sees_BL[..., None], 0, dlse_BLH),
    ),
  )
  assert not out_BLHK[~sees_BL].any() and not lse_BLH[~sees_BL].any()
  for gradient in gradients:
    np.testing.assert_array_equal(gradient, 0)


_SPOILT = shared.SPOILT


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('where', ['k', 'v'])
def test_what_is_not_finite_reaches_the_queries_that_see_it(
  implementation, where, value
):
  case = WINDOW
  dense_BLM, _ = dense.masks(case)
  (q, k, v), cotangents = shared.operands(case), shared.cotangents(case)
  k[:, _SPOILT] = v[:, _SPOILT] = 0
  (out, lse), (dq, dk, dv) = dense.attend_and_pull(
    case, implementation, (q, k, v), cotangents
  )
  # One number of a key is enough.
  spoilt = {'k': k.copy(), 'v': v.copy()}
  spoilt[where][:, _SPOILT, 3] = value
  found, (found_dq, *found_dkv) = dense.attend_and_pull(
    case, implementation, (q, spoilt['k'], spoilt['v']), cotangents
  )
  spoilt_BL = dense_BLM[:, :, _SPOILT].any(axis=-1)
  assert 0.1 < spoilt_BL.mean() < 0.9
  dense.assert_nan_where((*found, found_dq), (out, lse, dq), spoilt_BL)
  spoilt_BM = (dense_BLM & spoilt_BL[..., None]).any(axis=1)
  assert 0.1 < spoilt_BM.mean() < 0.9
  dense.assert_nan_where(found_dkv, (dk, dv), spoilt_BM)


@pytest.mark.parametrize('where', ['q', 'dout', 'dlse'])
def test_a_spoilt_query_spoils_what_it_sees_alone(implementation, where):
  case = WINDOW
  dense_BLM, sees_BL = dense.masks(case)
  (q, k, v), (dout, dlse) = shared.operands(case), shared.cotangents(case)
  rows = {'q': q, 'dout': dout, 'dlse': dlse}
  for x in rows.values():
    x[:, _SPOILT] = 0

  def run(q, dout, dlse):
    return dense.attend_and_pull(case, implementation, (q, k, v), (dout, dlse))

  results, (dq, dk, dv) = run(**rows)
  # A copy, as the first run may not have read its own yet.
  rows[where] = rows[where].copy()
  rows[where][:, _SPOILT, 1] = np.nan
  found, (found_dq, *found_dkv) = run(**rows)
  spoilt_BLH = np.zeros(dlse.shape, bool)
  spoilt_BLH[:, _SPOILT, 1] = True
  spoilt_BLH &= sees_BL[..., None]
  nothing_BLH = np.zeros_like(spoilt_BLH)
  dense.assert_nan_where(
    found, results, spoilt_BLH if where == 'q' else nothing_BLH
  )
  dense.assert_nan_where([found_dq], [dq], spoilt_BLH)
  seen_BM = (dense_BLM & spoilt_BLH.any(axis=-1)[..., None]).any(axis=1)
  assert 0.1 < seen_BM.mean() < 0.9
  dense.assert_nan_where(found_dkv, (dk, dv), seen_BM)


def _check_codes(case, implementation, q_codes, per):
  arrays, scales, values = shared.draw_codes(case, q_codes, per)
  cotangents = shared.cotangents(case)
  keywords = {
    'window': case.window,
    'scale': dense.SCALE,
    'implementation': implementation,
  }

  @dense.quick_jit
  def run(arrays, scales):
    results = api.forward(
      *arrays, *case.visibility, dtype=jnp.float32, **keywords, **scales
    )
    return results, api.backward(
      *arrays, *case.visibility, *results, *cotangents, **keywords, **scales
    )

  results, gradients = run(arrays, scales)
  dense.close(results, dense.oracle(case, *values))
  dense.close(gradients, dense.gradients(case, values, *cotangents), 5e-5)
  for level in checks.LEVELS if q_codes and per == 'token' else ():
    floats = shared.at_level(case, level)
    far, far_scales, far_values = checks.encode(floats)
    far_results, far_gradients = run(far, far_scales)
    dense.close(far_results, dense.oracle(case, *far_values), 2e-4)
    expected = dense.gradients(case, far_values, *cotangents)
    dense.close(far_gradients, expected, 2e-4)
  if per == 'token':
    # A token of NaN has a scale of NaN.
    dense_BLM, _ = dense.masks(case)
    for name, key in ('k_scale', 10), ('v_scale', 33):
      scale = scales[name].copy()
      scale[:, key] = np.nan
      found, (found_dq, *found_dkv) = run(arrays, scales | {name: scale})
      sees_BL = dense_BLM[:, :, key]
      seen_BM = (dense_BLM & sees_BL[..., None]).any(axis=1)
      dense.assert_nan_where(
        (*found, found_dq), (*results, gradients[0]), sees_BL
      )
      dense.assert_nan_where(found_dkv, gradients[1:], seen_BM)


@pytest.mark.versions
def test_codes_mean_what_they_stand_for(implementation):
  _check_codes(WINDOW, implementation, q_codes=True, per='token')


@pytest.mark.parametrize(
  ('q_codes', 'per', 'case'),
  [
    (True, 'channel', WINDOW),
    (False, 'token', SHAPES['few queries, many slots']),
  ],
)
def test_codes_that_meet_as_floats(quick_in_xla, q_codes, per, case):
  _check_codes(case, quick_in_xla, q_codes, per)


@pytest.mark.parametrize('coded', [True, False])
def test_any_scale_of_logits_and_queries_of_zeros(quick_in_xla, coded):
  implementation = quick_in_xla
  case = Case(shared.slots(5, 70, seed=1), None, 3)
  arrays, scales, _ = shared.draw_codes(case, q_codes=True, per='token')
  scales['q_scale_BLH'][:, 2:] = 0
  if not coded:
    arrays, scales = shared.operands(case), {}

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

  for scale in -0.3, 0:
    run = dense.quick_jit(functools.partial(forward, implementation, scale))
    dense.close(run(), forward('reference', scale))


@pytest.mark.slow
def test_values_may_become_floats_before_the_kernel():
  case = WINDOW
  arrays, scales, _ = shared.draw_codes(case, q_codes=True, per='token')
  keywords = {
    'window': case.window,
    'scale': dense.SCALE,
    'dtype': jnp.float32,
  }

  def forward(first):
    with (
      dispatch.interpret(),
      tuned.trying(_TILES),
      tuned.trying(blocks.Values(first)),
    ):
      run = dense.quick_jit(
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
  dense.close(before, within)
  assert text_before != text_within


def test_codes_meet_in_an_integer_dot(implementation):
  case = WINDOW
  arrays, scales, _ = shared.draw_codes(case, q_codes=True, per='token')

  def forward(arrays, scales):
    return api.forward(
      *arrays,
      *case.visibility,
      window=case.window,
      scale=dense.SCALE,
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


def test_bfloat16(quick_in_xla):
  case = WINDOW
  arrays = [jnp.bfloat16(x) for x in shared.operands(case)]
  rounded = [np.float32(x) for x in arrays]
  dout_BLHK, dlse_BLH = shared.cotangents(case)
  dout_BLHK = jnp.bfloat16(dout_BLHK)
  results, gradients = dense.attend_and_pull(
    case, quick_in_xla, arrays, (dout_BLHK, dlse_BLH)
  )
  assert [x.dtype for x in (*results, *gradients)] == [
    *(jnp.bfloat16, jnp.float32),
    *(jnp.bfloat16,) * 3,
  ]
  dense.close(results, dense.oracle(case, *rounded), 0.01)
  expected = dense.gradients(case, rounded, np.float32(dout_BLHK), dlse_BLH)
  dense.close(gradients, expected, 0.02)


@pytest.mark.versions
@pytest.mark.parametrize(
  'quick_in_xla',
  [pytest.param(n, marks=[pytest.mark.slow] * (n != 'chunked')) for n in _HERE],
  indirect=True,
)
def test_inside_scan_checkpoint_and_shard_map(quick_in_xla):
  rows = [visibility_lib.documents([13, 20], 40), visibility_lib.causal(40)]
  case = Case(visibility_lib.concatenate(rows * 4), 20, 2)

  def gradients(visibility, *arrays):
    local = case._replace(visibility=visibility)

    def loss(x_BLHK, k_BMK, v_BMK):
      def layer(x_BLHK, _):
        out_BLHK, lse_BLH = dense.call(
          local, quick_in_xla, x_BLHK, k_BMK, v_BMK
        )
        return x_BLHK + out_BLHK, lse_BLH

      x_BLHK, lse_NBLH = jax.lax.scan(
        jax.checkpoint(layer), x_BLHK, None, length=2
      )
      return jnp.sum(x_BLHK**2) + jnp.sum(jnp.sin(lse_NBLH))

    return jax.grad(loss, argnums=(0, 1, 2))(*arrays)

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
    check_vma=not interpreted.is_interpreted(quick_in_xla),
  )
  arguments = case.visibility, *shared.operands(case)
  dense.close(
    dense.quick_jit(sharded)(*arguments), dense.quick_jit(gradients)(*arguments)
  )


def _largest_array(implementation, length):
  """Elements of the largest array that the compiled op and gradient hold."""
  case = Case(visibility_lib.causal(length), None, 2, head_dim=16)
  arrays, cotangents = shared.operands(case), shared.cotangents(case)

  def run(arrays, cotangents):
    results, pull = jax.vjp(
      lambda *arrays: dense.call(case, implementation, *arrays), *arrays
    )
    return results, pull(cotangents)

  text = jax.jit(run).lower(arrays, cotangents).compile().as_text()
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
  q_BLHK, k_BMK, v_BMK = shared.operands(case)
  # Zero weight times NaN is NaN, as the module is not guarded against it: what
  # is finite never met these values.
  v_BMK[:, 192:256] = np.nan
  with dispatch.interpret(), tuned.trying(_TILES):
    module = dispatch.choose(api.__package__, name, api.RUNS_ON)
    run = functools.partial(
      module.forward, window=32, scale=dense.SCALE, dtype=jnp.float32
    )
    out_BLHK, _ = dense.quick_jit(run)(
      q_BLHK,
      k_BMK,
      v_BMK,
      operands.Ranges(*case.visibility),
      operands.Scales(),
    )
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
@pytest.mark.parametrize('width', [(64, 2), (128, 2), (256, 2), (256, 4)])
def test_gpu_tiles_are_powers_of_two_about_the_shape(kind, width):
  for rows, memory in itertools.product((1, 12, 100, 65536), (1, 40, 32768)):
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
  q_BLHK, k_BMK, v_BMK = shared.operands(case)
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
    ({'window': 9, 'sinks': -1}, 'sinks=-1 with window=9: .* at least 0'),
    ({'sinks': 1}, 'sinks=1 with window=None: .* 0 without a window'),
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
    ({'v_scale': np.ones(8, np.float32)}, 'v_scale is given, but v_BMK is'),
    (
      {'q_scale_BLH': np.ones((1, 6, 2), np.float32)},
      'q_scale_BLH is given, but q_BLHK is float32',
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


def test_results_are_floats():
  arguments = _arguments()
  out_BLHK, lse_BLH = api.forward(**arguments)
  arguments |= {'out_BLHK': out_BLHK, 'dout_BLHK': out_BLHK.astype(jnp.int8)}
  with pytest.raises(TypeError, match='dout_BLHK is int8'):
    api.backward(**arguments, lse_BLH=lse_BLH, dlse_BLH=lse_BLH)


def test_codes_have_no_gradient_of_their_own():
  changes = {'v_BMK': _INT8}
  with pytest.raises(TypeError, match='v_BMK is int8: codes carry no gradient'):
    api.attention(**_arguments(**changes))

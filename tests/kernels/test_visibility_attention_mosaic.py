"""The Mosaic GPU kernel in JAX's interpreter, against numpy in float64.

JAX 0.10's interpreter compiles each program of a grid anew, for seconds: there
only what needs few of them is tried.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import mosaic_gpu
from kaiju_jax.kernels.visibility_attention import pallas_gpu
from tests.device import attention as shared
from tests.device import checks
from tests.kernels import dense

_SCALE = dense.SCALE
many_programs = pytest.mark.skipif(
  jax.__version_info__ < (0, 12),
  reason='JAX 0.10 compiles each interpreted program anew',
)


@pytest.fixture(autouse=True)
def no_races(capfd):
  """The interpreter says on standard output what was read too early."""
  with dispatch.interpret():
    yield
  assert 'RACE' not in capfd.readouterr().out


def _operands(L, M, H, K, B=1, dtype=jnp.bfloat16, seed=0):
  """q, k, v with logits that make a sharp softmax, as the kernel gets them."""
  random = np.random.default_rng(seed)
  return [
    jnp.asarray(random.normal(size=(B, *shape)) * 2, dtype)
    for shape in ((L, H, K), (M, K), (M, K))
  ]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _forward(arrays, visibility, window, scale, scales=None):
  return api.forward(
    *arrays,
    *visibility,
    window=window,
    scale=scale,
    implementation='mosaic_gpu',
    **(scales or {}),
  )


def _oracle(values, visibility, window, scale):
  seen_BLM = np.asarray(visibility_lib.as_dense(visibility, window))
  return dense.attend(seen_BLM, *values, scale)


def _agree(results, expected, tolerance=0.01):
  """A weight and an output are rounded to bfloat16, lse to float32."""
  out_BLHK, lse_BLH = (np.asarray(x, np.float64) for x in results)
  bound = tolerance * np.abs(expected[0]).max()
  np.testing.assert_allclose(out_BLHK, expected[0], rtol=0, atol=bound)
  np.testing.assert_allclose(lse_BLH, expected[1], rtol=1e-5, atol=1e-4)


def _check(arrays, visibility, window, scale=_SCALE, scales=None, values=None):
  results = _forward(arrays, visibility, window, scale, scales)
  _agree(results, _oracle(values or arrays, visibility, window, scale))
  return results


def _slots(length, queries):
  """A shuffled cache with empty slots, and some of its queries."""
  found = shared.slots(length, length, seed=1)
  return found._replace(
    coordinate_BL=found.coordinate_BL[:, queries],
    position_BL=found.position_BL[:, queries],
  )


# Three blocks of keys, the last one not whole, for a ring of two.
_LENGTH = 290
_TREE = [-1, *range(60), 20, *range(61, 120), 90, *range(121, 140), -1, 141]
MASKS = {
  'causal': visibility_lib.causal(_LENGTH),
  'documents and padding': visibility_lib.documents([130, 3, 77], _LENGTH),
  'a document ends with a block': visibility_lib.documents(
    [128, 128, 34], _LENGTH
  ),
  'nothing at all': visibility_lib.documents([], _LENGTH),
  'a tree beside a span': visibility_lib.side_by_side(
    [visibility_lib.tree(_TREE), visibility_lib.bidirectional(99, [(10, 60)])],
    _LENGTH,
  ),
  'slots': shared.slots(_LENGTH, _LENGTH, seed=1),
}


@pytest.mark.versions
@many_programs
@pytest.mark.parametrize('window', [None, 34])
@pytest.mark.parametrize('mask', MASKS)
def test_masks(mask, window):
  arrays = _operands(_LENGTH, _LENGTH, 1, 72)
  out_BLHK, lse_BLH = _check(arrays, MASKS[mask], window)
  blind_BL = ~visibility_lib.as_dense(MASKS[mask], window).any(axis=-1)
  assert not np.any(np.asarray(out_BLHK, np.float32)[blind_BL])
  assert not np.any(np.asarray(lse_BLH)[blind_BL])


@pytest.mark.slow
def test_one_program():
  """Two whole blocks and one in part, and what lies beyond the window."""
  visibility = _slots(_LENGTH, slice(-25, None))
  arrays = _operands(25, _LENGTH, 5, 72)
  _check(arrays, visibility, 200)
  floats = [np.float32(x) for x in arrays]
  for level in checks.LEVELS:
    far = checks.at_level(floats, level, _SCALE)
    _check([jnp.bfloat16(x) for x in far], visibility, 200)
    codes, scales, values = checks.encode(far)
    _check(codes, visibility, 200, scales=scales, values=values)


@many_programs
@pytest.mark.parametrize(('heads', 'length'), [(5, 137), (12, 50), (96, 9)])
def test_heads_share_a_tile_and_tiles_share_a_list(heads, length):
  rows = [visibility_lib.causal(length), visibility_lib.documents([4], length)]
  visibility = visibility_lib.concatenate(rows)
  _check(_operands(length, length, heads, 64, B=2), visibility, None)


def _coded(L, M, H, K, per, q_codes):
  """Codes and scales, and the float values that they stand for."""
  operands = [np.float32(x) for x in _operands(L, M, H, K)]
  arrays, scales, values = checks.draw_codes(operands, q_codes, per)
  if q_codes:
    # A query of zeros, as some quantizers code it.
    scales['q_scale_BLH'][:, 3] = values[0][:, 3] = 0
    return arrays, scales, values
  del scales['q_scale_BLH']
  return (jnp.bfloat16(arrays[0]), *arrays[1:]), scales, values


@pytest.mark.versions
def test_codes_meet_as_integers():
  arrays, scales, values = _coded(30, 260, 4, 128, 'token', True)
  visibility = _slots(260, slice(99, 129))
  _check(arrays, visibility, 50, scales=scales, values=values)
  text = str(
    jax.make_jaxpr(lambda *arguments: _forward(*arguments, 50, _SCALE, scales))(
      arrays, visibility
    )
  )
  assert 'preferred_element_type=int32' in text


def test_the_backward_pass_is_the_other_kernels():
  assert mosaic_gpu.backward is pallas_gpu.backward


@many_programs
@pytest.mark.parametrize(
  ('per', 'q_codes'), [('channel', True), ('token', False)]
)
def test_codes_that_cannot_meet_are_floats(per, q_codes):
  arrays, scales, values = _coded(40, 40, 3, 64, per, q_codes)
  visibility = visibility_lib.causal(40)
  # Codes become bfloat16, which rounds logits of up to about 30 by 2^-9.
  results = _forward(arrays, visibility, 7, _SCALE, scales)
  out_BLHK, lse_BLH = _oracle(values, visibility, 7, _SCALE)
  bound = 0.05 * np.abs(out_BLHK).max()
  np.testing.assert_allclose(
    np.float32(results[0]), out_BLHK, rtol=0, atol=bound
  )
  np.testing.assert_allclose(results[1], lse_BLH, rtol=0.01, atol=0.02)


@many_programs
@pytest.mark.parametrize('scale', [-_SCALE, 0.0])
def test_any_scale_and_float16(scale):
  visibility = visibility_lib.causal(40)
  _check(_operands(40, 40, 2, 64, dtype=jnp.float16), visibility, 20, scale)
  arrays, scales, values = _coded(40, 40, 3, 64, 'token', True)
  _check(arrays, visibility, 7, scale, scales, values)


@pytest.mark.slow
def test_gradients_are_those_of_the_reference():
  visibility = visibility_lib.causal(32)
  arrays = _operands(32, 32, 2, 64)

  def loss(arrays, implementation):
    out_BLHK, lse_BLH = api.attention(
      *arrays,
      *visibility,
      window=9,
      scale=_SCALE,
      implementation=implementation,
    )
    return jnp.sum(jnp.float32(out_BLHK) ** 2) + jnp.sum(jnp.sin(lse_BLH))

  gradients = [
    jax.jit(jax.grad(loss), static_argnums=1)(arrays, implementation)
    for implementation in ('mosaic_gpu', 'reference')
  ]
  for ours, expected in zip(*gradients):
    expected = np.float32(expected)
    bound = 0.02 * np.abs(expected).max()
    np.testing.assert_allclose(np.float32(ours), expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      {'dtype': jnp.float32},
      'dtype=float32: mosaic_gpu computes in bfloat16 or float16; '
      "implementation='pallas_gpu' takes it",
    ),
    ({'dtype': jnp.float16}, 'q_BLHK is bfloat16: mosaic_gpu takes int8 or'),
    ({'K': 192}, 'q_BLHK has a head size of 192: mosaic_gpu takes at most 128'),
  ],
)
def test_what_it_does_not_take(arguments, message):
  operands = _operands(8, 8, 1, arguments.pop('K', 64))
  with pytest.raises(ValueError, match=message):
    api.forward(
      *operands,
      *visibility_lib.causal(8),
      window=None,
      scale=1.0,
      implementation='mosaic_gpu',
      **arguments,
    )


def test_without_a_name_it_is_never_chosen():
  with dispatch.compiling_for('gpu'):
    for L, M, K in (1, 4096, 128), (4096, 4096, 128), (64, 64, 64):
      q_BLHK = jax.ShapeDtypeStruct((1, L, 12, K), jnp.bfloat16)
      k_BMK = jax.ShapeDtypeStruct((1, M, K), jnp.bfloat16)
      assert api._choose(None, q_BLHK, k_BMK) is not mosaic_gpu

"""Limits that are given, not measured: NaN, ties, cuts, and sums that fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import feedforward
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat

NAN = np.float32(np.nan)


@pytest.mark.parametrize('implementation', ['', 'xla'])
@pytest.mark.parametrize('clamp_hidden', ['weight_rms', 'input_std'])
def test_a_nan_token_leaves_the_feed_forward_as_nan(
  clamp_hidden, implementation
):
  config = model_config.ModelConfig(
    d_model=16,
    d_ff=32,
    quantization=quantization_config.QuantizationConfig(
      clamp_hidden=clamp_hidden, matmul_implementation=implementation
    ),
  )
  rng = np.random.default_rng(0)
  x_BLD = rng.standard_normal((2, 4, 16)).astype(np.float32)
  x_BLD[1, 2, 3] = NAN
  params = {
    'w_in_DF': rng.standard_normal((16, 32)).astype(np.float32),
    'w_out_DF': rng.standard_normal((16, 32)).astype(np.float32),
  }

  @jax.jit
  def run(params, x_BLD):
    return feedforward.FeedForward(config).apply(
      {'params': params}, x_BLD, jnp.ones(16)
    )

  is_nan_BLD = np.isnan(np.asarray(run(params, jnp.asarray(x_BLD)), 'f4'))
  assert is_nan_BLD[1, 2].all()
  assert is_nan_BLD.sum() == 16


@pytest.mark.parametrize('implementation', ['', 'reference'])
@pytest.mark.parametrize('nonnegative', [False, True])
def test_a_given_limit_does_not_hide_a_nan(nonnegative, implementation):
  x_BLD = np.full((1, 3, 8), 0.5, np.float32)
  x_BLD[0, 1, 4] = NAN
  w = qat.quantize(jnp.ones((8, 4)), (0,), jnp.float32)

  def project(x_BLD, carrier):
    return qat.einsum(
      'BLD,DF->BLF',
      x_BLD,
      w._replace(carrier=carrier),
      clip_at=jnp.float32(1),
      nonnegative=nonnegative,
      implementation=implementation,
    )

  y_BLF, pull = jax.vjp(project, jnp.asarray(x_BLD), w.carrier)
  assert np.isnan(y_BLF[0, 1]).all()
  np.testing.assert_allclose(y_BLF[0, ::2], 4, rtol=1e-2)
  _, dw_DF = pull(jnp.ones_like(y_BLF))
  assert np.isnan(dw_DF).any()


def test_a_channel_limit_shows_a_channel_that_is_nan():
  """One token's NaN stays that token's: the others keep their scales."""
  x_BMK = np.ones((2, 3, 4), np.float32)
  x_BMK[0, 1, 2] = NAN
  x_BMK[:, :, 3] = NAN
  scale_K = qat.quantize_kv(jnp.asarray(x_BMK), jnp.full(4, 2.0)).scales
  assert np.isnan(scale_K).tolist() == [False, False, False, True]


def test_a_channel_limit_gives_no_gradient_where_it_cuts():
  x_BMK = jnp.asarray([[[-3.0, 0.5], [2.0, 1.5], [2.5, -1.0], [-2.0, 9.0]]])
  limit_K = jnp.asarray([2.0, 1.0])

  def total(x_BMK, limit_K):
    kv = qat.quantize_kv(x_BMK, limit_K)
    return jnp.sum(kv.carrier * jnp.asarray([3.0, 5.0])[None, None])

  dx_BMK, dlimit_K = jax.grad(total, (0, 1))(x_BMK, limit_K)
  np.testing.assert_array_equal(dx_BMK, [[[0, 5], [3, 0], [0, 5], [3, 0]]])
  # The virtual gradient of the limit: limit − largest seen.
  np.testing.assert_array_equal(dlimit_K, [2 - 3, 1 - 9])


@pytest.mark.parametrize(
  'x, limit, cut, passes',
  [
    ([-3.0, -0.5, 0.5, 3.0], 1.0, [-1, -0.5, 0.5, 1], [0, 1, 1, 0]),
    ([-1.0, 1.0, 1.5], 1.0, [-1, 1, 1], [1, 1, 0]),
    ([0.0, 0.0], 0.0, [0, 0], [1, 1]),
  ],
  ids=['cut on both sides', 'equal to the limit', 'a row of zeros'],
)
def test_a_clamp_gives_no_gradient_where_it_cuts_and_all_elsewhere(
  x, limit, cut, passes
):
  x, limit = jnp.asarray(x), jnp.float32(limit)
  np.testing.assert_array_equal(clamp.clip(x, limit), cut)
  gradient = jax.grad(lambda x: jnp.sum(clamp.clip(x, limit)))(x)
  np.testing.assert_array_equal(gradient, passes)


def test_a_clamp_keeps_a_nan():
  assert np.isnan(clamp.clip(jnp.asarray([NAN]), jnp.float32(1.0)))[0]


@pytest.mark.parametrize(
  'nonnegative, most', [(False, 133_144), (True, 66_311)]
)
def test_the_longest_sum_is_exact_and_one_more_is_refused(nonnegative, most):
  """At full scale: every product is 127 · 127, or 255 · 127."""

  def project(terms):
    w = int8.Quantized(
      jnp.full((terms, 1), 127, jnp.int8),
      jnp.ones((1, 1)),
      jnp.zeros((terms, 1)),
    )
    return qat.einsum(
      'BLD,DF->BLF',
      jnp.ones((1, 1, terms)),
      w,
      clip_at=jnp.float32(1),
      nonnegative=nonnegative,
    )

  largest = 255 if nonnegative else 127
  assert largest * 127 * most <= 2**31 - 1 < largest * 127 * (most + 1)
  np.testing.assert_allclose(project(most), 127 * most, rtol=1e-6)
  with pytest.raises(
    ValueError, match=rf'{most + 1} codes of a weight .* at most {most},'
  ):
    project(most + 1)


def test_the_sum_of_an_int8_input_gradient_is_checked_too():
  def total(x_BLD, outputs):
    w = qat.quantize(jnp.ones((1, outputs)), (0,), jnp.float32)
    return jnp.sum(qat.einsum('BLD,DF->BLF', x_BLD, w, input_gradient='int8'))

  x_BLD = jnp.ones((1, 1, 1))
  jax.eval_shape(lambda: jax.grad(total)(x_BLD, 133_144))
  jax.eval_shape(lambda: total(x_BLD, 133_145))
  with pytest.raises(ValueError, match=r'input gradient .* at most 133144'):
    jax.eval_shape(lambda: jax.grad(total)(x_BLD, 133_145))

"""Attention by a dense mask in float64: the oracle of all implementations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels.visibility_attention import api
from tests.device import attention as shared

SCALE = shared.SCALE

# Most of the time here goes into compiling: the less of it the better.
quick_jit = functools.partial(
  jax.jit, compiler_options={'xla_backend_optimization_level': 0}
)


def masks(case):
  dense_BLM = visibility_lib.as_dense(case.visibility, case.window, case.sinks)
  return dense_BLM, dense_BLM.any(axis=-1)


def oracle(case, *arrays):
  """out and lse of q, k and v as a case masks them."""
  return attend(masks(case)[0], *arrays, SCALE)


def attend(dense_BLM, q_BLHK, k_BMK, v_BMK, scale):
  """out and lse by numpy in float64; zero where a query sees nothing."""
  logits_BLHM = scale * np.einsum(
    'BLHK,BMK->BLHM', np.float64(q_BLHK), np.float64(k_BMK)
  )
  logits_BLHM = np.where(dense_BLM[:, :, None], logits_BLHM, -np.inf)
  lse_BLH = np.logaddexp.reduce(logits_BLHM, axis=-1)
  lse_BLH = np.where(dense_BLM.any(axis=-1)[..., None], lse_BLH, 0)
  p_BLHM = np.exp(logits_BLHM - lse_BLH[..., None])
  return np.einsum('BLHM,BMK->BLHK', p_BLHM, np.float64(v_BMK)), lse_BLH


@quick_jit
def _dense_gradients(arrays, dense_BLM, dout_BLHK, dlse_BLH):
  """Gradients of an independent dense softmax; every query must see a key."""

  def attend(q_BLHK, k_BMK, v_BMK):
    logits_BLHM = SCALE * jnp.einsum('BLHK,BMK->BLHM', q_BLHK, k_BMK)
    logits_BLHM = jnp.where(dense_BLM[:, :, None], logits_BLHM, -jnp.inf)
    out_BLHK = jnp.einsum('BLHM,BMK->BLHK', jax.nn.softmax(logits_BLHM), v_BMK)
    return out_BLHK, jax.nn.logsumexp(logits_BLHM, axis=-1)

  return jax.vjp(attend, *arrays)[1]((dout_BLHK, dlse_BLH))


def gradients(case, arrays, dout_BLHK, dlse_BLH):
  """Gradients by q, k, v. Blind queries see all there, and count nothing."""
  dense_BLM, sees_BL = masks(case)
  return _dense_gradients(
    arrays,
    dense_BLM | ~sees_BL[..., None],
    np.where(sees_BL[..., None, None], dout_BLHK, 0),
    np.where(sees_BL[..., None], dlse_BLH, 0),
  )


def call(case, implementation, *arrays):
  return api.attention(
    *arrays,
    *case.visibility,
    window=case.window,
    sinks=case.sinks,
    scale=SCALE,
    implementation=implementation,
  )


@functools.cache
def runner(window, sinks, implementation):
  """Compiled once for each shape; `implementation`'s fixture is around it."""

  @quick_jit
  def run(visibility, arrays, cotangents):
    case = shared.Case(visibility, window, heads=0, sinks=sinks)
    results, pull = jax.vjp(
      lambda *arrays: call(case, implementation, *arrays), *arrays
    )
    return results, pull(cotangents)

  return run


def attend_and_pull(case, implementation, arrays, cotangents):
  run = runner(case.window, case.sinks, implementation)
  return run(case.visibility, arrays, cotangents)


def close(actual, expected, tolerance=2e-5):
  """Absolute error against the largest value of each channel of a tensor."""
  for a, e in zip(actual, expected, strict=True):
    assert a.shape == e.shape
    axes = tuple(range(a.ndim - 1))
    error = np.abs(np.float64(a) - np.float64(e)).max(axis=axes)
    largest = np.abs(np.float64(e)).max(axis=axes)
    assert (error <= tolerance * np.maximum(1, largest)).all()


def assert_nan_where(actual, clean, is_nan):
  """NaN in all channels where told, and elsewhere the bits of `clean`."""
  for a, e in zip(actual, clean, strict=True):
    spread = is_nan.reshape(is_nan.shape + (1,) * (a.ndim - is_nan.ndim))
    expected = np.where(spread, np.float32(np.nan), e)
    np.testing.assert_array_equal(a, expected)

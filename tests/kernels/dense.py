"""Attention by a dense mask in float64: the oracle of all implementations."""

import numpy as np

from kaiju_jax import visibility as visibility_lib
from tests.device import attention as shared

SCALE = shared.SCALE


def masks(case):
  dense_BLM = visibility_lib.as_dense(case.visibility, case.window)
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

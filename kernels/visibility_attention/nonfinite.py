"""Keeps NaN and inf from queries that do not see them.

Kernels multiply whole tiles and hide an unseen key by a weight of zero. Zero
times NaN is NaN, so a single NaN among the values would spoil every query of
its tile: those of another document, or of an earlier token. Therefore `api`
changes the operands before a kernel reads them. A NaN then stands only where
the kernel applies the mask as a selection and not as a product:

- forward: a spoilt key (NaN or inf in its k or v) gets k = NaN and v = 0. Its
  logit is NaN where it is visible and is replaced by the mask elsewhere.
- backward: spoilt keys are zeros. A spoilt query (NaN or inf in its q, its
  results or their cotangents) gets lse = NaN and zeros in its other operands.
  Kernels recompute its weights from lse and then select, so that they are NaN
  for the keys that it sees and 0 for the others.

So a query that sees a spoilt key gets out = lse = NaN, and the gradients of the
keys that it sees become NaN; everything else is as if the spoilt rows were
zeros. This costs a pass over K and V (one head each, against H of the queries),
and in the backward pass one over the queries; of codes only the scales are
checked.
"""

import jax.numpy as jnp

from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import operands


def contain_keys(k_BMK, v_BMK, scales: operands.Scales, dtype):
  """Returns k, v and scales of a forward pass; a spoilt key has k NaN, v 0.

  Args:
    k_BMK: keys, floats or codes.
    v_BMK: values, floats or codes.
    scales: the codes' scales. A scale per channel is taken to be finite.
    dtype: the dtype that keys are dequantized to where their scales are per
      channel, because such codes cannot be NaN.
  """
  spoilt_BM = _spoilt_keys(k_BMK, v_BMK, scales)
  if spoilt_BM is None:
    return k_BMK, v_BMK, scales
  if scales.k is not None and scales.k.ndim == 1:
    k_BMK = codes.dequantize(k_BMK, scales.k, dtype)
    scales = scales._replace(k=None)
  k_BMK, k_scale = _fill(k_BMK, scales.k, spoilt_BM, jnp.nan)
  v_BMK, v_scale = _fill(v_BMK, scales.v, spoilt_BM, 0)
  return k_BMK, v_BMK, scales._replace(k=k_scale, v=v_scale)


def contain_all(
  q_BLHK, k_BMK, v_BMK, scales: operands.Scales, cotangents: operands.Cotangents
):
  """Returns q, k, v, scales and cotangents of a backward pass.

  Spoilt keys are zeros. A spoilt query has lse NaN and zeros elsewhere.

  Args:
    q_BLHK: queries, floats or codes.
    k_BMK: keys, floats or codes.
    v_BMK: values, floats or codes.
    scales: the codes' scales.
    cotangents: the queries' cotangents.
  """
  spoilt_BM = _spoilt_keys(k_BMK, v_BMK, scales)
  if spoilt_BM is not None:
    k_BMK, k_scale = _fill(k_BMK, scales.k, spoilt_BM, 0)
    v_BMK, v_scale = _fill(v_BMK, scales.v, spoilt_BM, 0)
    scales = scales._replace(k=k_scale, v=v_scale)
  lse_BLH, dout_BLHK, dlse_BLH, delta_BLH = cotangents
  # A NaN or inf in dout or out makes delta, the sum of their product, not
  # finite. One in q makes lse so, except where the query sees nothing.
  spoilt_BLH = ~(
    jnp.isfinite(lse_BLH)
    & jnp.isfinite(delta_BLH)
    & _is_finite(q_BLHK, scales.q_BLH)
  )
  q_BLHK, q_scale_BLH = _fill(q_BLHK, scales.q_BLH, spoilt_BLH, 0)
  cotangents = operands.Cotangents(
    jnp.where(spoilt_BLH, jnp.nan, lse_BLH),
    _fill(dout_BLHK, None, spoilt_BLH, 0)[0],
    jnp.where(spoilt_BLH, 0, dlse_BLH),
    jnp.where(spoilt_BLH, 0, delta_BLH),
  )
  return q_BLHK, k_BMK, v_BMK, scales._replace(q_BLH=q_scale_BLH), cotangents


def _spoilt_keys(k_BMK, v_BMK, scales):
  """Returns bool[B, M], or None if k and v are codes scaled per channel."""
  spoilt_BM = None
  for x_BMK, scale in (k_BMK, scales.k), (v_BMK, scales.v):
    if scale is not None and scale.ndim == 1:
      continue
    found_BM = ~_is_finite(x_BMK, scale)
    spoilt_BM = found_BM if spoilt_BM is None else spoilt_BM | found_BM
  return spoilt_BM


def _is_finite(x, scale):
  """Returns whether each row is finite; codes are judged by their scale."""
  if scale is None:
    return jnp.isfinite(x).all(axis=-1)
  return jnp.isfinite(scale)


def _fill(x, scale, spoilt, value):
  """Writes `value` into spoilt rows of x, or of the scales of codes."""
  if scale is None:
    return jnp.where(spoilt[..., None], jnp.asarray(value, x.dtype), x), None
  if scale.ndim == spoilt.ndim:
    return x, jnp.where(spoilt, jnp.asarray(value, scale.dtype), scale)
  return x, scale

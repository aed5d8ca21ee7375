"""int8 codes of queries, keys and values, and the scales that they carry.

There is one scale per token (and head, for queries) or, for keys and values,
one per channel.
"""

import jax.numpy as jnp


def dequantize(x, scale, dtype):
  """Returns codes · scale in `dtype`, and returns floats unchanged.

  Args:
    x: [..., K], int8 codes or floats.
    scale: None for floats; x's shape without K (per token) or [K] (per
      channel).
    dtype: the dtype of the values that codes stand for.
  """
  if scale is None:
    return x
  scale = (
    scale[..., None]
    if scale.ndim > 1
    else scale.reshape((1,) * (x.ndim - 1) + scale.shape)
  )
  return apply_scale(x, scale, dtype)


def apply_scale(x, scale, dtype):
  """Returns `dequantize` for a scale that already broadcasts against x."""
  if scale is None:
    return x
  return (x.astype(jnp.float32) * scale).astype(dtype)


def float_dtype(x, dtype):
  """Returns x's dtype, or `dtype` where x is codes."""
  return jnp.dtype(dtype if x.dtype == jnp.int8 else x.dtype)


def integer_dot(q, k, k_scale):
  """Returns whether QKᵀ can be an integer dot, scaled once afterwards.

  A scale of k per channel forbids it, because that scale is inside the sum over
  channels. A caller that wants the integer dot folds the scale into the queries
  before it quantizes them, and gives k scales of one.
  """
  return q.dtype == jnp.int8 and k.dtype == jnp.int8 and k_scale.ndim == 2

"""int8 codes of queries, keys and values, and the scales that they carry.

A scale belongs to a token (of each query head; of each key or value) or, for
keys and values, to a channel.
"""

import jax.numpy as jnp


def dequantize(x, scale, dtype):
  """Returns codes · scale in `dtype`; floats, which have no scale, as given.

  Args:
    x: [..., K], int8 codes or floats.
    scale: None for floats, x's shape without K (a token) or [K] (a channel).
    dtype: of the values that codes stand for.
  """
  if scale is None:
    return x
  scale = (
    scale[..., None]
    if scale.ndim > 1
    else scale.reshape((1,) * (x.ndim - 1) + scale.shape)
  )
  return scaled(x, scale, dtype)


def scaled(x, scale, dtype):
  """`dequantize` by a scale of x's own rank, which broadcasts as it is."""
  if scale is None:
    return x
  return (x.astype(jnp.float32) * scale).astype(dtype)


def float_dtype(x, dtype):
  """Returns x's dtype, or `dtype` where x is codes."""
  return jnp.dtype(dtype if x.dtype == jnp.int8 else x.dtype)


def integer_dot(q, k, k_scale):
  """Whether QKᵀ can stay in integers until one float multiplication.

  A scale per channel of k lies under the sum over channels, so it cannot wait:
  fold it into the queries before they are coded, and give k scales of one.
  """
  return q.dtype == jnp.int8 and k.dtype == jnp.int8 and k_scale.ndim == 2

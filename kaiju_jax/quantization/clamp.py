"""Dynamic clamping: limits that follow the scale of what they clamp.

From the sources: limits come from the standard deviation of the input instead
of constants, in the feed-forward from the statistics of the weights; the model
learns to use the clamp and needs it at inference; without it small activations
all fall into the zero bin. The formulas are our guess:

  weight_rms  For h = relu(x·W)², x pre-normed with gain g: z = x·W is about
              normal with variance σ² = D·rms(W)²·rms(g)², and E[h²] = 3σ⁴/2,
              so the limit is k·√(3/2)·D·rms(W)²·rms(g)²: one number per layer,
              known before any input is seen.
  input_std   limit = k·rms of the token's own row. A statistic over other
              tokens would leak the future and the batch. (The rms is about
              zero, not about the mean, because codes are symmetric.)

A limit gets no gradient, nor does a value that the clamp cuts. A value that is
equal to its limit is not cut.
"""

import math

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives


def weight_rms_limit(
  w_in_DF: jax.Array | int8.Quantized, gain_D: jax.Array, k: float
) -> jax.Array:
  """Returns the limit (a float32 scalar) of relu(norm(x)·W)².

  rms(W) is computed from codes and scales, with an exact integer sum of squares
  per channel, so that training, every mesh and the export agree.
  """
  if isinstance(w_in_DF, int8.Quantized):
    codes_DF = w_in_DF.codes.astype(jnp.int32)
    square_F = jnp.sum(codes_DF * codes_DF, axis=0).astype(jnp.float32)
    square_F = square_F * jnp.square(w_in_DF.scales[0])
  else:
    square_F = jnp.sum(jnp.square(w_in_DF.astype(jnp.float32)), axis=0)
  # D·rms(W)² is the mean over F of the channels' sums of squares.
  mean_square = collectives.mean(jnp.mean(square_F), 'F')
  variance = mean_square * jnp.mean(jnp.square(gain_D))
  return lax.stop_gradient(k * math.sqrt(1.5) * variance)


def input_std_limit(
  x: jax.Array, letters: str, k: float, is_exact: bool = False
) -> jax.Array:
  """Returns k·rms over x's last dimensions (kept, size 1), in float32.

  Args:
    x: activations [B, L, …].
    letters: the letters of those dimensions, such as 'HK'; the mean covers all
      devices that split them.
    k: the limit in units of the rms.
    is_exact: whether devices gather x, so that the mean has the bits of one
      device.
  """
  axes = tuple(range(-len(letters), 0))
  if is_exact:
    x = collectives.whole_letters(x, letters)
  square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=axes, keepdims=True)
  if not is_exact:
    square = collectives.mean(square, letters)
  return lax.stop_gradient(k * jnp.sqrt(square))


def clip(x: jax.Array, limit: jax.Array) -> jax.Array:
  """Cuts `x` at ±limit, with no gradient where it cuts; a NaN stays NaN."""
  limit = lax.stop_gradient(limit).astype(x.dtype)
  limit = jnp.broadcast_to(
    limit.reshape((1,) * (x.ndim - limit.ndim) + limit.shape), x.shape
  )
  inside = jnp.abs(x) <= limit
  return jnp.where(inside, x, lax.stop_gradient(jnp.clip(x, -limit, limit)))

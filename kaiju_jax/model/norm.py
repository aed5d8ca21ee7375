"""RMSNorm of activations, and of queries and keys.

From the sources: the input of each layer is normalized (the Kaiju post). Models
of other libraries normalize outputs, queries and keys as well.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.sharding import collectives


class RMSNorm(nn.Module):
  """x / rms(x) · gain over the last axis, in f32, returned in x's dtype."""

  epsilon: float

  @nn.compact
  def __call__(self, x_BLD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the normalized input, and the gain for clamp limits."""
    shape = collectives.local_shape('D', x_BLD.shape[-1:])
    gain_D = self.param('gain_D', nn.initializers.ones_init(), shape)
    gain_D = collectives.whole(gain_D)
    return normalize(x_BLD, gain_D[None, None], self.epsilon), gain_D


def normalize(x: jax.Array, gain: jax.Array, epsilon: float) -> jax.Array:
  """Returns x / rms(x) · gain over the last axis; `gain` has x's rank."""
  normed = x.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(normed), axis=-1, keepdims=True)
  normed = normed * jax.lax.rsqrt(mean_square + epsilon)
  return (normed * gain).astype(x.dtype)

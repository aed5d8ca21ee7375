"""Pre-layer RMSNorm (the Kaiju post: the input of each layer is normalized)."""

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
    x = x_BLD.astype(jnp.float32)
    mean_square_BL1 = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(mean_square_BL1 + self.epsilon)
    return (x * gain_D[None, None]).astype(x_BLD.dtype), gain_D

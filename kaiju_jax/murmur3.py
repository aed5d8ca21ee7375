"""murmur3's finalizer: scatters 32 bits over 32 bits, one to one.

Noise that needs no key (`quantization/qat.py`), sums in which any damaged value
shows (`sharding/checksum.py`).
"""

import jax
import jax.numpy as jnp


def mix(bits: jax.Array) -> jax.Array:
  """Returns the mixed bits; both uint32."""
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
  return bits ^ (bits >> 16)

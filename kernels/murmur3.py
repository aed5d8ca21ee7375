"""Hashes 32 bits to 32 bits, one to one, by murmur3's finalizer.

`uniform` makes noise of it that needs no random key, and
`kaiju_jax/wire/checksum.py` checksums that any damaged value changes.
"""

import jax
from jax import lax
import jax.numpy as jnp


def mix(bits: jax.Array) -> jax.Array:
  """Returns the hash of each element, uint32 to uint32."""
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
  return bits ^ (bits >> 16)


def uniform(x: jax.Array) -> jax.Array:
  """Returns noise in [0, 1), hashed from the bits and places of x's elements.

  The noise is the upper 24 bits of mix(bits ^ place · 2654435761), so that
  equal values at different places draw differently.

  Args:
    x: float32.
  """
  place = lax.iota(jnp.uint32, x.size).reshape(x.shape)
  bits = lax.bitcast_convert_type(x, jnp.uint32)
  bits = mix(bits ^ (place * jnp.uint32(0x9E3779B1)))
  return (bits >> 8).astype(jnp.float32) * 2.0**-24

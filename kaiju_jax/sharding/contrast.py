"""What Squinch is compared with in training; it saves no bytes."""

import math

import jax
import jax.numpy as jnp

from kaiju_jax.quantization import int8


def int4(x: jax.Array, flat: bool) -> jax.Array:
  """Returns what a receiver would see of codes −7…7 and a scale a block.

  Args:
    x: a gradient, D first.
    flat: blocks of 256 in memory's order, which cross hidden units and
      vocabulary; else of 32 along D. (Smaller where the size asks for it.)

  Returns:
    float32 of x's shape, scales rounded to bfloat16.
  """
  rows = x.astype(jnp.float32)
  if flat:
    blocks = rows.reshape(-1, math.gcd(x.size, 256))
  else:
    blocks = rows.reshape(-1, math.gcd(x.shape[0], 32), *x.shape[1:])
  limit = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
  scale = int8.scale_of(limit, 7).astype(jnp.bfloat16).astype(jnp.float32)
  codes = jnp.clip(jnp.round(blocks / scale), -7, 7)
  return (codes * scale).reshape(x.shape)

"""Integers in blocks: what Squinch is compared with.

In training (`wire_gradients='int4'`) gradients are rounded to these integers
and cross as floats, which saves no bytes. `experiments/codec_study` measures
the same rounding on captured gradients.
"""

import math

import jax
import jax.numpy as jnp

from kaiju_jax.quantization import int8

BLOCK = 32
_FLAT_BLOCK = 256


def integers(blocks_GI: jax.Array, largest: int) -> jax.Array:
  """Returns what arrives as codes −largest … largest times a block's scale.

  Args:
    blocks_GI: float32; a block runs along the second dimension, and more
      dimensions may follow.
    largest: code; scales, in bfloat16, put a block's largest number on it.
  """
  limit = int8.largest(blocks_GI, (1,))
  scale = (limit / largest).astype(jnp.bfloat16).astype(jnp.float32)
  # Where a scale was rounded down, the largest may lie above its code.
  codes = jnp.round(blocks_GI / jnp.where(scale == 0, 1, scale))
  return jnp.clip(codes, -largest, largest) * scale


def int4(x: jax.Array, flat: bool) -> jax.Array:
  """Returns what a receiver would see of a gradient in int4, float32.

  Args:
    x: a gradient, D first.
    flat: whether blocks hold 256 elements in memory's order, which cross hidden
      units and vocabulary, instead of 32 along D. (Blocks are smaller if the
      size is no multiple of these.)
  """
  rows = x.astype(jnp.float32)
  if flat:
    blocks = rows.reshape(-1, math.gcd(x.size, _FLAT_BLOCK))
  else:
    blocks = rows.reshape(-1, math.gcd(x.shape[0], BLOCK), *x.shape[1:])
  return integers(blocks, 7).reshape(x.shape)

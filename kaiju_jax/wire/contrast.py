"""Rounding to integers in blocks, a contrast for comparisons with Squinch.

In training (`wire_gradients='int4'`) gradients are rounded to these integers
and cross as floats, which saves no bytes. `wire/codecs.py` rounds
captured gradients in the same way.
"""

import math

import jax
import jax.numpy as jnp

from kaiju_jax.quantization import int8

BLOCK = 32
_FLAT_BLOCK = 256


def integers(blocks_GI: jax.Array, largest: int) -> jax.Array:
  """Returns the blocks rounded to codes −largest … largest times their scales.

  Args:
    blocks_GI: float32; a block runs along the second dimension, and more
      dimensions may follow.
    largest: the largest code; a block's bfloat16 scale puts its largest number
      there.
  """
  limit = int8.largest(blocks_GI, (1,))
  scale = (limit / largest).astype(jnp.bfloat16).astype(jnp.float32)
  # If bfloat16 rounded the scale down, the largest may lie above its code.
  codes = jnp.round(blocks_GI / jnp.where(scale == 0, 1, scale))
  return jnp.clip(codes, -largest, largest) * scale


def int4(x: jax.Array, flat: bool) -> jax.Array:
  """Returns a gradient rounded to int4 codes −7 … 7, as float32.

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

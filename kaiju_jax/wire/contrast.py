"""Integers in blocks: what Squinch is compared with.

In training (`wire_gradients='int4'`) they are rounded and cross as floats: that
saves no bytes. `experiments/codec_study/gradient_codecs.py` measures it on
captured gradients.
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
    blocks_GI: float32; a block runs along the second dimension, and there may
      be more of them behind.
    largest: code; scales put a block's largest number on it, in bfloat16.
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
    flat: blocks of 256 in memory's order, which cross hidden units and
      vocabulary; else of 32 along D. (Smaller where the size asks for it.)
  """
  rows = x.astype(jnp.float32)
  if flat:
    blocks = rows.reshape(-1, math.gcd(x.size, _FLAT_BLOCK))
  else:
    blocks = rows.reshape(-1, math.gcd(x.shape[0], BLOCK), *x.shape[1:])
  return integers(blocks, 7).reshape(x.shape)

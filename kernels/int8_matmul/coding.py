"""Computes what `reference.py` defines, with operations that kernels have.

Pallas Triton has no rounding to even, its maximum and minimum drop a NaN, and
its division is an approximation. These functions give the reference's bits
wherever the division is exactly rounded.
"""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.int8_matmul import reference

_SIGN = 0x7FFFFFFF
# A float32 of this size has no bits for a fraction. Adding it rounds, ties to
# even, and the difference of the bits is the integer. (XLA would cancel a
# difference of floats.)
_ROUNDER = np.float32(1.5 * 2**23)
_ROUNDER_BITS = int(_ROUNDER.view(np.int32))
_GOLDEN = 0x9E3779B1 - 2**32
_FACTORS = ((16, 0x85EBCA6B - 2**32), (13, 0xC2B2AE35 - 2**32))


def magnitude_bits(x):
  """Returns |x|'s bits: integers ordered like |x|, with NaN the largest."""
  return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32) & _SIGN


def from_bits(bits):
  """Returns the float32 that has these bits."""
  return lax.bitcast_convert_type(bits, jnp.float32)


def cut(x, at):
  """Returns x clipped to ±`at`; NaN where either is NaN."""
  x = jnp.where((x > at) | (at != at), at, x)
  return jnp.where(x < -at, -at, x)


def scale_of(limit, largest_code, divide):
  """Returns the step that puts `limit` on the largest code; NaN for NaN."""
  limit = jnp.where(limit < reference.SMALLEST, reference.SMALLEST, limit)
  return divide(limit, largest_code)


def encode(quotient, nonnegative):
  """Returns int8 codes of x / scale; NaN has the code 0."""
  low, high, zero = (0.0, 255.0, 128) if nonnegative else (-127.0, 127.0, 0)
  # Clipping may precede rounding, because the bounds are integers.
  quotient = _clip(quotient, low, high)
  quotient = jnp.where(quotient == quotient, quotient, float(zero))
  bits = lax.bitcast_convert_type(quotient + _ROUNDER, jnp.int32)
  return (bits - (_ROUNDER_BITS + zero)).astype(jnp.int8)


def encode_stochastic(quotient, noise):
  """Returns int8 codes of floor(quotient + noise); NaN has the code 0."""
  level = _clip(jnp.floor(quotient + noise), -127.0, 127.0)
  level = jnp.where(level == level, level, 0.0)
  return level.astype(jnp.int32).astype(jnp.int8)


def _clip(x, low, high):
  x = jnp.where(x < low, low, x)
  return jnp.where(x > high, high, x)


def uniform(x, place):
  """Returns noise in [0, 1) hashed from float32 values and their places.

  Args:
    x: float32.
    place: int32 of x's shape; overflow wraps.
  """
  bits = lax.bitcast_convert_type(x, jnp.int32) ^ (place * _GOLDEN)
  for shift, factor in _FACTORS:
    bits = (bits ^ lax.shift_right_logical(bits, shift)) * factor
  bits = bits ^ lax.shift_right_logical(bits, 16)
  return lax.shift_right_logical(bits, 8).astype(jnp.float32) * 2.0**-24


def finish(sums, scales, at, *, relu2, dtype):
  """Returns the result of a matmul from its int32 sums.

  Args:
    sums: int32.
    scales: float32, the row's times the output's.
    at: cut of the result, rounded to `dtype` but held in float32; or None.
    relu2: whether the result is relu(y)².
    dtype: the result's dtype.
  """
  y = (sums.astype(jnp.float32) * scales).astype(dtype)
  if relu2:
    # Each step rounds to `dtype`; a NaN stays one.
    y = y.astype(jnp.float32)
    y = jnp.where(y < 0, 0.0, y)
    y = (y * y).astype(dtype)
  if at is not None:
    y = cut(y.astype(jnp.float32), at).astype(dtype)
  return y


def rounded_to(x: jax.Array | None, dtype):
  """Returns x rounded to `dtype`, as float32; None for None."""
  return None if x is None else x.astype(dtype).astype(jnp.float32)

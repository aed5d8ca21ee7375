"""Symmetric int8: codes, scales, and the carrier that receives the gradient.

A value is `codes · scales`, codes −127…127. JAX gives integers no gradient: the
cotangent of an s8 array is float0, and `jax.grad` then returns zeros without an
error. So a quantized tensor that crosses a function boundary has a third part,
the *carrier*: zeros of the full shape in the gradient's dtype. The forward pass
does not read it, and XLA removes it there. In the backward pass the function
that read the codes writes the straight-through gradient into the carrier's
cotangent, and the function that made the codes takes it from there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.quantization import bounds

MAX_CODE = bounds.MAX_CODE
# Below this an activation row or weight channel counts as all zero.
_SMALLEST = 1e-30


class Quantized(NamedTuple):
  """An int8 tensor."""

  codes: jax.Array  # int8, −127…127.
  # float32; the value is `codes * scales`. Weights keep the contracted axes
  # with size 1; keys and values have a scale per token [B, M] or per channel
  # [K].
  scales: jax.Array
  # Zeros of codes' shape in the gradient's dtype, or None where no gradient is
  # wanted (an exported checkpoint, a cache).
  carrier: jax.Array | None = None
  # int32 sums of a weight's codes over its contracted axes (kept, size 1),
  # which non-negative activations need. Decoding makes them once; where this is
  # None, a projection sums them itself.
  columns: jax.Array | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    return self.codes.shape


def scale_of(limit: jax.Array, largest_code: int = MAX_CODE) -> jax.Array:
  """Returns the step that puts `limit` on the largest code."""
  return jnp.maximum(limit.astype(jnp.float32), _SMALLEST) / largest_code


def largest(x: jax.Array, axes: Sequence[int]) -> jax.Array:
  """Returns the largest |x| over `axes` (kept, size 1) in float32.

  A NaN in x gives a NaN. The maximum is taken over the bits as integers, which
  have the order of the magnitudes and a NaN on top. XLA's maximum of floats
  drops a NaN from a large array on a CPU (openxla/xla#21461), and a NaN token
  would silently become zero.
  """
  bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
  bits = jnp.max(bits & 0x7FFFFFFF, axis=axes, keepdims=True)
  return lax.bitcast_convert_type(bits, jnp.float32)


def encode(x: jax.Array, scales: jax.Array) -> jax.Array:
  """Returns int8 codes of `x` on the grid `scales`, cut at ±127.

  A NaN has no code, so the caller makes its scale NaN.
  """
  codes = jnp.round(x.astype(jnp.float32) / scales)
  return jnp.clip(codes, -MAX_CODE, MAX_CODE).astype(jnp.int8)


def encode_nonnegative(x: jax.Array, scales: jax.Array) -> jax.Array:
  """Returns the codes q − 128, q = 0…255, of non-negative `x`.

  All 256 codes serve one sign, which halves the error. The codes stay s8,
  because u8×s8 dots are widened to s32 on H100. After the dot the caller adds
  128 times the weight's column sums.
  """
  levels = jnp.clip(jnp.round(x.astype(jnp.float32) / scales), 0, 255)
  return (levels - 128).astype(jnp.int8)


def quantize(x: jax.Array, axes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
  """Returns codes and scales that put the largest |x| over `axes` on code 127.

  A NaN in `x` makes its scale NaN, and with it every value of that scale.
  """
  scales = scale_of(largest(x, axes))
  return encode(x, scales), scales


def dequantize(
  x: Quantized, dtype: jax.typing.DTypeLike = jnp.float32
) -> jax.Array:
  """Returns `codes · scales` of a tensor whose scales keep the reduced axes."""
  return (x.codes.astype(jnp.float32) * x.scales).astype(dtype)

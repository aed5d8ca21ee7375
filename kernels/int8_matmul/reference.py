"""Defines the int8 matmul in plain jnp, simple and slow.

    scale[r]    = max(limit[r], 1e-30) / 127    limit given, or max |x[r]|
    code[r, c]  = clip(round(x[r, c] / scale[r]), -127, 127)
    y[r, o]     = (Σ_c code[r, c] · w[c, o]) · (scale[r] · scale[o])

Rounding is to the nearest, ties to even. A non-negative x uses all 256 levels,
q = 0…255 with scale = limit / 255, stored as the s8 codes q − 128; the product
adds 128 times the weight's column sums back. The sum is an exact int32, so that
y has two roundings besides those of the scales: that of the sum to float32, and
that of its product with the scales.

R is rows (tokens), C contracted, O outputs. A weight is [C, O] where `contract`
is 'first', [O, C] where it is 'last'. The code −128 appears only in a
non-negative x.
"""

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.kernels import murmur3

MAX_CODE = 127
# A smaller limit is raised to this, so that no scale is zero.
SMALLEST = 1e-30


def quantize(x_RC, *, cut_R, limit_R, nonnegative):
  """Quantizes rows; returns (codes_RC, scale_R)."""
  if cut_R is not None:
    cut_R1 = cut_R.astype(x_RC.dtype)[:, None]
    x_RC = jnp.clip(x_RC, -cut_R1, cut_R1)
  if limit_R is None:
    limit_R = largest(x_RC)
  largest_code = 255 if nonnegative else MAX_CODE
  scale_R = scale_of(limit_R, largest_code)
  levels_RC = jnp.round(x_RC.astype(jnp.float32) / scale_R[:, None])
  if nonnegative:
    codes_RC = jnp.clip(levels_RC, 0, largest_code) - 128
  else:
    codes_RC = jnp.clip(levels_RC, -largest_code, largest_code)
  return codes_RC.astype(jnp.int8), scale_R


def quantize_stochastic(dy_RO, scale_O, *, limit_R):
  """Returns (codes_RO, scale_R) of dy · scale, rounded stochastically."""
  dy_RO = dy_RO.astype(jnp.float32) * scale_O[None]
  if limit_R is None:
    limit_R = largest(dy_RO)
  scale_R = scale_of(limit_R, MAX_CODE)
  codes_RO = jnp.floor(dy_RO / scale_R[:, None] + murmur3.uniform(dy_RO))
  return jnp.clip(codes_RO, -MAX_CODE, MAX_CODE).astype(jnp.int8), scale_R


def multiply(
  codes_RC, scale_R, w, scale_O, *, contract, nonnegative, relu2, cut_R, dtype
):
  """Returns y_RO in `dtype`."""
  w_CO = (w if contract == 'first' else w.T).astype(jnp.int32)
  levels_RC = codes_RC.astype(jnp.int32) + (128 if nonnegative else 0)
  sums_RO = jnp.einsum('RC,CO->RO', levels_RC, w_CO)
  scale_RO = scale_R[:, None] * scale_O[None]
  y_RO = (sums_RO.astype(jnp.float32) * scale_RO).astype(dtype)
  if relu2:
    y_RO = jnp.square(jax.nn.relu(y_RO))
  if cut_R is not None:
    cut_R1 = cut_R.astype(dtype)[:, None]
    y_RO = jnp.clip(y_RO, -cut_R1, cut_R1)
  return y_RO


def input_gradient(dy_RO, w, scale_O, *, contract, dtype):
  """Returns dx_RC in `dtype`, multiplied in `dtype`."""
  w_CO = (w if contract == 'first' else w.T).astype(dtype)
  dy_RO = (dy_RO.astype(jnp.float32) * scale_O[None]).astype(dtype)
  return jnp.einsum(
    'RO,CO->RC', dy_RO, w_CO, preferred_element_type=jnp.float32
  ).astype(dtype)


def weight_gradient(
  codes_RC, scale_R, dy_RO, *, contract, nonnegative, dtype, out_dtype
):
  """Returns dw in `out_dtype`, with the weight's axes."""
  # Levels up to 255 are exact in bf16's eight bits.
  levels_RC = (codes_RC.astype(jnp.int32) + (128 if nonnegative else 0)).astype(
    dtype
  )
  dy_RO = (dy_RO.astype(jnp.float32) * scale_R[:, None]).astype(dtype)
  dw_CO = jnp.einsum(
    'RC,RO->CO', levels_RC, dy_RO, preferred_element_type=jnp.float32
  )
  return (dw_CO if contract == 'first' else dw_CO.T).astype(out_dtype)


def largest(x_RC):
  """Returns each row's largest magnitude; NaN where the row holds one.

  It compares the bits of magnitudes as integers: they have the same order, with
  NaN on top. A maximum of floats may drop a NaN (XLA's does on a CPU:
  openxla/xla#21461).
  """
  bits_RC = lax.bitcast_convert_type(x_RC.astype(jnp.float32), jnp.int32)
  return lax.bitcast_convert_type(
    jnp.max(bits_RC & 0x7FFFFFFF, axis=1), jnp.float32
  )


def scale_of(limit_R, largest_code):
  """Returns the scale that gives `limit` the largest code; NaN for NaN."""
  return jnp.maximum(limit_R.astype(jnp.float32), SMALLEST) / largest_code

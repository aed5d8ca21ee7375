"""Einsums of activations and weights, by int8×int8→int32 dots.

A layer calls `einsum`. A `Quantized` tensor has int8 codes, float32 scales and
a *carrier*: an array of zeros, which JAX differentiates in place of the codes,
because integers have no gradient (`quantization/int8.py`). The backward pass
returns the gradient of x or w as the gradient of its carrier.

XLA's dots multiply by default; `implementation` names a kernel of `int8_matmul`
that does so instead (`by_kernel.py`).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import murmur3
from kaiju_jax.quantization import bounds
from kaiju_jax.quantization import int8
from kaiju_jax.quantization.qat import by_float
from kaiju_jax.quantization.qat import by_kernel
from kaiju_jax.quantization.qat import letters as letters_lib
from kaiju_jax.quantization.qat import product
from kaiju_jax.sharding import collectives

Quantized = int8.Quantized


def einsum(
  spec: str,
  x: jax.Array | Quantized,
  w: jax.Array | Quantized,
  *,
  clip_at: jax.Array | None = None,
  nonnegative: bool = False,
  weight_only: bool = False,
  input_gradient: str = 'bf16',
  implementation: str = '',
  dtype=None,
  leaves: bool = False,
) -> jax.Array:
  """Returns einsum(spec, x, w), by one int8 dot of codes (`weight_only` apart).

  If devices split a contracted letter, each returns its part of the sum; the
  scales are those of the whole rows. A NaN in x makes its token's row NaN.

  Args:
    spec: such as 'BLD,DHK->BLHK'; in the output x's kept letters come first,
      then w's.
    x: floats, which get codes here with a scale per token, or codes (from
      `quantize`) if the weight is `Quantized`.
    w: the weight; scales keep the contracted axes with size 1. Without a
      carrier it is frozen.
    clip_at: static activation scale: this scalar gets the largest code, and the
      caller has clipped values beyond it (`clamp.clip`). None: each token's
      largest value.
    nonnegative: whether x ≥ 0, which is then coded on all 256 levels.
    weight_only: whether float activations stay floats where the weight is
      `Quantized`; w then gets no gradient, and only `dtype` has an effect.
    input_gradient: how the backward pass computes the gradient of x: 'bf16' by
      a dot in x's dtype, 'int8' by an int8 dot of the output's gradient, which
      is rounded stochastically (`int8_input_gradient`).
    implementation: the name of an implementation of the kernel `int8_matmul`;
      '' for XLA's dots.
    dtype: the result's dtype, by default x's. Sums are in float32 or int32.
    leaves: whether devices add their sums of codes before they scale them; each
      returns its part of L. It has no gradient, and no kernel does it.

  Raises ValueError: the sum of so many codes may overflow an int32.
  """
  floats = x.carrier if isinstance(x, Quantized) else x
  options = Options(
    nonnegative,
    input_gradient,
    implementation,
    jnp.dtype(dtype or floats.dtype),
    leaves,
  )
  if isinstance(w, Quantized):
    if weight_only:
      return by_float.multiply(spec, x, w).astype(options.dtype)
    return int8_einsum(spec, options, x, w, clip_at)
  y = product.multiply(letters_lib.parse(spec), x, w, jnp.float32)
  return y.astype(options.dtype)


class Options(NamedTuple):
  """The static arguments of `int8_einsum`, hashable for its custom_vjp."""

  nonnegative: bool
  input_gradient: str
  implementation: str
  dtype: jnp.dtype
  leaves: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def int8_einsum(
  spec: str,
  options: Options,
  x: jax.Array | Quantized,
  w: Quantized,
  clip_at: jax.Array | None,
) -> jax.Array:
  """Returns `einsum` by one int8 dot, with gradients for both carriers."""
  return _project(spec, options, x, w, clip_at, keep_codes=False)[0]


def _project(spec, options, x, w, clip_at, keep_codes):
  """Returns the einsum, and x's codes (None where not kept) and scales."""
  letters = letters_lib.parse(spec)
  _check_sum(spec, w, letters.w_axes, options.nonnegative)
  if options.implementation:
    return by_kernel.forward(
      letters,
      x,
      w,
      clip_at,
      nonnegative=options.nonnegative,
      dtype=options.dtype,
      keep_codes=keep_codes,
      implementation=options.implementation,
    )
  if isinstance(x, Quantized):
    x_codes, x_scales = x.codes, x.scales
  else:
    x_codes, x_scales = _quantize(letters, options, x, clip_at)
  sums = product.multiply(letters, x_codes, w.codes, jnp.int32)
  if options.nonnegative:
    columns = w.columns
    if columns is None:
      columns = columns_of(w, letters.w_axes)
    sums = sums + 128 * letters_lib.align(columns, letters.w, letters.out)
  if options.leaves:
    sums = collectives.leave(sums)
    x_scales = collectives.own_rows(x_scales)
  scales = letters_lib.align(
    x_scales, letters.x, letters.out
  ) * letters_lib.align(w.scales, letters.w, letters.out)
  y = (sums.astype(jnp.float32) * scales).astype(options.dtype)
  return y, x_codes, x_scales


def _quantize(letters, options, x, clip_at):
  """Returns the codes and scales of float activations."""
  nonnegative = options.nonnegative
  largest_code = bounds.MAX_LEVEL if nonnegative else bounds.MAX_CODE
  if clip_at is None:
    largest = int8.largest(x, letters.x_axes)
    largest = collectives.largest(largest, letters.contracted)
  else:
    # A static scale would hide a NaN: make that token's scale NaN.
    is_nan = jnp.any(jnp.isnan(x), axis=letters.x_axes, keepdims=True)
    largest = jnp.where(is_nan, jnp.nan, clip_at.reshape((1,) * x.ndim))
  scales = int8.scale_of(largest, largest_code)
  encode = int8.encode_nonnegative if nonnegative else int8.encode
  return encode(x, scales), scales


def _check_sum(spec, w, axes, nonnegative=False) -> None:
  terms = math.prod(w.shape[axis] for axis in axes)
  what = f'{spec} over {terms} codes of a weight {w.shape}'
  bounds.check(what, terms, nonnegative)


def columns_of(w: Quantized, axes: tuple[int, ...]) -> jax.Array:
  """Returns the sums of a weight's codes over its contracted axes, kept."""
  return jnp.sum(w.codes.astype(jnp.int32), axis=axes, keepdims=True)


def _int8_einsum_forward(spec, options, x, w, clip_at):
  """Returns the result, and the residuals: what the backward pass reads."""
  if options.input_gradient == 'int8':
    outputs = letters_lib.parse(spec).w_outputs
    _check_sum(f'the int8 input gradient of {spec}', w, outputs)
  y, x_codes, x_scales = _project(spec, options, x, w, clip_at, keep_codes=True)
  # Residuals hold arrays only, so that empty ones remember the dtypes of the
  # gradients. The carriers themselves would take memory for nothing.
  if isinstance(x, Quantized):
    like_x = Quantized(None, None, jnp.zeros((0,), x.carrier.dtype))
  else:
    like_x = jnp.zeros((0,), x.dtype)
  carrier = None if w.carrier is None else jnp.zeros((0,), w.carrier.dtype)
  w = w._replace(carrier=carrier, columns=None)
  return y, (x_codes, x_scales, w, like_x)


def _int8_einsum_backward(spec, options, residuals, dy):
  """Returns the gradients of x and w, those of codes as carriers, and None."""
  like_x = residuals[-1]
  is_coded = isinstance(like_x, Quantized)
  dtype = like_x.carrier.dtype if is_coded else like_x.dtype
  backward = _backward_by_kernel if options.implementation else _backward
  dx, dw = backward(letters_lib.parse(spec), options, residuals[:-1], dy, dtype)
  if is_coded:
    dx = Quantized(None, None, dx)
  return dx, Quantized(None, None, dw), None


def _backward(letters, options, residuals, dy, dtype):
  """Returns the gradients of x, in `dtype`, and of w, None if it is frozen."""
  x_letters, w_letters, out_letters, _ = letters
  x_codes, x_scales, w = residuals
  dy = dy.astype(jnp.float32)

  dy_w = dy * letters_lib.align(w.scales, w_letters, out_letters)
  dx_spec = f'{out_letters},{w_letters}->{x_letters}'
  if options.input_gradient == 'int8':
    dx = int8_input_gradient(dx_spec, dy_w, w.codes)
  else:
    dx = jnp.einsum(
      dx_spec,
      dy_w.astype(dtype),
      w.codes.astype(dtype),
      preferred_element_type=jnp.float32,
    )

  # Codes up to 255 are exact in bf16's 8-bit significand.
  x_levels = x_codes.astype(dtype)
  if options.nonnegative:
    x_levels = x_levels + jnp.asarray(128, dtype)
  dy_x = dy * letters_lib.align(x_scales, x_letters, out_letters)
  if w.carrier is None:
    return dx.astype(dtype), None
  dw = jnp.einsum(
    f'{x_letters},{out_letters}->{w_letters}',
    x_levels,
    dy_x.astype(dtype),
    preferred_element_type=jnp.float32,
  )
  return dx.astype(dtype), dw.astype(w.carrier.dtype)


def _backward_by_kernel(letters, options, residuals, dy, dtype):
  """Returns the gradients of x and w, by the kernel `int8_matmul`."""
  x_codes, x_scales, w = residuals
  int8_gradient = options.input_gradient == 'int8'
  dx = by_kernel.input_gradient(
    letters,
    dy,
    w,
    rounding='stochastic' if int8_gradient else 'nearest',
    dtype=dtype,
    implementation=options.implementation,
  )
  if w.carrier is None:
    return dx, None
  dw = by_kernel.weight_gradient(
    letters,
    x_codes,
    x_scales,
    dy,
    w,
    nonnegative=options.nonnegative,
    dtype=dtype,
    out_dtype=w.carrier.dtype,
    implementation=options.implementation,
  )
  return dx, dw


int8_einsum.defvjp(_int8_einsum_forward, _int8_einsum_backward)


def int8_input_gradient(
  spec: str, dy: jax.Array, w_codes: jax.Array
) -> jax.Array:
  """Returns einsum(spec, dy, w_codes); rounds dy stochastically to int8.

  Stochastic rounding: a value between two codes gets the upper one with the
  probability of its remainder, so that its expectation is the value. Rounding
  to the nearest would lose values that are small in their row. The noise
  depends on the mesh, because it is hashed from an element's place on this
  device.
  """
  letters = letters_lib.parse(spec)
  largest = int8.largest(dy, letters.x_axes)
  scales = int8.scale_of(collectives.largest(largest, letters.contracted))
  codes = jnp.floor(dy / scales + murmur3.uniform(dy))
  codes = jnp.clip(codes, -int8.MAX_CODE, int8.MAX_CODE).astype(jnp.int8)
  sums = jnp.einsum(spec, codes, w_codes, preferred_element_type=jnp.int32)
  scales = letters_lib.align(scales, letters.x, letters.out)
  return sums.astype(jnp.float32) * scales

"""Turns floats into codes; gradients go straight through the rounding."""

import functools

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules

Quantized = int8.Quantized


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def quantize(x: jax.Array, axes: tuple[int, ...], dtype) -> Quantized:
  """Returns x as codes; x gets the carrier's gradient unchanged.

  Args:
    x: a float32 master weight (a scale per output channel), or activations (a
      scale per token).
    axes: the contracted dimensions, which share a scale.
    dtype: the dtype of the gradient that comes back through the carrier.
  """
  codes, scales = int8.quantize(x, axes)
  return Quantized(codes, scales, jnp.zeros(x.shape, dtype))


def _quantize_forward(x, axes, dtype):
  # An empty array remembers the dtype.
  return quantize(x, axes, dtype), jnp.zeros((0,), x.dtype)


def _quantize_backward(axes, dtype, like_x, cotangent):
  return (cotangent.carrier.astype(like_x.dtype),)


quantize.defvjp(_quantize_forward, _quantize_backward)


def values(x: jax.Array | Quantized) -> jax.Array:
  """Returns activations as floats in their gradient's dtype.

  Codes count by their values, and the gradient leaves through the carrier.
  """
  return _values(x) if isinstance(x, Quantized) else x


@jax.custom_vjp
def _values(x: Quantized) -> jax.Array:
  return int8.dequantize(x, x.carrier.dtype)


_values.defvjp(
  lambda x: (_values(x), None), lambda _, dy: (Quantized(None, None, dy),)
)


def enter(x: jax.Array | Quantized) -> jax.Array | Quantized:
  """Returns whole rows [B, L, …] of an array that devices split along L.

  If x is `Quantized`, its codes and scales cross; the gradient's parts come
  back through the carrier.
  """
  if not isinstance(x, Quantized):
    return collectives.enter(x)
  codes, scales, carrier, _ = x
  if scales.ndim > 1:  # A scale per channel is the same on all devices.
    scales = collectives.enter(lax.stop_gradient(scales))
  return Quantized(
    collectives.enter(lax.stop_gradient(codes)),
    scales,
    collectives.enter(carrier),
  )


@jax.custom_vjp
def quantize_kv(x_BMK: jax.Array, limit_K: jax.Array | None) -> Quantized:
  """Returns the int8 keys or values that a cache would hold.

  Args:
    x_BMK: keys (after the rotary embedding) or values; [B, M, U, K] for
      several heads, with a scale per token and head [B, M, U].
    limit_K: running limit of each channel's magnitude, which gets code 127
      (`scales` are [K]), or None for a scale per token (`scales` are [B, M]).
      Values beyond a limit are cut and get no gradient. The limit's own
      gradient is virtual, limit − largest |x|: an optimizer that follows its
      sign (`optimizer.follow_sign`) keeps the limit near the largest value.

  Without limits a NaN makes the scale of its token NaN. With limits a token's
  NaN is coded as a number, and only the token's other activations show it. A
  channel that is NaN at every token, as from a NaN in its weight, has a NaN
  scale.
  """
  if limit_K is None:
    codes_BMK, scales_BM1 = int8.quantize(x_BMK, (-1,))
    scales = scales_BM1[..., 0]
  else:
    is_nan_K = jnp.all(jnp.isnan(x_BMK), axis=(0, 1))
    scales = int8.scale_of(jnp.where(is_nan_K, jnp.nan, limit_K))
    codes_BMK = int8.encode(x_BMK, scales[None, None])
  return Quantized(codes_BMK, scales, jnp.zeros_like(x_BMK))


def _quantize_kv_forward(x_BMK, limit_K):
  excess_K, is_inside_BMK = None, None
  if limit_K is not None:
    size_BMK = jnp.abs(x_BMK.astype(jnp.float32))
    is_inside_BMK = size_BMK <= limit_K[None, None]
    seen_K = int8.largest(x_BMK, (0, 1))[0, 0]
    seen_K = collectives.largest(seen_K, 'BL', rules.ROWS)
    # Every device holds the limit, and their gradients are summed.
    excess_K = (limit_K - seen_K) / collectives.devices()
  return quantize_kv(x_BMK, limit_K), (excess_K, is_inside_BMK)


def _quantize_kv_backward(residuals, cotangent):
  excess_K, is_inside_BMK = residuals
  if excess_K is None:
    return cotangent.carrier, None
  return jnp.where(is_inside_BMK, cotangent.carrier, 0), excess_K


quantize_kv.defvjp(_quantize_kv_forward, _quantize_kv_backward)

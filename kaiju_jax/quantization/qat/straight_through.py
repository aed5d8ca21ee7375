"""Floats to codes, with gradients that go straight through the rounding."""

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
  """Returns x as codes, whose gradient goes straight through.

  Args:
    x: a float32 master weight (a scale per output channel), or activations (a
      scale per token).
    axes: the dimensions that share a scale: the contracted ones.
    dtype: of the gradient that comes back through the carrier.
  """
  codes, scales = int8.quantize(x, axes)
  return Quantized(codes, scales, jnp.zeros(x.shape, dtype))


def _quantize_forward(x, axes, dtype):
  # An empty array remembers the dtype.
  return quantize(x, axes, dtype), jnp.zeros((0,), x.dtype)


def _quantize_backward(axes, dtype, like_x, cotangent):
  return (cotangent.carrier.astype(like_x.dtype),)


quantize.defvjp(_quantize_forward, _quantize_backward)


def enter(x: jax.Array | Quantized) -> jax.Array | Quantized:
  """Returns whole rows [B, L, …], where each device has its part of L.

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
    x_BMK: keys (after the rotary embedding) or values.
    limit_K: running limit of each channel's magnitude, which takes code 127
      (`scales` [K] then), or None for a scale per token (`scales` [B, M]). Its
      virtual gradient is limit − largest |x| seen: an optimizer that follows
      its sign (`optimizer.follow_sign`) keeps the limit where the values are.
  """
  if limit_K is None:
    codes_BMK, scales_BM1 = int8.quantize(x_BMK, (-1,))
    scales = scales_BM1[..., 0]
  else:
    scales = int8.scale_of(limit_K)
    codes_BMK = int8.encode(x_BMK, scales[None, None])
  return Quantized(codes_BMK, scales, jnp.zeros_like(x_BMK))


def _quantize_kv_forward(x_BMK, limit_K):
  excess_K = None
  if limit_K is not None:
    seen_K = int8.largest(x_BMK, (0, 1))[0, 0]
    seen_K = collectives.largest(seen_K, 'BL', rules.ROWS)
    # Every device holds the limit, and their gradients are summed.
    excess_K = (limit_K - seen_K) / collectives.devices()
  return quantize_kv(x_BMK, limit_K), excess_K


def _quantize_kv_backward(excess_K, cotangent):
  return cotangent.carrier, excess_K


quantize_kv.defvjp(_quantize_kv_forward, _quantize_kv_backward)

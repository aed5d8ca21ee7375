"""Bungee: one learned virtual scalar per weight matrix.

From the sources: virtual scalars let a small int8 model express a wider range
of activations and gradients; no formula is given. Our guess: the weight used
is w·exp(b). The scalar b is 0 at first and has its own learning rate and no
decay. Its exponential multiplies the dequantization scale, so codes do not
change and inference pays nothing. In the backward pass the carrier's cotangent
is multiplied by exp(b) on its way to the weight, and b gets Σ gradient ·
weight.
Bungee matters where the grid is fixed (ternary updates); with scales taken from
the weights themselves it brought nothing in a small study.
"""

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.quantization import int8


def stretch(
  weight: jax.Array | int8.Quantized, b: jax.Array
) -> jax.Array | int8.Quantized:
  """Returns `weight · exp(b)`; codes stay, and their scales are multiplied."""
  if isinstance(weight, int8.Quantized):
    return _stretch_quantized(weight, b)
  return weight * jnp.exp(b).astype(weight.dtype)


@jax.custom_vjp
def _stretch_quantized(weight: int8.Quantized, b: jax.Array):
  # An export holds the product. The barrier makes the users of the scales
  # compile here as they do there.
  scales = lax.optimization_barrier(weight.scales * jnp.exp(b))
  return weight._replace(scales=scales)


def _forward(weight, b):
  stretched = _stretch_quantized(weight, b)
  return stretched, (stretched._replace(carrier=None), b)


def _backward(residuals, cotangent):
  # The carrier's cotangent is dL/d(w·exp(b)).
  stretched, b = residuals
  gradient = cotangent.carrier
  db = jnp.sum(gradient.astype(jnp.float32) * int8.dequantize(stretched))
  dw = gradient * jnp.exp(b).astype(gradient.dtype)
  return int8.Quantized(None, None, dw), db.astype(b.dtype)


_stretch_quantized.defvjp(_forward, _backward)

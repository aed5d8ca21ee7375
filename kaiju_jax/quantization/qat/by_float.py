"""Products of float activations and int8 weights.

    y = (Σ x · codes) · scale

On a CPU, XLA widens codes one by one before such a product, which takes ten to
twenty times as long as the product of codes. There each token's activations
become two int8 digits, and both rows of digits one s8 dot:

    x = s·(c₁ + c₂/254),   |c₁|, |c₂| ≤ 127,   127·s the token's largest value

What is lost is at most s/508, 2⁻¹⁶ of the token's largest value. The sums are
integers, so that they have the same bits in calls of every shape.
"""

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.quantization import bounds
from kaiju_jax.quantization import int8
from kaiju_jax.quantization.qat import letters as letters_lib
from kaiju_jax.quantization.qat import product

_DIGIT = 2 * bounds.MAX_CODE


def multiply(spec: str, x: jax.Array, w: int8.Quantized) -> jax.Array:
  """Returns the product in float32.

  Args:
    spec: such as 'BLD,DF->BLF'.
    x: floats.
    w: the weight.
  """
  letters = letters_lib.parse(spec)
  scales = letters_lib.align(w.scales, letters.w, letters.out)
  if dispatch.platform() == 'cpu':
    return _by_digits(letters, x, w.codes) * scales
  return (
    product.multiply(letters, x, w.codes.astype(x.dtype), jnp.float32) * scales
  )


def _by_digits(letters, x, codes) -> jax.Array:
  x = x.astype(jnp.float32)
  first, step = int8.quantize(x, letters.x_axes)
  rest = x - first.astype(jnp.float32) * step
  second = int8.encode(rest, step / _DIGIT)
  digits = jnp.concatenate([first, second])
  sums = product.multiply(letters, digits, codes, jnp.int32).astype(jnp.float32)
  high, low = jnp.split(sums, 2)
  step = letters_lib.align(step, letters.x, letters.out)
  return (high + low / _DIGIT) * step

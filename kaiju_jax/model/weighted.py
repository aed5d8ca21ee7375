"""How a layer asks for a weight.

A parameter is named after its shape, `w_in_DF`, and a layer says
`self.weight('w_in_DF', (D, F), contract='D')`. This one helper knows the rest:
how it starts, whether it is int8, whether a Bungee scalar stretches it, and
that an exported checkpoint already holds codes. What a layer gets back it
hands to `qat.einsum`.
"""

import math

from flax import linen as nn
import jax

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat


def letters_of(name: str) -> str:
  """Returns the shape suffix of a tensor's name: 'DF' of 'w_in_DF'.

  Raises:
    ValueError: the name has none.
  """
  stem, _, letters = name.rpartition('_')
  if not stem or not letters.isalpha() or not letters.isupper():
    raise ValueError(
      f'{name!r} has no shape suffix: a name ends in an underscore and one'
      " capital letter a dimension, as 'w_in_DF'."
    )
  return letters


class Weighted(nn.Module):
  """A module whose weights are read off their names."""

  config: model_config.ModelConfig

  def weight(
    self, name: str, shape: tuple[int, ...], contract: str
  ) -> jax.Array | int8.Quantized:
    """Returns the weight as the forward pass uses it.

    Args:
      name: ends in the shape's letters.
      shape: of those letters.
      contract: the letters that a matmul sums over: the fan-in of the initial
        normal distribution (variance 1 / fan-in), and one int8 scale.

    Returns:
      `Quantized` where the config says int8, else the model's dtype.
    """
    letters = letters_of(name)
    if len(letters) != len(shape):
      raise ValueError(f'{name!r} names {len(letters)} axes, shape is {shape}.')
    axes = tuple(letters.index(letter) for letter in contract)
    fan_in = math.prod(shape[axis] for axis in axes)
    if self._is_exported(name):
      return self.get_variable('params', name)
    w = self.param(name, nn.initializers.normal(fan_in**-0.5), shape)
    if self.config.quantization.matmul == 'int8':
      used = qat.quantize_weight(w, axes, self.config.dtype)
    else:
      used = w.astype(self.config.dtype)
    if self.config.quantization.bungee:
      b = self.param(
        f'bungee_{name.removesuffix("_" + letters)}',
        nn.initializers.zeros_init(),
        (),
      )
      used = bungee.stretch(used, b)
    return used

  def _is_exported(self, name: str) -> bool:
    return self.has_variable('params', name) and isinstance(
      self.get_variable('params', name), int8.Quantized
    )

  def einsum(self, spec: str, x: jax.Array, w, **options) -> jax.Array:
    """`qat.einsum` with the config's input gradient."""
    return qat.einsum(
      spec,
      x,
      w,
      input_gradient=self.config.quantization.input_gradient,
      **options,
    )

  def clamp_input(self, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Cuts a projection's input at k times its row's rms over `axes`."""
    quantization = self.config.quantization
    if quantization.clamp_input == 'none':
      return x
    limit = clamp.input_std_limit(x, axes, quantization.clamp_input_k)
    return clamp.clip(x, limit)

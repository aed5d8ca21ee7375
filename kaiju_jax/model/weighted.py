"""Gives a layer its weights in the form that the forward pass uses.

A parameter is named after its shape, `w_in_DF`, and a layer calls
`self.weight('w_in_DF', (D, F))`. This module does the rest. It draws the
initial weight and stores the device's part of it. It gathers the weight as int8
or reads a replica of it (the collection `replica`), stretches it by a Bungee
scalar, or takes the codes that an export holds. The layer passes the result to
`self.einsum`.
"""

import math
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.model import config as model_config
from kaiju_jax.model import lora
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.quantization.qat import letters as letters_lib
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules
from kaiju_jax.wire import codec
from kaiju_jax.wire import fsdp


class _Turned(NamedTuple):
  """A weight whose contracted dimensions lie last, as decoding may hold it."""

  weight: int8.Quantized


class Weighted(nn.Module):
  """A module that makes and gathers its weights according to their names."""

  config: model_config.ModelConfig

  def weight(
    self, name: str, shape: tuple[int, ...]
  ) -> jax.Array | int8.Quantized:
    """Returns a projection's weight as the forward pass uses it.

    Args:
      name: a key of `rules.CONTRACTED`; it ends in the shape's letters.
      shape: the sizes of those letters' dimensions, on one device.

    Returns:
      `Quantized` if the config says int8, otherwise floats in the model's
      dtype. D is whole; in the other letters it is this device's part. A weight
      beside which the parameters hold an adapter is `lora.Adapted`. Codes that
      the parameters hold by the name `rules.turn` come as `_Turned`.
    """
    turned = rules.turn(name)
    if turned != name and self.has_variable('params', turned):
      return self._adapt(name, _Turned(self.get_variable('params', turned)))
    quantization = self.config.quantization
    is_int8 = quantization_config.has_codes(quantization)
    used = self.gather(name, shape, is_int8)
    if quantization.bungee and not self._is_exported(name):
      stem = name.removesuffix(f'_{rules.letters_of(name)}')
      b = self.param(f'bungee_{stem}', nn.initializers.zeros_init(), ())
      used = bungee.stretch(used, b)
    return self._adapt(name, used)

  def _adapt(self, name: str, used):
    """Returns a weight in use with its adapter, if it has one."""
    names = lora.names_of(name)
    if not self.has_variable('params', names.down):
      return used
    down, up, scale = (self.get_variable('params', one) for one in names)
    if names.down.endswith('_DR'):
      down = collectives.whole(down)
    if names.up.endswith('_DR'):
      up = collectives.whole(up)
    return lora.Adapted(used, down, up, scale)

  def gather(
    self, name: str, shape: tuple[int, ...], is_int8: bool
  ) -> jax.Array | int8.Quantized:
    """Returns a master weight gathered from its owners.

    Args:
      name: see `weight`.
      shape: see `weight`.
      is_int8: whether it is used as `Quantized`.

    Raises:
      ValueError: letters that do not match the shape, or no replica although
        the config says 'ternary'.
    """
    letters, contract = rules.letters_of(name), rules.CONTRACTED[name]
    if self._is_exported(name):
      held = self.get_variable('params', name)
      return fsdp.receive(held, letters, contract)
    if len(letters) != len(shape):
      raise ValueError(f'{name!r} names {len(letters)} axes, shape is {shape}.')
    fan_in = math.prod(shape[letters.index(letter)] for letter in contract)
    w = self.param(
      name,
      nn.initializers.normal(fan_in**-0.5),
      collectives.local_shape(letters, shape),
    )
    quantization = self.config.quantization
    wire = fsdp.Wire(
      letters,
      contract,
      self.config.dtype,
      is_int8,
      quantization.wire_weights,
      codec.choose(quantization),
    )
    is_held = is_int8 and quantization.wire_weights == 'ternary'
    if is_held and not self.is_initializing():
      return fsdp.follow(self._replica(name), w, wire)
    return fsdp.gather(w, wire)

  def _replica(self, name: str) -> int8.Quantized:
    if not self.has_variable('replica', name):
      raise ValueError(
        f"{name}: model.quantization.wire_weights='ternary' reads a replica,"
        " and there is none: apply the model to {'params': …, 'replica': …}"
        ' (ternary_plan.collections).'
      )
    return self.get_variable('replica', name)

  def _is_exported(self, name: str) -> bool:
    return self.has_variable('params', name) and isinstance(
      self.get_variable('params', name), int8.Quantized
    )

  def einsum(
    self, spec: str, x: jax.Array, w: Any, **options: Any
  ) -> jax.Array:
    """Calls the function `einsum` with this module's config."""
    return einsum(spec, x, w, self.config, **options)

  def leave(
    self,
    spec: str,
    x: jax.Array,
    w: Any,
    is_exact: bool = False,
    **options: Any,
  ) -> jax.Array:
    """Returns this device's part of L of an einsum, summed over devices.

    With `is_exact` sums of codes are added before they are scaled: they have
    the bits of one device. Those of floats, of adapters and of a kernel that
    is chosen by name do not.
    """
    quantization = self.config.quantization
    is_coded = quantization.matmul == 'int8'
    is_coded = is_coded and not quantization.matmul_implementation
    if is_exact and is_coded and isinstance(w, int8.Quantized):
      return self.einsum(spec, x, w, leaves=True, **options)
    return collectives.leave(self.einsum(spec, x, w, **options))

  def encode(self, x_BLD: jax.Array) -> jax.Array | int8.Quantized:
    """Returns activations in the form in which they cross to other devices.

    They cross as int8 codes if the projections are int8, because those would
    make the same codes afterwards.
    """
    if self.config.quantization.matmul != 'int8':
      return x_BLD
    return qat.quantize(x_BLD, (-1,), x_BLD.dtype)

  def clamp_input(
    self, x: jax.Array, letters: str, is_exact: bool = False
  ) -> jax.Array:
    """Clamps a projection's input to k times each token's rms over `letters`.

    Args:
      x: activations [B, L, …]; `letters` are its last dimensions.
      letters: such as 'D' or 'HK'.
      is_exact: see `clamp.input_std_limit`.
    """
    quantization = self.config.quantization
    if quantization.clamp_input == 'none':
      return x
    k = quantization.clamp_input_k
    limit = clamp.input_std_limit(x, letters, k, is_exact)
    return clamp.clip(x, limit)

  def encode_part(
    self, x: jax.Array, letters: str, is_exact: bool
  ) -> jax.Array | int8.Quantized:
    """Returns a projection's input, clamped, of which devices split `letters`.

    It has no gradient. Arguments are those of `clamp_input`. Where the result
    is codes, one collective serves the clamp and the codes.
    """
    quantization = self.config.quantization
    is_clamped = quantization.clamp_input == 'input_std'
    is_coded = quantization.matmul == 'int8' and is_clamped and not is_exact
    if not is_coded or not collectives.axes_of(letters):
      return self.clamp_input(x, letters, is_exact)
    axes = tuple(range(-len(letters), 0))
    square = jnp.square(x.astype(jnp.float32))
    mean, largest = collectives.moments(
      jnp.mean(square, axis=axes, keepdims=True),
      int8.largest(x, axes),
      letters,
    )
    limit = quantization.clamp_input_k * jnp.sqrt(mean)
    limit = limit.astype(x.dtype).astype(jnp.float32)
    scales = int8.scale_of(jnp.minimum(largest, limit))
    codes = int8.encode(clamp.clip(x, limit), scales)
    return int8.Quantized(codes, scales, jnp.zeros_like(x))


def einsum(
  spec: str,
  x: jax.Array,
  w: Any,
  config: model_config.ModelConfig,
  **options: Any,
) -> jax.Array:
  """Calls `qat.einsum` with the config's input gradient and implementation.

  The product with `lora.Adapted` has the adapter's part added.
  """
  if isinstance(w, lora.Adapted):
    return lora.add(spec, x, einsum(spec, x, w.weight, config, **options), w)
  if isinstance(w, _Turned):
    return einsum(letters_lib.turn(spec), x, w.weight, config, **options)
  quantization = config.quantization
  return qat.einsum(
    spec,
    x,
    w,
    weight_only=quantization.matmul == 'weights',
    input_gradient=quantization.input_gradient,
    implementation=quantization.matmul_implementation,
    **options,
  )

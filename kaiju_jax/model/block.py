"""The transformer layer, and the block of layers that the model repeats."""

import dataclasses
from typing import Any

from flax import linen as nn
import jax

from kaiju_jax.model import attention
from kaiju_jax.model import config as model_config
from kaiju_jax.model import context as context_lib
from kaiju_jax.model import feedforward
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import norm
from kaiju_jax.model import past
from kaiju_jax.quantization import rotation


class TransformerLayer(nn.Module):
  """Attention, then feed-forward, each added to the residual stream.

  `config.norms` says where the norms stand:

      before   x + f(norm(x))
      both     x + norm(f(norm(x)))
      after    x + norm(f(x))
  """

  config: model_config.ModelConfig
  layer: layers_lib.Layer
  z_target: str = 'lse'

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    key_value: past.KeyValue | None,
    context: context_lib.Context,
  ) -> tuple[jax.Array, past.KeyValue]:
    normed_BLD, _ = self._before('attention_norm', x_BLD)
    out_BLD, key_value = attention.Attention(
      self.config, self.layer, self.z_target, name='attention'
    )(normed_BLD, key_value, context)
    x_BLD = x_BLD + self._after('attention_out_norm', out_BLD, context)
    normed_BLD, gain_D = self._before('feedforward_norm', x_BLD)
    out_BLD = feedforward.FeedForward(self.config, name='feedforward')(
      normed_BLD, gain_D, context.is_exact
    )
    out_BLD = self._after('feedforward_out_norm', out_BLD, context)
    return x_BLD + out_BLD, key_value

  def _before(self, name: str, x_BLD: jax.Array):
    """Returns the input of attention or feed-forward, and its norm's gain."""
    if self.config.norms == 'after':
      return x_BLD, None
    return norm.RMSNorm(self.config.norm_epsilon, name=name)(x_BLD)

  def _after(self, name: str, out_BLD: jax.Array, context) -> jax.Array:
    """Returns what is added to the stream, turned as the stream is."""
    if self.config.norms == 'before':
      return out_BLD
    out_BLD, _ = norm.RMSNorm(self.config.norm_epsilon, name=name)(out_BLD)
    if context.rotation is None:
      return out_BLD
    return rotation.turn(context.rotation, out_BLD)


class Block(nn.Module):
  """The repeating block of the layer tuple: the body of the model's scan.

  With remat, the backward pass recomputes each layer by itself, and the keys
  and values that cross from one layer to another are saved. One checkpoint
  around a block of 14 layers would hold the activations of all of them at once.
  """

  config: model_config.ModelConfig
  layers: tuple[layers_lib.Layer, ...]
  z_target: str = 'lse'

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: context_lib.Context
  ) -> tuple[jax.Array, Any]:
    """Returns the output [B, L, D], and the keys and values that were made.

    Keys and values come in a dictionary by the index of their layer if the pass
    has a cache, and otherwise as None: a scan would return them for every
    repeat.
    """
    if self._shares_traces(context):
      return self._run_by_kind(x_BLD, context)
    layer_class = TransformerLayer
    if self.config.remat == 'layer' and context.pasts is None:
      # The scan's body holds many layers. Without barriers XLA recomputes them
      # all at once (1b at 32k on one H100: 38.5 GB against 23.9, compiled).
      layer_class = nn.remat(TransformerLayer, prevent_cse=True)
    made = {}
    for index, layer in enumerate(self.layers):
      x_BLD, key_value = layer_class(
        self.config, layer, self.z_target, name=f'layer_{index}'
      )(x_BLD, made.get(layer.kv_from), context)
      if layer.kv_from == index:
        made[index] = key_value
    return x_BLD, None if context.pasts is None else made

  def _shares_traces(self, context: context_lib.Context) -> bool:
    """Returns whether the pass reads a cache in the fast mode."""
    return context.pasts is not None and not context.is_exact

  def _run_by_kind(self, x_BLD: jax.Array, context: context_lib.Context):
    """Does what `__call__` does; layers of a kind are traced and lowered once.

    XLA puts the layers in place of their calls, so the compiled program is that
    of `__call__`.
    """
    made, kinds = {}, {}
    for index, layer in enumerate(self.layers):
      kind = dataclasses.replace(layer, kv_from=0)
      if kind not in kinds:
        module = TransformerLayer(self.config, kind, self.z_target, parent=None)
        kinds[kind] = jax.jit(module.apply)
      x_BLD, key_value = kinds[kind](
        {'params': self.get_variable('params', f'layer_{index}')},
        x_BLD,
        made.get(layer.kv_from),
        context._replace(pasts={0: context.pasts[layer.kv_from]}),
      )
      if layer.kv_from == index:
        made[index] = key_value
    return x_BLD, made

"""The same model as a reader would first write it: the benchmark's peer.

flax linen with `nn.Dense`, one dense mask per kind of layer, one Python loop
over the layers: windows, shared keys and values, RMSNorm, rotary embeddings and
squared ReLU as in `kaiju_jax/model`, and no int8.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.model import config as model_config


def _rotate(x, angle):
  first, second = jnp.split(x, 2, axis=-1)
  cosine, sine = jnp.cos(angle), jnp.sin(angle)
  return jnp.concatenate(
    [first * cosine - second * sine, first * sine + second * cosine], axis=-1
  )


class Layer(nn.Module):
  config: model_config.ModelConfig
  owns: bool

  @nn.compact
  def __call__(self, x, key_value, mask, angle):
    config = self.config
    heads, size = config.num_heads, config.head_dim
    n = nn.RMSNorm()(x)
    q = nn.Dense(heads * size, use_bias=False)(n)
    q = _rotate(q.reshape(*q.shape[:2], heads, size), angle[:, :, None])
    if self.owns:
      k = _rotate(nn.Dense(size, use_bias=False)(n), angle)
      key_value = k, nn.Dense(size, use_bias=False)(n)
    k, v = key_value
    logits = jnp.einsum('blhk,bmk->bhlm', q, k) / np.sqrt(size)
    logits = jnp.where(mask[:, None], logits, -1e30)
    out = jnp.einsum('bhlm,bmk->blhk', nn.softmax(logits), v)
    out = out.reshape(*out.shape[:2], heads * size)
    x = x + nn.Dense(config.d_model, use_bias=False)(out)
    h = jnp.square(
      nn.relu(nn.Dense(config.d_ff, use_bias=False)(nn.RMSNorm()(x)))
    )
    return x + nn.Dense(config.d_model, use_bias=False)(h), key_value


class Model(nn.Module):
  """tokens → logits; float32."""

  config: model_config.ModelConfig

  @nn.compact
  def __call__(self, tokens: jax.Array, document: jax.Array, position: Any):
    """Args: int32 [B, L] each; `document` numbers the row's documents."""
    config = self.config
    embed = nn.Embed(config.vocab_size, config.d_model)
    x = embed(tokens) * np.sqrt(config.d_model)
    place = jnp.arange(tokens.shape[1])
    causal = place[:, None] >= place[None]
    causal = causal[None] & (document[:, :, None] == document[:, None])
    near = place[:, None] - place[None] < config.window
    rate = config.rope_local ** (
      -np.arange(0, config.head_dim, 2) / config.head_dim
    )
    angle = position[:, :, None] * rate.astype(np.float32)[None, None]
    layer_class = nn.remat(Layer) if config.remat == 'layer' else Layer
    made = {}
    for index, layer in enumerate(config.layers()):
      mask = causal if layer.window is None else causal & near[None]
      x, made[index] = layer_class(config, layer.kv_from == index)(
        x, made.get(layer.kv_from), mask, angle
      )
    return embed.attend(nn.RMSNorm()(x))

"""Balances the channels of keys that have biases, for codes with one scale.

A biased key is large in a few channels, in every token. Keys are stored with
one scale per token and head, which those channels decide; the others would lose
most of their bits. A rotary embedding turns channels i and i + K/2 together and
commutes with a factor of both, so that for every pair

    q · k = Σ (s·q)·(k/s)

Each pair's s is the power of two next to its largest key, which the weights and
biases predict: then all pairs use the whole range of codes. A power of two
moves no bit of a float product. The factors go into the projections of keys,
and inversely into those of all queries that read them, also of layers that
share the keys. (Our choice: the factor is the key's size alone, not the root of
its ratio to the query's, because queries stay floats.)
"""

from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax.model import config as model_config
from kaiju_jax.model import lora
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules

# A projection of a normed input lies within so many standard deviations.
_DEVIATIONS = 3.0


def balance(params: Any, config: model_config.ModelConfig) -> Any:
  """Returns parameters whose keys have pairs of like size.

  `params` are unstacked, floats or codes (`weights.ready`). Without biases, or
  with norms of queries and keys, nothing changes.
  """
  if not config.qkv_bias or config.qk_norm != 'none':
    return params
  blocks = dict(params['blocks'])
  layers = config.layers()
  for index, layer in enumerate(layers):
    owner = params['blocks'][f'layer_{layer.kv_from}']
    factor_UK = _factors(owner, config)
    name = f'layer_{index}'
    attention = dict(blocks[name]['attention'])
    groups = config.num_heads // config.num_kv_heads
    factor_HK = jnp.repeat(factor_UK, groups, axis=0)
    _scale(attention, 'w_q_DHK', factor_HK)
    _scale(attention, 'bias_q_HK', factor_HK)
    if layer.kv_from == index:
      several = config.num_kv_heads > 1
      letters = 'UK' if several else 'K'
      inverse = 1 / (factor_UK if several else factor_UK[0])
      _scale(attention, f'w_k_D{letters}', inverse)
      _scale(attention, f'bias_k_{letters}', inverse)
    blocks[name] = {**blocks[name], 'attention': attention}
  return {**params, 'blocks': blocks}


def _factors(layer: Any, config: model_config.ModelConfig) -> jax.Array:
  """Returns the powers of two of one layer's keys, float32 [U, K]."""
  attention = layer['attention']
  letters = 'UK' if config.num_kv_heads > 1 else 'K'
  shape = config.num_kv_heads, config.head_dim
  name = f'w_k_D{letters}'
  if name in attention:
    w = attention[name]
  else:
    turned = attention[rules.turn(name)]
    w = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), turned)
  is_coded = isinstance(w, int8.Quantized)
  codes = w.codes if is_coded else w
  x = codes.astype(jnp.float32)
  gain_D = layer.get('attention_norm', {}).get('gain_D')
  if gain_D is not None:
    x = x * gain_D.reshape((-1,) + (1,) * len(letters))
  square = jnp.sum(jnp.square(x), axis=0)
  if is_coded:
    square = square * jnp.square(w.scales[0])
  square = square.reshape(shape)
  bias = attention[f'bias_k_{letters}'].reshape(shape)

  def of_pair(x_UK):
    return jnp.sqrt(sum(jnp.split(x_UK, 2, axis=1)))

  size = of_pair(jnp.square(bias)) + _DEVIATIONS * of_pair(square)
  exponent = jnp.round(jnp.log2(jnp.clip(size, 2.0**-60, 2.0**60)))
  factor = jnp.ldexp(jnp.ones_like(size), exponent.astype(jnp.int32))
  return jnp.concatenate([factor, factor], axis=1)


def _scale(attention: dict[str, Any], name: str, factor: jax.Array) -> None:
  """Multiplies a parameter, an adapter included, by a factor of each output."""
  held = name
  if name in rules.CONTRACTED:
    held = name if name in attention else rules.turn(name)
    if lora.names_of(name).up in attention:
      # An adapter's outputs have the weight's letters behind its rank.
      _scale(attention, lora.names_of(name).up, factor[None])
    factor = factor[None] if held == name else factor[..., None]
  x = attention[held]
  if isinstance(x, int8.Quantized):
    attention[held] = x._replace(scales=x.scales * factor)
  else:
    attention[held] = (x * factor).astype(x.dtype)

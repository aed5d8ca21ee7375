"""The small models that the tests of interchange share."""

import dataclasses

import jax
import numpy as np

from kaiju_jax import visibility
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

# √48 is no power of two, and heads of 8 do not add up to the width.
PLAIN = model_config.ModelConfig(
  vocab_size=260,
  d_model=48,
  num_layers=3,
  period=1,
  global_share=1,
  local_share=1,
  num_heads=4,
  head_dim=8,
  d_ff=40,
  max_length=64,
  dtype='float32',
  quantization=quantization_config.none(),
)
KAIJU = dataclasses.replace(
  PLAIN,
  num_layers=6,
  period=3,
  global_share=2,
  local_share=2,
  window=5,
  quantization=quantization_config.QuantizationConfig(bungee=True),
)


def changed(config, quantization=None, **model) -> model_config.ModelConfig:
  quantization = dataclasses.replace(
    config.quantization, **(quantization or {})
  )
  return dataclasses.replace(config, quantization=quantization, **model)


# Models whose folders have all that an Arcee folder can express.
EXPRESSIBLE = {
  'tied': PLAIN,
  'untied, Bungee, another epsilon, base and depth': changed(
    PLAIN,
    {'bungee': True},
    tied_embedding=False,
    norm_epsilon=0.25,
    rope_global=77.0,
    layout='G0 G1 G2 G3',
  ),
  'two heads of keys and values': changed(PLAIN, num_kv_heads=2),
}


def logits(params, config, tokens_BL):
  """Returns float32 [B, L, V] of causal rows, in one compilation."""
  model = transformer.Transformer(config)
  rows, length = tokens_BL.shape
  seen = visibility.concatenate([visibility.causal(length)] * rows)
  apply = jax.jit(lambda p: model.apply({'params': p}, tokens_BL, seen))
  return np.asarray(apply(params))


def params_of(config, seed=0):
  """Returns random parameters, gains and Bungee scalars among them."""
  rng = np.random.default_rng(seed)

  def draw(path, shape):
    start = 1 if path[-1].key == 'gain_D' else 0
    noise = 0.15 * rng.standard_normal(shape.shape)
    return jax.numpy.asarray(start + noise, jax.numpy.float32)

  return jax.tree_util.tree_map_with_path(
    draw, transformer.parameter_shapes(config)
  )

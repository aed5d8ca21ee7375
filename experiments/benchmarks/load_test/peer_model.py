"""The model that is timed beside other libraries' implementations of it.

The shape is Arcee's: squared ReLU without a gate, one head of keys and values,
every layer global. `interchange` writes it for others to read.
"""

import dataclasses

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config


def config(**changes) -> model_config.ModelConfig:
  """Returns the model: 96.6 M parameters, float32, unless changed."""
  defaults = model_config.ModelConfig(
    vocab_size=32_000,
    d_model=768,
    num_layers=12,
    num_heads=12,
    head_dim=64,
    d_ff=3072,
    max_length=4096,
    window=1024,
    period=1,
    local_share=1,
    global_share=1,
    dtype='float32',
    quantization=quantization_config.none(),
  )
  return dataclasses.replace(defaults, **changes)

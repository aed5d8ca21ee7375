"""One device's part of a size's layer block, and the arms of its step."""

import dataclasses

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.quantization import config as quantization_config

ARMS = {
  'bf16': quantization_config.none,
  'int8': quantization_config.QuantizationConfig,
  'int8, gradient': lambda: quantization_config.QuantizationConfig(
    input_gradient='int8'
  ),
}


def part_of(preset: str, tensor: int) -> model_config.ModelConfig:
  """Returns one device's part of a preset's repeating block.

  Args:
    preset: one of `presets.PRESETS`.
    tensor: devices that its layers are split over.

  Raises:
    ValueError: heads or hidden units that `tensor` does not divide.
  """
  whole = presets.preset(preset)
  for name in 'num_heads', 'd_ff':
    size = getattr(whole, name)
    if size % tensor:
      raise ValueError(f'--tensor={tensor} does not divide {name}={size}.')
  return dataclasses.replace(
    whole,
    vocab_size=256,
    num_layers=len(layers_lib.repeating_block(whole.layers())),
    num_heads=whole.num_heads // tensor,
    d_ff=whole.d_ff // tensor,
  )

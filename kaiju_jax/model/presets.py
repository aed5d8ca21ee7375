"""Named model configs: a ladder of small models, and the three Kaiju sizes.

From the sources: sizes of 13B, 34B and 110B parameters, multi-query attention
throughout, windows of 1,024 and one global layer in about seven. The shapes are
unpublished: every width, depth and head count here is our guess, chosen so that

  * the parameter count is within 2 % of a Kaiju size's name (5 % for the
    ladder),
  * the depth is a multiple of 14, the block in which global layers pair up,
  * D is a multiple of 8 × the FSDP width (Squinch's groups of eight rows stay
    whole): up to 128 for 13b, 34b and 110b, and
  * a tensor width of 8 divides H, and leaves a multiple of 128 hidden units.

The ladder's models read bytes: with a vocabulary of 256 nearly all parameters
are in layers, no size needs a tokenizer, and losses compare in bits per byte.
Each model is about four times the size of the one before.

A preset is a starting point: take it and set its fields.
"""

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config


def _ladder(
  d_model: int,
  num_layers: int,
  num_heads: int,
  d_ff: int,
  window: int,
  max_length: int,
) -> model_config.ModelConfig:
  return model_config.ModelConfig(
    vocab_size=256,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=num_heads,
    head_dim=d_model // num_heads,
    d_ff=d_ff,
    window=window,
    max_length=max_length,
  )


def _kaiju(
  d_model: int, num_layers: int, d_ff: int
) -> model_config.ModelConfig:
  return model_config.ModelConfig(
    vocab_size=65_536,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=d_model // 128,
    head_dim=128,
    d_ff=d_ff,
    window=1024,
    max_length=32_768,
    remat='layer',
    quantization=quantization_config.QuantizationConfig(embedding='int8'),
  )


PRESETS = {
  '1m': lambda: _ladder(128, 7, 4, 384, 64, 1024),
  '4m': lambda: _ladder(192, 14, 6, 512, 128, 2048),
  '15m': lambda: _ladder(384, 14, 6, 1024, 128, 2048),
  '60m': lambda: _ladder(768, 14, 12, 2048, 256, 4096),
  '250m': lambda: _ladder(1024, 28, 8, 3328, 512, 8192),
  '1b': lambda: _ladder(2048, 28, 16, 6656, 1024, 16_384),
  '3b': lambda: _ladder(3072, 28, 24, 14_336, 1024, 16_384),
  '13b': lambda: _kaiju(5120, 42, 24_576),
  '34b': lambda: _kaiju(7168, 56, 34_816),
  '110b': lambda: _kaiju(12_288, 70, 51_200),
}

# The intended mesh (fsdp, tensor) of each Kaiju size, on 64, 128 and 512
# devices as in `tpu_gpu_configs`; this is our guess, too.
MESHES = {'13b': (8, 8), '34b': (16, 8), '110b': (64, 8)}

# An arm is a variant of a model that a run compares with others.
ARMS = ('int8', 'bf16', 'ternary')


def preset(name: str, arm: str = 'int8') -> model_config.ModelConfig:
  """Returns a new config of the named shape, which the caller may change.

  Args:
    name: a key of PRESETS.
    arm: 'int8' gathers weights as codes and sends gradients in Squinch; 'bf16'
      has no int8 at all; 'ternary' keeps replicas of the codes on every device.

  Raises:
    ValueError: no such preset or arm; the message lists the names.
  """
  if name not in PRESETS:
    raise ValueError(f'preset={name!r}: must be one of {", ".join(PRESETS)}.')
  if arm not in ARMS:
    raise ValueError(f'arm={arm!r}: must be one of {", ".join(ARMS)}.')
  config = PRESETS[name]()
  if arm == 'bf16':
    config.quantization = quantization_config.none()
  elif arm == 'ternary':
    config.quantization.wire_weights = 'ternary'
  return config

"""The model's shape, and which techniques it uses."""

import dataclasses
import math

from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config


@dataclasses.dataclass
class ModelConfig:
  """Shape and techniques of one model.

  Attributes:
    vocab_size: V.
    d_model: D.
    num_layers: depth.
    num_heads: H query heads; keys and values have a single head.
    head_dim: K, even (rotary pairs).
    d_ff: F.
    max_length: longest position that the rotary tables cover.
    window: positions that a local layer sees, itself included.
    period: one layer in `period` is global; 1 makes all global, 0 none.
    local_share: adjacent local layers that share keys and values.
    global_share: successive global layers that share keys and values.
    layout: the layer tuple drawn out, as 'L0 L0 L0 L3 L3 L3 G6'; where given,
      it stands instead of num_layers, period and the two shares.
    rope_local: rotary base of local layers; 0 for no rotary there.
    rope_global: rotary base of global layers; 0 for no rotary there.
    norm_epsilon: what every RMSNorm adds to the mean square.
    tied_embedding: whether the output head is the embedding's transpose.
    dtype: of activations and local gradients, 'bfloat16' or 'float32'.
      Parameters are float32 always.
    remat: 'none', or 'layer' to recompute each layer in the backward pass
      (shared keys and values are saved).
    unroll: how many repeats of the layer block one scan iteration holds.
    attention: implementation of the attention kernel; '' chooses by platform.
    quantization: what is int8.
  """

  vocab_size: int = 256
  d_model: int = 128
  num_layers: int = 14
  num_heads: int = 4
  head_dim: int = 32
  d_ff: int = 512
  max_length: int = 2048
  window: int = 128
  period: int = 7
  local_share: int = 3
  global_share: int = 2
  layout: str = ''
  rope_local: float = 10_000.0
  rope_global: float = 10_000.0
  norm_epsilon: float = 1e-6
  tied_embedding: bool = True
  dtype: str = 'bfloat16'
  remat: str = 'none'
  unroll: int = 1
  attention: str = ''
  quantization: quantization_config.QuantizationConfig = dataclasses.field(
    default_factory=quantization_config.QuantizationConfig
  )

  def layers(self) -> tuple[layers_lib.Layer, ...]:
    """Returns the layer tuple: `layout` parsed, or the interleaved stack."""
    if self.layout:
      return layers_lib.parse(self.layout, self.window)
    return layers_lib.kaiju_layers(
      self.num_layers,
      self.window,
      self.period,
      self.local_share,
      self.global_share,
    )


_CHOICES = {
  'dtype': ('bfloat16', 'float32'),
  'remat': ('none', 'layer'),
  'quantization.matmul': ('int8', 'none'),
  'quantization.matmul_implementation': (
    '',
    'reference',
    'xla',
    'pallas_gpu',
    'pallas_tpu',
  ),
  'quantization.kv': ('int8', 'none'),
  'quantization.kv_scale': ('token', 'channel'),
  'quantization.qk': ('int8', 'none'),
  'quantization.clamp_hidden': ('weight_rms', 'input_std', 'none'),
  'quantization.clamp_input': ('input_std', 'none'),
  'quantization.input_gradient': ('bf16', 'int8'),
  'quantization.embedding': ('int8', 'none'),
  'quantization.wire_weights': ('int8', 'float', 'ternary'),
  'quantization.wire_gradients': (
    'squinch',
    'squinch_floor',
    'squinch_fitted',
    'float',
    'int4',
    'int4_flat',
  ),
  'quantization.wire_header': ('ln6', 'quarter'),
}


def check(config: ModelConfig) -> None:
  """Refuses a model that cannot be built, before anything compiles.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name in (
    'vocab_size',
    'd_model',
    'num_heads',
    'head_dim',
    'd_ff',
    'max_length',
    'unroll',
  ):
    if getattr(config, name) < 1:
      raise ValueError(
        f'model.{name}={getattr(config, name)}: must be at least 1.'
      )
  if config.head_dim % 2:
    raise ValueError(
      f'model.head_dim={config.head_dim}: must be even, for rotary embeddings'
      ' turn pairs.'
    )
  for name, choices in _CHOICES.items():
    value = config
    for part in name.split('.'):
      value = getattr(value, part)
    if value not in choices:
      raise ValueError(
        f'model.{name}={value!r}: must be one of'
        f' {", ".join(map(repr, choices))}.'
      )
  quantization = config.quantization
  if quantization.qk == 'int8' and quantization.kv != 'int8':
    raise ValueError(
      "model.quantization.qk='int8' needs model.quantization.kv='int8', not"
      f' {quantization.kv!r}: QKᵀ in int8 reads the stored codes of K.'
    )
  _check_ternary(quantization)
  for name in ('clamp_hidden_k', 'clamp_input_k'):
    if getattr(quantization, name) <= 0:
      raise ValueError(
        f'model.quantization.{name}={getattr(quantization, name)}: must be'
        ' positive.'
      )
  for name in ('rope_local', 'rope_global'):
    base = getattr(config, name)
    if base and base <= 1:
      raise ValueError(
        f'model.{name}={base}: a rotary base is larger than 1 (10000.0 is'
        ' usual); 0 for no rotary.'
      )
  if not 0 < config.norm_epsilon < 1:
    raise ValueError(
      f'model.norm_epsilon={config.norm_epsilon}: must lie between 0 and 1'
      ' (1e-06 is usual).'
    )
  try:
    layers = config.layers()
    layers_lib.check(layers)
  except ValueError as error:
    where = f'model.layout={config.layout!r}: ' if config.layout else 'model.'
    raise ValueError(f'{where}{error}') from error
  repeats = len(layers) // len(layers_lib.repeating_block(layers))
  if repeats % config.unroll:
    raise ValueError(
      f'model.unroll={config.unroll}: must divide the {repeats} repeats of the'
      ' layer block.'
    )


def _check_ternary(config: quantization_config.QuantizationConfig) -> None:
  if config.wire_weights == 'ternary' and config.matmul != 'int8':
    raise ValueError(
      "model.quantization.wire_weights='ternary' needs"
      f" model.quantization.matmul='int8', not {config.matmul!r}: replicas are"
      ' int8 codes, which a float matmul would not read.'
    )
  ternary = config.ternary
  for name in ('check_every', 'events_every'):
    value = getattr(ternary, name)
    if value < 1:
      raise ValueError(
        f'model.quantization.ternary.{name}={value}: must be at least 1.'
      )
  if not 0 <= ternary.least_scale < math.inf:
    raise ValueError(
      f'model.quantization.ternary.least_scale={ternary.least_scale}: must be'
      ' positive, or 0 for the finest scale that never lags.'
    )

"""The config of quantization: the int8 parts, clamping, and the wire's formats.

Imports no jax, so that config files and `--help` are quick.
"""

import dataclasses
import math
from typing import Any

from kaiju_jax.storage import strict


@dataclasses.dataclass
class TernaryConfig:
  """Settings of ternary updates (`wire/ternary.py`)."""

  check_every: int = 100  # Steps between checksums of the replicas.
  # Steps between events that double or halve a channel's scale.
  events_every: int = 4
  # The finest scale of a channel's grid; 0 for the finest one on which codes
  # never lag behind the masters at the peak learning rate.
  least_scale: float = 0.0


@dataclasses.dataclass
class QuantizationConfig:
  """The quantization of a model: one field per technique, for ablations."""

  # 'int8' for s8×s8→s32 projections and feed-forward with straight-through
  # gradients, 'none' for plain ones in the model's dtype; 'weights' for int8
  # weights and float activations, which serves a trained model and trains none.
  matmul: str = 'int8'
  # The name of an implementation of the kernel `int8_matmul`; '' for XLA's own
  # dots (the default on every platform until a measurement on real hardware
  # says that a kernel is faster).
  matmul_implementation: str = ''
  # 'int8' for keys and values stored as codes and scales, 'none' for floats.
  kv: str = 'int8'
  # 'token' (one scale per token; our guess) or 'channel' (a running scale per
  # channel, as document 003 describes; it can drift).
  kv_scale: str = 'token'
  # 'int8' for QKᵀ in int8 ("half-int8 attention"; needs kv='int8'), 'none' to
  # dequantize K first.
  qk: str = 'int8'
  # Limit of the feed-forward's hidden activations: 'weight_rms', 'input_std' or
  # 'none'.
  clamp_hidden: str = 'weight_rms'
  # Limit of the inputs of all other projections: 'input_std' or 'none'.
  clamp_input: str = 'input_std'
  # The hidden's limit in units of its predicted rms.
  clamp_hidden_k: float = 24.0
  # The inputs' limit in units of the token's own rms.
  clamp_input_k: float = 8.0
  # Whether each weight matrix has a learned virtual scalar.
  bungee: bool = False
  # 'bf16' (the model's dtype), or 'int8' for the matmul that makes the input's
  # gradient, with stochastic rounding.
  input_gradient: str = 'bf16'
  # 'int8' for the embedding and the output head as codes with a scale per
  # vocabulary entry, the head's matmul included; 'none' for floats.
  embedding: str = 'none'
  # The form in which a weight crosses from its owner to other devices: 'int8'
  # for codes (if the weight is used as codes), 'float' for the model's dtype,
  # 'ternary' for −1, 0 or 1 per step, applied to replicas that every device
  # holds (1.6 bits; intended for models with Bungee, because grids are fixed).
  wire_weights: str = 'int8'
  # Settings of `wire_weights='ternary'`.
  ternary: TernaryConfig = dataclasses.field(default_factory=TernaryConfig)
  # The form in which a weight's gradient crosses to its owner
  # (`wire/codec.py`): 'squinch' (6 bits, elements `zero`), 'squinch_floor',
  # 'squinch_fitted', 'float' for the model's dtype, or two contrasts that are
  # rounded but not packed, 'int4' (blocks of 32 along D) and 'int4_flat'
  # (blocks of 256 in memory's order).
  wire_gradients: str = 'squinch'
  # Squinch's header: 'ln6', the sources' steps of e^(1/6), or 'quarter', ours
  # of 2^(1/4).
  wire_header: str = 'ln6'


CHOICES = {
  'matmul': ('int8', 'weights', 'none'),
  'matmul_implementation': (
    '',
    'reference',
    'xla',
    'numba_cpu',
    'pallas_gpu',
    'pallas_tpu',
  ),
  'kv': ('int8', 'none'),
  'kv_scale': ('token', 'channel'),
  'qk': ('int8', 'none'),
  'clamp_hidden': ('weight_rms', 'input_std', 'none'),
  'clamp_input': ('input_std', 'none'),
  'input_gradient': ('bf16', 'int8'),
  'embedding': ('int8', 'none'),
  'wire_weights': ('int8', 'float', 'ternary'),
  'wire_gradients': (
    'squinch',
    'squinch_floor',
    'squinch_fitted',
    'float',
    'int4',
    'int4_flat',
  ),
  'wire_header': ('ln6', 'quarter'),
}


CLAMPS = 'clamp_hidden', 'clamp_input', 'clamp_hidden_k', 'clamp_input_k'


def clamps_of(config: QuantizationConfig) -> dict[str, Any]:
  """Returns the fields of dynamic clamping, by name."""
  return {name: getattr(config, name) for name in CLAMPS}


def none() -> QuantizationConfig:
  """Returns the config without quantization: no int8, no clamping."""
  return QuantizationConfig(
    matmul='none',
    kv='none',
    qk='none',
    clamp_hidden='none',
    clamp_input='none',
    wire_weights='float',
    wire_gradients='float',
  )


ARMS = ('none', 'weights', 'all')


def for_serving(arm: str = 'all', kv: str = 'int8') -> QuantizationConfig:
  """Returns the config in which another library's model is served.

  Nothing is clamped, because the model was trained without limits and its
  outliers matter.

  Args:
    arm: 'none' for floats, 'weights' for int8 weights and tables, 'all' for
      int8 activations of their products too.
    kv: 'int8' for keys and values as codes, 'none' for floats.

  Raises:
    ValueError: an unknown arm.
  """
  if arm not in ARMS:
    raise ValueError(f'int8={arm!r}: must be one of {", ".join(ARMS)}.')
  if arm == 'none':
    return dataclasses.replace(none(), kv=kv)
  return dataclasses.replace(
    none(),
    matmul='int8' if arm == 'all' else 'weights',
    embedding='int8',
    kv=kv,
    wire_weights='int8',
  )


def has_codes(config: QuantizationConfig) -> bool:
  """Returns whether the weights of the projections are int8."""
  return config.matmul != 'none'


def check(config: QuantizationConfig) -> None:
  """Refuses unknown choices, values out of range and contradictory settings.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  strict.check_choices(config, CHOICES, 'model.quantization')
  if config.qk == 'int8' and config.kv != 'int8':
    raise ValueError(
      "model.quantization.qk='int8' needs model.quantization.kv='int8', not"
      f' {config.kv!r}: QKᵀ in int8 reads the stored codes of K.'
    )
  for name in ('clamp_hidden_k', 'clamp_input_k'):
    value = getattr(config, name)
    if not value > 0:
      raise ValueError(f'model.quantization.{name}={value}: must be positive.')
  if config.wire_weights == 'ternary' and config.matmul != 'int8':
    raise ValueError(
      "model.quantization.wire_weights='ternary' needs"
      f" model.quantization.matmul='int8', not {config.matmul!r}: replicas are"
      ' int8 codes, which a float matmul would not read.'
    )
  _check_ternary(config.ternary)


def _check_ternary(config: TernaryConfig) -> None:
  for name in ('check_every', 'events_every'):
    value = getattr(config, name)
    if value < 1:
      raise ValueError(
        f'model.quantization.ternary.{name}={value}: must be at least 1.'
      )
  if not 0 <= config.least_scale < math.inf:
    raise ValueError(
      f'model.quantization.ternary.least_scale={config.least_scale}: must be'
      ' positive, or 0 for the finest scale that never lags.'
    )

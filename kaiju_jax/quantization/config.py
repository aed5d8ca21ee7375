"""What is int8, and how activations are kept inside the int8 range."""

import dataclasses


@dataclasses.dataclass
class TernaryConfig:
  """How replicas follow their masters (`wire/ternary.py`).

  Attributes:
    check_every: steps between checksums of the replicas.
    events_every: steps between events that double or halve a channel's scale.
    least_scale: no channel's grid becomes finer; 0 for the finest on which
      codes never lag behind the masters at the peak learning rate.
  """

  check_every: int = 100
  events_every: int = 4
  least_scale: float = 0.0


@dataclasses.dataclass
class QuantizationConfig:
  """One value per technique, so that an ablation is one override.

  Attributes:
    matmul: 'int8' for s8×s8→s32 projections and feed-forward with
      straight-through gradients, 'none' for plain ones in the model's dtype.
    matmul_implementation: of the kernel `int8_matmul`, by name; '' for XLA's
      own dots (the default on every platform until a measurement on real
      hardware says that a kernel is faster).
    kv: 'int8' for keys and values stored as codes and scales, 'none'.
    kv_scale: 'token' (one scale a token; our guess) or 'channel' (a running
      scale a channel, as document 003 describes; it can drift).
    qk: 'int8' for QKᵀ in int8 ("half-int8 attention"; needs kv='int8'),
      'none' to dequantize K first.
    clamp_hidden: limit of the feed-forward's hidden activations: 'weight_rms',
      'input_std' or 'none'.
    clamp_input: limit of the inputs of all other projections: 'input_std' or
      'none'.
    clamp_hidden_k: the hidden's limit in units of its predicted rms.
    clamp_input_k: the inputs' limit in units of the token's own rms.
    bungee: a learned virtual scalar for each weight matrix.
    input_gradient: 'bf16' (the model's dtype), or 'int8' for the matmul
      that makes the input's gradient, with stochastic rounding.
    embedding: 'int8' for the embedding and the output head as codes with a
      scale a vocabulary entry, the head's matmul included; 'none'.
    wire_weights: what a weight crosses to its users as: 'int8' for codes
      (where it is used as codes), 'float' for the model's dtype, 'ternary'
      for −1, 0 or 1 a step to replicas that every device holds (1.6 bits;
      meant for Bungee on, as grids are fixed).
    ternary: of `wire_weights='ternary'`.
    wire_gradients: what its gradient crosses to its owner as: 'squinch' (6
      bits, elements `zero`), 'squinch_floor', 'squinch_fitted', 'float' for
      the model's dtype, or, as contrasts that are rounded but not packed,
      'int4' (blocks of 32 along D) and 'int4_flat' (of 256 in memory's order).
    wire_header: Squinch's, of `wire_gradients='squinch…'`: 'ln6', the sources'
      steps of e^(1/6), or 'quarter', ours of 2^(1/4).
  """

  matmul: str = 'int8'
  matmul_implementation: str = ''
  kv: str = 'int8'
  kv_scale: str = 'token'
  qk: str = 'int8'
  clamp_hidden: str = 'weight_rms'
  clamp_input: str = 'input_std'
  clamp_hidden_k: float = 24.0
  clamp_input_k: float = 8.0
  bungee: bool = False
  input_gradient: str = 'bf16'
  embedding: str = 'none'
  wire_weights: str = 'int8'
  ternary: TernaryConfig = dataclasses.field(default_factory=TernaryConfig)
  wire_gradients: str = 'squinch'
  wire_header: str = 'ln6'


def none() -> QuantizationConfig:
  """Returns the plain model: no int8 anywhere, nothing clamped."""
  return QuantizationConfig(
    matmul='none',
    kv='none',
    qk='none',
    clamp_hidden='none',
    clamp_input='none',
    wire_weights='float',
    wire_gradients='float',
  )

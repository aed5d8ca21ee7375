"""Estimates one device's bytes in a training step.

P is the number of parameters in a device's shard (D over fsdp; F, H and V over
tensor), W the number of one layer's, gathered over fsdp. T = batch · length /
fsdp is a number of tokens, of which S = T / tensor lie on a device between
blocks. b is the bytes of the model's dtype, c the bytes of a weight in use (1
for int8, b otherwise):

    parameters         4 P    f32 masters
    Adam moments       8 P
    gradients          4 P    accumulated in f32
    weights in use     2 (c + b) W + b D V / tensor    a layer and the next one,
                       their gradients before they are reduced, the embedding;
                       without remat every layer's c W
    saved activations  b D S depth + T · KV bytes per token at every owner;
                       without remat A S depth
    working set        3 A S    the layer whose backward pass runs
    logits             (4 + b) T V / tensor

Where updates are ternary, C is the number of all int8 weights over tensor, and
X that of the largest one, in all repeats of the scan:

    weights in use     without codes: 2 b W + b D V / tensor
    replicas           C           int8 codes; scales, below 1 %, left out
    replicas' update   C / 5 + 2 X      the messages of all owners; the old and
                       the new codes of one weight

A, the bytes that a layer saves per token without remat, is

    24 D + b (2 D + 3 F + 2 H K)  +  5 D + 3 F + 3 H K   int8: codes, masks
                                  +  F                   plain: a mask

A gate has a product of its own, 2 b F more, and in int8 F more.

The formula is ours. tests/costs/test_training_memory.py checks that it is 0.65
to 1.6 times what XLA plans for one device, and for eight with replicas. Without
remat, XLA may need half of the estimate, because it frees the memory of a block
that does not repeat. For an update alone, a GPU's compiler plans 0.8 to 1.4
times the estimate, a TPU's 2.4 times and a CPU's 7 times, because it updates
all weights at once. The estimate leaves out the buffers of collectives,
fragmentation, and the batch itself.
"""

import dataclasses

from kaiju_jax.costs import footprint
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib

# The bytes in use while one layer's backward pass runs, in units of the bytes
# that the layer saves without remat.
_WORKING = 3


def estimate(
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  fsdp: int = 1,
  tensor: int = 1,
) -> dict[str, int]:
  """Returns one device's bytes by part, as in the module's table.

  Args:
    config: the model; `remat` says what is saved.
    batch: rows of a microbatch on all devices together.
    length: L, tokens per row.
    fsdp: devices that D is split over.
    tensor: devices that F, H, V, and L between blocks, are split over.

  Raises:
    ValueError: a size is below 1, or the mesh does not divide it.
  """
  _check_mesh(config, batch, length, fsdp, tensor)
  parameters = footprint.parameters(config)
  depth = len(config.layers())
  b = footprint.float_bytes(config.dtype)
  tokens = batch * length // fsdp
  shard = sum(_per_device(p, fsdp, tensor) for p in parameters)
  in_layers = sum(
    _per_device(p, 1, tensor)
    for p in parameters
    if p.family not in ('embedding', 'norm')
  )
  is_ternary = config.quantization.wire_weights == 'ternary'
  c = 0 if is_ternary else _bytes_in_use(config)
  in_use = 2 * (c + b) * in_layers // depth
  if config.remat != 'layer':
    in_use += c * in_layers
  return {
    'parameters': 4 * shard,
    'Adam moments': 8 * shard,
    'gradients': 4 * shard,
    **(_replicas(config, tensor) if is_ternary else {}),
    'weights in use': in_use + b * config.d_model * config.vocab_size // tensor,
    'saved activations': _saved_bytes(config, tokens, tensor),
    'working set': _WORKING * _layer_bytes(config) * tokens // tensor,
    'logits': (4 + b) * tokens * config.vocab_size // tensor,
  }


def _bytes_in_use(config: model_config.ModelConfig) -> int:
  """Returns the bytes of one number of a weight while a layer uses it."""
  is_int8 = config.quantization.matmul == 'int8'
  return 1 if is_int8 else footprint.float_bytes(config.dtype)


def _layer_bytes(config: model_config.ModelConfig) -> int:
  """Returns A, the bytes that a layer saves per token without remat."""
  d, f = config.d_model, config.d_ff
  hk = config.num_heads * config.head_dim
  b = footprint.float_bytes(config.dtype)
  plain = 24 * d + b * (2 * d + 3 * f + 2 * hk)
  is_gated = config.is_gated
  if is_gated:
    plain += 2 * b * f
  if config.quantization.matmul == 'int8':
    return plain + 5 * d + (3 + is_gated) * f + 3 * hk
  return plain + f


def _saved_bytes(
  config: model_config.ModelConfig, tokens: int, tensor: int
) -> int:
  """Returns the bytes that the forward pass saves for the backward pass."""
  layers = config.layers()
  if config.remat != 'layer':
    return _layer_bytes(config) * tokens // tensor * len(layers)
  b = footprint.float_bytes(config.dtype)
  key_value = 2 * (config.head_dim + 4)
  if config.quantization.kv == 'none':
    key_value = 2 * config.head_dim * b
  owners = len(layers_lib.owners(layers))
  between = b * config.d_model * tokens // tensor * len(layers)
  return between + config.num_kv_heads * key_value * tokens * owners


def _replicas(config: model_config.ModelConfig, tensor: int) -> dict[str, int]:
  """Returns the bytes of replicas and of their update, by part."""
  layers = config.layers()
  codes = replica_codes(config, tensor)
  largest = max(
    _per_device(p, 1, tensor) // p.copies for p in _coded_matrices(config)
  )
  repeats = len(layers) // len(layers_lib.repeating_block(layers))
  return {
    'replicas': codes,
    "replicas' update": codes // 5 + 2 * repeats * largest,
  }


def replica_codes(config: model_config.ModelConfig, tensor: int = 1) -> int:
  """Returns how many int8 weights a device holds where updates are ternary.

  Args:
    tensor: devices that F, H and V are split over.
  """
  return sum(_per_device(p, 1, tensor) for p in _coded_matrices(config))


def _coded_matrices(
  config: model_config.ModelConfig,
) -> tuple[footprint.Parameter, ...]:
  """Returns the matrices that are used as int8 codes."""
  families = ['attention', 'keys and values', 'feed-forward']
  if config.quantization.embedding == 'int8':
    families.append('embedding')
  return tuple(
    p
    for p in footprint.parameters(config)
    if p.family in families and 'D' in p.letters
  )


def with_and_without_remat(
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  fsdp: int,
  tensor: int,
) -> dict[str, dict[str, int]]:
  """Returns {remat: its `estimate`} for 'layer' and 'none'."""
  return {
    remat: estimate(
      dataclasses.replace(config, remat=remat), batch, length, fsdp, tensor
    )
    for remat in ('layer', 'none')
  }


def _per_device(parameter: footprint.Parameter, fsdp: int, tensor: int) -> int:
  """Returns how many numbers of all copies one device holds."""
  return parameter.copies * footprint.per_device(
    parameter.letters, parameter.shape, tensor, fsdp
  )


def _check_mesh(config, batch, length, fsdp, tensor) -> None:
  for name, value in (
    ('batch', batch),
    ('length', length),
    ('fsdp', fsdp),
    ('tensor', tensor),
  ):
    if value < 1:
      raise ValueError(f'{name}={value}: must be at least 1.')
  model_config.check_tensor(config, tensor)
  for name, value, axis, width in (
    ('batch', batch, 'fsdp', fsdp),
    ('d_model', config.d_model, 'fsdp', fsdp),
    ('length', length, 'tensor', tensor),
  ):
    if value % width:
      raise ValueError(f'{name}={value}: must be a multiple of {axis}={width}.')

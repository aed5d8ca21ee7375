"""What a model weighs, by arithmetic: parameters, KV cache, training memory.

Everything derives from `ModelConfig` and its layer tuple, so the answer is
there before jax is imported and anything compiles.

    parameters   gains, queries and output in every layer; a key and a value
                 projection (and their channels' limits) where a layer owns
                 keys and values; feed-forward; embedding and final gain; a
                 Bungee scalar for each matrix
    KV bytes     `layers.kv_bytes`: a local layer keeps its window, scales
                 counted
    training     an estimate, see `training_memory`
"""

from collections.abc import Sequence
import dataclasses
import math

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One named parameter, in every layer that has it.

  Attributes:
    family: 'embedding', 'attention', 'keys and values', 'feed-forward',
      'norm' or 'bungee'.
    name: as the model's, shape suffix included.
    shape: of one layer's.
    copies: how many layers have one.
  """

  family: str
  name: str
  shape: tuple[int, ...]
  copies: int = 1

  @property
  def size(self) -> int:
    """Numbers in all copies together."""
    return self.copies * math.prod(self.shape)

  @property
  def letters(self) -> str:
    return self.name.rpartition('_')[2] if self.shape else ''


def parameters(config: model_config.ModelConfig) -> tuple[Parameter, ...]:
  """Returns every parameter of the model, in the order of the forward pass."""
  d, h, k = config.d_model, config.num_heads, config.head_dim
  f, v = config.d_ff, config.vocab_size
  layers = config.layers()
  depth, owners = len(layers), len(layers_lib.owners(layers))
  matrices = (
    Parameter('attention', 'w_q_DHK', (d, h, k), depth),
    Parameter('keys and values', 'w_k_DK', (d, k), owners),
    Parameter('keys and values', 'w_v_DK', (d, k), owners),
    Parameter('attention', 'w_o_DHK', (d, h, k), depth),
    Parameter('feed-forward', 'w_in_DF', (d, f), depth),
    Parameter('feed-forward', 'w_out_DF', (d, f), depth),
  )
  scalars = tuple(
    Parameter('bungee', f'bungee_{x.name.rpartition("_")[0]}', (), x.copies)
    for x in matrices
  )
  limits = tuple(
    Parameter('keys and values', name, (k,), owners)
    for name in ('k_limit_K', 'v_limit_K')
  )
  quantization = config.quantization
  has_limits = quantization.kv == 'int8' and quantization.kv_scale == 'channel'
  return (
    Parameter('embedding', 'embedding_DV', (d, v)),
    Parameter('norm', 'gain_D', (d,), 2 * depth + 1),
    *matrices,
    *(scalars if quantization.bungee else ()),
    *(limits if has_limits else ()),
    *(
      ()
      if config.tied_embedding
      else (Parameter('embedding', 'head_DV', (d, v)),)
    ),
  )


def count(parameters: Sequence[Parameter]) -> int:
  """Returns how many numbers the parameters hold."""
  return sum(parameter.size for parameter in parameters)


@dataclasses.dataclass(frozen=True)
class Cache:
  """Bytes of one sequence's keys and values at some length.

  Attributes:
    name: whose.
    bytes: of the whole sequence.
    per_token: bytes over length (a window makes it fall with length).
  """

  name: str
  bytes: int
  per_token: float


def kv_caches(
  config: model_config.ModelConfig, length: int
) -> tuple[Cache, ...]:
  """Returns the model's cache at `length`, then the caches it saves.

  The comparisons have the same depth and head size, keep every position in
  every layer and share nothing: all H heads of keys and values (MHA), 8
  of them (GQA-8; H where there are fewer), or one (MQA), in bf16 without
  scales. The model's own scales are counted: f32, one a token for K and one
  for V, where they are a token's (`kv_scale='channel'` has a handful a layer
  for all sequences together).
  """
  own = dict(bytes_per_value=1, bytes_per_scale=4)
  if config.quantization.kv == 'none':
    bytes_per_value = 2 if config.dtype == 'bfloat16' else 4
    own = dict(bytes_per_value=bytes_per_value, bytes_per_scale=0)
  elif config.quantization.kv_scale == 'channel':
    own['bytes_per_scale'] = 0
  layers = config.layers()
  everything = tuple(
    layers_lib.Layer(None, index) for index in range(len(layers))
  )
  rows = [
    ('this model', layers_lib.kv_bytes(layers, length, config.head_dim, **own))
  ]
  heads_of_group = min(8, config.num_heads)
  for name, heads in (
    ('MHA', config.num_heads),
    (f'GQA-{heads_of_group}', heads_of_group),
    ('MQA', 1),
  ):
    rows.append(
      (
        f'{name} bf16',
        layers_lib.kv_bytes(everything, length, config.head_dim, heads, 2, 0),
      )
    )
  return tuple(Cache(name, size, size / length) for name, size in rows)


# What is alive while one layer's backward pass runs, in units of what the layer
# saves without remat.
_WORKING = 3


def training_memory(
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  fsdp: int = 1,
  tensor: int = 1,
) -> dict[str, int]:
  """Returns an estimate of one device's bytes in a training step, by part.

  With P the parameters of a device's shard (D over fsdp; F, H and V over
  tensor), W those of one layer gathered over fsdp, T = batch · length / fsdp
  tokens of which S = T / tensor lie on a device between blocks, b bytes of
  the model's dtype and c of a weight in use (1 for int8, else b):

      parameters         4 P    f32 masters
      Adam moments       8 P
      gradients          4 P    accumulated in f32
      weights in use     2 (c + b) W + b D V / tensor    a layer's and the
                         next one's, their gradients before they are reduced,
                         the embedding; without remat every layer's c W
      saved activations  b D S depth + T · KV bytes of a token at every owner;
                         without remat A S depth
      working set        3 A S    the layer whose backward pass runs
      logits             (4 + b) T V / tensor

  Where updates are ternary, with C the numbers of all int8 weights over tensor
  and X those of the largest one in all layers that a scan repeats,

      weights in use     less by the codes: 2 b W + b D V / tensor
      replicas           C           int8 codes; scales, below 1 %, left out
      replicas' update   C / 5 + 2 X      every owner's message; the codes that
                         it is added to and its sum

  A, the bytes that a layer saves for each token without remat, is

      24 D + b (2 D + 3 F + 2 H K)  +  5 D + 3 F + 3 H K   int8: codes, masks
                                    +  F                   plain: a mask

  The formula is ours; tests/costs/test_footprint.py holds it to what XLA plans
  for one device, and for eight with replicas, within 0.65 to 1.6. Without
  remat, XLA may need half of it: it frees what a block that does not repeat has
  used. Of an update alone a GPU's compiler plans 0.8 to 1.4 times this, a TPU's
  2.4 and a CPU's 7, with all weights' turns beside each other.
  Collectives' buffers, fragmentation and the batch itself are not in it.

  Args:
    config: the model; `remat` says what is saved.
    batch: rows of a microbatch on all devices together.
    length: L, tokens a row.
    fsdp: devices that D is split over.
    tensor: devices that F, H, V, and L between blocks, are split over.

  Raises:
    ValueError: a size that the mesh does not divide.
  """
  _check_mesh(config, batch, length, fsdp, tensor)
  layers = config.layers()
  depth, owners = len(layers), len(layers_lib.owners(layers))
  d, f, v = config.d_model, config.d_ff, config.vocab_size
  k = config.head_dim
  hk = config.num_heads * k
  b = 2 if config.dtype == 'bfloat16' else 4
  is_int8 = config.quantization.matmul == 'int8'
  c = 1 if is_int8 else b
  tokens = batch * length // fsdp

  all_parameters = parameters(config)
  shard = sum(_per_device(p, fsdp, tensor) for p in all_parameters)
  all_layers = sum(
    _per_device(p, 1, tensor)
    for p in all_parameters
    if p.family not in ('embedding', 'norm')
  )
  layer = 24 * d + b * (2 * d + 3 * f + 2 * hk)
  layer += 5 * d + 3 * f + 3 * hk if is_int8 else f
  is_ternary = config.quantization.wire_weights == 'ternary'
  if is_ternary:
    c = 0
  in_use = 2 * (c + b) * all_layers // depth
  if config.remat == 'layer':
    key_value = 2 * k * b if config.quantization.kv == 'none' else 2 * (k + 4)
    saved = b * d * tokens // tensor * depth + key_value * tokens * owners
  else:
    in_use += c * all_layers
    saved = layer * tokens // tensor * depth
  held = {}
  if is_ternary:
    codes = replica_codes(config, tensor)
    largest = max(_per_device(p, 1, tensor) // p.copies for p in _coded(config))
    repeats = depth // len(layers_lib.repeating_block(layers))
    held = {
      'replicas': codes,
      "replicas' update": codes // 5 + 2 * repeats * largest,
    }
  return {
    'parameters': 4 * shard,
    'Adam moments': 8 * shard,
    'gradients': 4 * shard,
    **held,
    'weights in use': in_use + b * d * v // tensor,
    'saved activations': saved,
    'working set': _WORKING * layer * tokens // tensor,
    'logits': (4 + b) * tokens * v // tensor,
  }


def replica_codes(config: model_config.ModelConfig, tensor: int = 1) -> int:
  """Returns how many int8 weights a device holds where updates are ternary.

  Args:
    config: the model.
    tensor: devices that F, H and V are split over.
  """
  return sum(_per_device(p, 1, tensor) for p in _coded(config))


def _coded(config: model_config.ModelConfig) -> tuple[Parameter, ...]:
  """Returns the matrices that are used as int8 codes."""
  families = ['attention', 'keys and values', 'feed-forward']
  if config.quantization.embedding == 'int8':
    families.append('embedding')
  return tuple(
    p for p in parameters(config) if p.family in families and 'D' in p.letters
  )


def with_and_without_remat(
  config: model_config.ModelConfig,
  batch: int,
  length: int,
  fsdp: int,
  tensor: int,
) -> dict[str, dict[str, int]]:
  """Returns {remat: its `training_memory`} of the two choices."""
  return {
    remat: training_memory(
      dataclasses.replace(config, remat=remat), batch, length, fsdp, tensor
    )
    for remat in ('layer', 'none')
  }


def _per_device(parameter: Parameter, fsdp: int, tensor: int) -> int:
  """Numbers of all copies that one device holds."""
  width = fsdp if 'D' in parameter.letters else 1
  if set(parameter.letters) & set('FHV'):
    width *= tensor
  return parameter.size // width


def _check_mesh(config, batch, length, fsdp, tensor) -> None:
  for name, value in (
    ('batch', batch),
    ('length', length),
    ('fsdp', fsdp),
    ('tensor', tensor),
  ):
    if value < 1:
      raise ValueError(f'{name}={value}: must be at least 1.')
  for name, value, axis, width in (
    ('batch', batch, 'fsdp', fsdp),
    ('d_model', config.d_model, 'fsdp', fsdp),
    ('length', length, 'tensor', tensor),
    ('num_heads', config.num_heads, 'tensor', tensor),
    ('d_ff', config.d_ff, 'tensor', tensor),
    ('vocab_size', config.vocab_size, 'tensor', tensor),
  ):
    if value % width:
      raise ValueError(f'{name}={value}: must be a multiple of {axis}={width}.')

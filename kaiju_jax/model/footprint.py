"""What a model weighs, by arithmetic: parameters and the KV cache.

Everything derives from `ModelConfig` and its layer tuple, so the answer is
there before jax is imported and anything compiles.

    parameters   gains, queries and output in every layer; a key and a value
                 projection where a layer owns keys and values; feed-forward;
                 embedding and final gain; a Bungee scalar for each matrix
    KV bytes     `layers.kv_bytes`: a local layer keeps its window, scales
                 counted
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
  return (
    Parameter('embedding', 'embedding_DV', (d, v)),
    Parameter('norm', 'gain_D', (d,), 2 * depth + 1),
    *matrices,
    *(scalars if config.quantization.bungee else ()),
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
  (GQA-8), or one (MQA), in bf16 without scales. The model's own scales are
  counted: f32, one a token for K and one for V, where they are a token's
  (`kv_scale='channel'` has a handful a layer for all sequences together).
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
  for name, heads in (('MHA', config.num_heads), ('GQA-8', 8), ('MQA', 1)):
    rows.append(
      (
        f'{name} bf16',
        layers_lib.kv_bytes(everything, length, config.head_dim, heads, 2, 0),
      )
    )
  return tuple(Cache(name, size, size / length) for name, size in rows)

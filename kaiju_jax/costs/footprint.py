"""Computes the sizes of a model's parameters and of its KV cache.

Everything derives from `ModelConfig` and its layer tuple, without jax and
without compiling.

    parameters   gains, queries and output in every layer; a key and a value
                 projection (and the limits of their channels) where a layer
                 owns keys and values; their biases and the gains of their
                 norms; feed-forward; embedding and final gain; a Bungee scalar
                 per matrix
    KV bytes     `layers.kv_bytes`: a local layer keeps its window, scales
                 counted, times the heads of keys and values
"""

from collections.abc import Sequence
import dataclasses
import math

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config


@dataclasses.dataclass(frozen=True)
class Parameter:
  """A named parameter, with all its copies."""

  # 'embedding', 'attention', 'keys and values', 'feed-forward', 'norm' or
  # 'bungee'.
  family: str
  name: str  # The parameter's name in the model, with its shape suffix.
  shape: tuple[int, ...]  # The shape of one copy.
  # The number of copies, one per layer that has it; all norms' gains together
  # are one parameter.
  copies: int = 1

  @property
  def size(self) -> int:
    """Returns how many numbers all copies have together."""
    return self.copies * math.prod(self.shape)

  @property
  def letters(self) -> str:
    return self.name.rpartition('_')[2] if self.shape else ''


def parameters(config: model_config.ModelConfig) -> tuple[Parameter, ...]:
  """Returns every parameter of the model."""
  d, h, k = config.d_model, config.num_heads, config.head_dim
  f, v = config.d_ff, config.vocab_size
  layers = config.layers()
  depth, owners = len(layers), len(layers_lib.owners(layers))
  norms = 4 if config.norms == 'both' else 2  # Of a layer's activations.
  letters, shape = 'DK', (d, k)
  if config.num_kv_heads > 1:
    letters, shape = 'DUK', (d, config.num_kv_heads, k)
  matrices = (
    Parameter('attention', 'w_q_DHK', (d, h, k), depth),
    Parameter('keys and values', f'w_k_{letters}', shape, owners),
    Parameter('keys and values', f'w_v_{letters}', shape, owners),
    Parameter('attention', 'w_o_DHK', (d, h, k), depth),
    Parameter('feed-forward', 'w_in_DF', (d, f), depth),
    *(
      (Parameter('feed-forward', 'w_gate_DF', (d, f), depth),)
      if config.is_gated
      else ()
    ),
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
    Parameter('norm', 'gain_D', (d,), norms * depth + 1),
    *matrices,
    *_of_heads(config, depth, owners),
    *(scalars if quantization.bungee else ()),
    *(limits if has_limits else ()),
    *(
      ()
      if config.tied_embedding
      else (Parameter('embedding', 'head_DV', (d, v)),)
    ),
  )


def _of_heads(
  config: model_config.ModelConfig, depth: int, owners: int
) -> tuple[Parameter, ...]:
  """Returns biases of queries, keys and values, and gains of their norms."""
  h, u, k = config.num_heads, config.num_kv_heads, config.head_dim
  letters, shape = ('UK', (u, k)) if u > 1 else ('K', (k,))
  found = []
  if logits := sum(layer.sink_logit for layer in config.layers()):
    found.append(Parameter('attention', 'sink_logit_H', (h,), logits))
  if config.qkv_bias:
    found += [
      Parameter('attention', 'bias_q_HK', (h, k), depth),
      Parameter('keys and values', f'bias_k_{letters}', shape, owners),
      Parameter('keys and values', f'bias_v_{letters}', shape, owners),
    ]
  if config.qk_norm == 'head':
    found += [
      Parameter('norm', 'q_gain_K', (k,), depth),
      Parameter('norm', 'k_gain_K', (k,), owners),
    ]
  elif config.qk_norm == 'all':
    found += [
      Parameter('norm', 'q_gain_HK', (h, k), depth),
      Parameter('norm', f'k_gain_{letters}', shape, owners),
    ]
  return tuple(found)


def count(parameters: Sequence[Parameter]) -> int:
  """Returns how many numbers the parameters hold."""
  return sum(parameter.size for parameter in parameters)


def per_device(
  letters: str, shape: Sequence[int], tensor: int, fsdp: int = 1
) -> int:
  """Returns how many numbers of an array one device holds.

  Args:
    letters: the names of its dimensions.
    shape: their sizes; one of 1 is whole on each device.
    tensor: devices that split F, H and V.
    fsdp: devices that split D.
  """
  widths = {'D': fsdp, **dict.fromkeys('FHV', tensor)}
  return math.prod(
    size // widths.get(letter, 1) if size > 1 else size
    for letter, size in zip(letters, shape)
  )


def weight_bytes(config: model_config.ModelConfig, tensor: int = 1) -> int:
  """Returns one device's bytes of the weights as decoding reads them.

  Args:
    config: the model's config.
    tensor: devices that split F, H and V.

  Raises:
    ValueError: see `model_config.check_tensor`.
  """
  model_config.check_tensor(config, tensor)
  quantization = config.quantization
  has_codes = quantization_config.has_codes(quantization)

  total = 0
  for x in parameters(config):
    is_coded = has_codes
    if x.family == 'embedding':
      is_coded = quantization.embedding == 'int8'
    size = per_device(x.letters, x.shape, tensor)
    if 'D' not in x.letters or x.name == 'gain_D':
      size *= 0 if x.family == 'bungee' and has_codes else 4
    elif is_coded:
      contracted = {'w_o_DHK': 'HK', 'w_out_DF': 'F'}.get(x.name, 'D')
      scales = [
        1 if letter in contracted else n
        for letter, n in zip(x.letters, x.shape)
      ]
      size += 4 * per_device(x.letters, scales, tensor)
    else:
      size *= float_bytes(config.dtype)
    total += x.copies * size
  # The sums of w_out's codes, and the limit of the hidden activations.
  if has_codes and config.feedforward == 'relu2':
    total += 4 * config.d_model * len(config.layers())
  if has_codes and quantization.clamp_hidden == 'weight_rms':
    total += 4 * len(config.layers())
  return total


def float_bytes(dtype: str) -> int:
  """Returns the bytes of a number of a model's dtype."""
  return 2 if dtype == 'bfloat16' else 4


@dataclasses.dataclass(frozen=True)
class Cache:
  """Bytes of one sequence's keys and values at some length."""

  name: str  # The model that the cache belongs to.
  bytes: int  # Size of the whole sequence's keys and values.
  # Bytes divided by length; with windows it falls as length grows.
  per_token: float


def kv_caches(
  config: model_config.ModelConfig, length: int
) -> tuple[Cache, ...]:
  """Returns the model's cache at `length`, then those of ordinary models.

  The ordinary models have the same depth and head size, keep every position in
  every layer and share nothing. They have H heads of keys and values (MHA), 8
  (GQA-8; H where H is less), or one (MQA), in bf16 without scales. The model's
  own scales count where they are per token: one f32 for K and one for V. With
  `kv_scale='channel'` all sequences share a few scales per layer, which are
  left out.
  """
  own = dict(bytes_per_value=1, bytes_per_scale=4)
  if config.quantization.kv == 'none':
    own = dict(bytes_per_value=float_bytes(config.dtype), bytes_per_scale=0)
  elif config.quantization.kv_scale == 'channel':
    own['bytes_per_scale'] = 0
  layers = config.layers()
  everything = tuple(
    layers_lib.Layer(None, index) for index in range(len(layers))
  )
  own['num_kv_heads'] = config.num_kv_heads
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


# Models that others have published, from their Hugging Face configs: the layer
# tuple, KV heads and head size. DeepSeek V3 stores a latent vector of 512 + 64
# values per token and layer (MLA), which is counted as K and V of 288.
PUBLISHED = {
  'Gemma 3 27B': (
    tuple(layers_lib.Layer(None if i % 6 == 5 else 1024, i) for i in range(62)),
    16,
    128,
  ),
  'DeepSeek V3': (tuple(layers_lib.Layer(None, i) for i in range(61)), 1, 288),
  'gpt-oss 120B': (
    tuple(layers_lib.Layer(None if i % 2 else 128, i) for i in range(36)),
    8,
    64,
  ),
}


def published_caches(length: int) -> tuple[Cache, ...]:
  """Returns the caches of `PUBLISHED` models at `length`, in bf16."""
  sizes = {
    name: layers_lib.kv_bytes(layers, length, head_dim, heads, 2, 0)
    for name, (layers, heads, head_dim) in PUBLISHED.items()
  }
  return tuple(Cache(name, size, size / length) for name, size in sizes.items())

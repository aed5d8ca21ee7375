"""The config of a model: its shape and the techniques that it uses."""

import copy
import dataclasses

from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import rope_scaling as rope_scaling_lib
from kaiju_jax.quantization import bounds
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.storage import parts
from kaiju_jax.storage import strict

# Most positions; rotary tables have a row for each. The longest of open models
# have 10 million.
LENGTH = 2**24


@dataclasses.dataclass
class ModelConfig:
  """Shape and techniques of one model."""

  vocab_size: int = 256  # V.
  d_model: int = 128  # D.
  num_layers: int = 14  # Depth.
  num_heads: int = 4  # H query heads.
  # U heads of keys and values, each read by H/U query heads. The sources have
  # one everywhere; more are for ablations and imported models.
  num_kv_heads: int = 1
  head_dim: int = 32  # K, even (rotary pairs).
  d_ff: int = 512  # F.
  # Number of positions that the rotary tables cover; rows are at most so long.
  max_length: int = 2048
  window: int = 128  # Positions that a local layer sees, itself included.
  # The first tokens of a document that a local layer sees beside its window,
  # and whether its heads have a learned logit; a layout says both for itself.
  sinks: int = 0
  sink_logit: bool = False
  # One layer in `period` is global; 1 makes all global, 0 none.
  period: int = 7
  local_share: int = 3  # Adjacent local layers that share keys and values.
  global_share: int = 2  # Successive global layers that share keys and values.
  # The layer tuple as text, such as 'L0 L0 L0 L3 L3 L3 G6'; if given, it
  # replaces num_layers, period, the two shares, sinks and sink_logit. N is a
  # global layer whose queries and keys are not rotated; 'L0:64+4s' has a window
  # of 64, four sinks and a learned logit.
  layout: str = ''
  # The tensors that a sharing layer reads from another: 'both' keys and values,
  # or, to study what sharing costs, only the 'keys' or only the 'values'; only
  # 'both' can be decoded with a cache.
  shared: str = 'both'
  # Rotary base of local layers; 0 for no rotary there.
  rope_local: float = 10_000.0
  # Rotary base of global layers; 0 for no rotary there.
  rope_global: float = 10_000.0
  # The scaling of rotary angles.
  rope_scaling: rope_scaling_lib.RopeScalingConfig = dataclasses.field(
    default_factory=rope_scaling_lib.RopeScalingConfig
  )
  # 'relu2' for relu(x·W_in)²·W_out; 'swiglu' or 'geglu' for (act(x·W_gate) ·
  # (x·W_in))·W_out with act silu or gelu (tanh's form); or a function of your
  # own (`storage/parts.py`).
  feedforward: str = 'relu2'
  # Where RMSNorm stands: 'before' attention and feed-forward, 'after' them
  # (their output is normalized before it is added), or 'both'.
  norms: str = 'before'
  # RMSNorm of queries and keys before they are rotated: 'none', 'head' (over
  # each head's K, one gain for all heads), or 'all' (over all heads together).
  qk_norm: str = 'none'
  qkv_bias: bool = False  # Whether queries, keys and values have biases.
  scaled_embedding: bool = True  # Whether the embeddings are multiplied by √D.
  # The constant that every RMSNorm adds to the mean square.
  norm_epsilon: float = 1e-6
  # Whether the output head is the embedding's transpose.
  tied_embedding: bool = True
  # The dtype of activations and local gradients, 'bfloat16' or 'float32'.
  # Parameters are float32 always.
  dtype: str = 'bfloat16'
  # 'none', or 'layer' to recompute each layer in the backward pass (shared keys
  # and values are saved).
  remat: str = 'none'
  # How many repeats of the layer block one scan iteration holds.
  unroll: int = 1
  # Implementation of the attention kernel; with '' the platform chooses.
  attention: str = ''
  # The tensors and matmuls that are int8.
  quantization: quantization_config.QuantizationConfig = dataclasses.field(
    default_factory=quantization_config.QuantizationConfig
  )

  @property
  def is_gated(self) -> bool:
    """Whether the feed-forward has a gate; ValueError if it is unknown."""
    name = self.feedforward
    parts.check('model.feedforward', name, FEEDFORWARDS)
    if name in FEEDFORWARDS:
      return name != 'relu2'
    return parts.find('GATES', name) is not None

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
      self.sinks,
      self.sink_logit,
    )


# The fields that every digest of a model covers, because digests that are in
# files already do. Add none: a later field counts where it has no default.
DIGESTED = (
  *('vocab_size', 'd_model', 'num_layers', 'num_heads', 'num_kv_heads'),
  *('head_dim', 'd_ff', 'max_length', 'window', 'period', 'local_share'),
  *('global_share', 'layout', 'shared', 'rope_local', 'rope_global'),
  *('rope_scaling.kind', 'rope_scaling.factor', 'rope_scaling.original_length'),
  *('rope_scaling.low', 'rope_scaling.high', 'rope_scaling.fast'),
  *('rope_scaling.slow', 'rope_scaling.attention_factor'),
  *('rope_scaling.layers', 'rope_scaling.angles', 'feedforward', 'norms'),
  *('qk_norm', 'qkv_bias', 'scaled_embedding', 'norm_epsilon'),
  *('tied_embedding', 'dtype', 'remat', 'unroll', 'attention'),
  *('quantization.matmul', 'quantization.matmul_implementation'),
  *('quantization.kv', 'quantization.kv_scale', 'quantization.qk'),
  *('quantization.clamp_hidden', 'quantization.clamp_input'),
  *('quantization.clamp_hidden_k', 'quantization.clamp_input_k'),
  *('quantization.bungee', 'quantization.input_gradient'),
  *('quantization.embedding', 'quantization.wire_weights'),
  *('quantization.ternary.check_every', 'quantization.ternary.events_every'),
  *('quantization.ternary.least_scale', 'quantization.wire_gradients'),
  *('quantization.wire_header',),
)
# The fields that say how a model is computed, not which one it is.
COMPUTED = 'dtype', 'attention', 'remat'
FEEDFORWARDS = 'relu2', 'swiglu', 'geglu'
CHOICES = {
  'dtype': ('bfloat16', 'float32'),
  'remat': ('none', 'layer'),
  'shared': ('both', 'keys', 'values'),
  'norms': ('before', 'both', 'after'),
  'qk_norm': ('none', 'head', 'all'),
}
_AT_LEAST_ONE = (
  'vocab_size',
  'd_model',
  'num_heads',
  'num_kv_heads',
  'head_dim',
  'd_ff',
  'max_length',
  'unroll',
)


@dataclasses.dataclass(frozen=True)
class Static:
  """A config as a static argument: equal ones compile once."""

  fields: str  # All of its fields, as text.
  # A copy of the config.
  config: ModelConfig = dataclasses.field(compare=False)


def freeze(config: ModelConfig) -> Static:
  """Returns the config as a static argument of compiled functions."""
  return Static(repr(config), copy.deepcopy(config))


def check(config: ModelConfig) -> None:
  """Refuses a model that cannot be built, before anything compiles.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name in _AT_LEAST_ONE:
    value = getattr(config, name)
    if value < 1:
      raise ValueError(f'model.{name}={value}: must be at least 1.')
  if config.max_length > LENGTH:
    raise ValueError(
      f'model.max_length={config.max_length}: must be at most {LENGTH}.'
    )
  if config.head_dim % 2:
    raise ValueError(
      f'model.head_dim={config.head_dim}: must be even, because rotary'
      ' embeddings turn pairs.'
    )
  strict.check_choices(config, CHOICES, 'model')
  parts.check('model.feedforward', config.feedforward, FEEDFORWARDS)
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
  rope_scaling_lib.check(config.rope_scaling)
  quantization_config.check(config.quantization)
  _check_hidden_limit(config)
  _check_kv_heads(config)
  _check_sums(config)
  _check_layers(config)


def check_tensor(config: ModelConfig, tensor: int) -> None:
  """Refuses a model that `tensor` devices cannot split into equal parts.

  Raises:
    ValueError: names the field, its value and the width.
  """
  if tensor < 1:
    raise ValueError(f'mesh.tensor={tensor}: must be at least 1.')
  if fault := _indivisible(config, tensor):
    most = config.num_heads
    can = [str(x) for x in range(1, most + 1) if not _indivisible(config, x)]
    raise ValueError(f'{fault}; this model divides over {", ".join(can)}.')


def _indivisible(config: ModelConfig, tensor: int) -> str:
  """Returns what `tensor` devices cannot split into equal parts, or ''."""
  for field in ('num_heads', 'd_ff', 'vocab_size'):
    value = getattr(config, field)
    if value % tensor:
      return f'model.{field}={value}: does not divide over mesh.tensor={tensor}'
  heads = config.num_kv_heads
  if heads % tensor and tensor % heads:
    return (
      f'model.num_kv_heads={heads}: must divide mesh.tensor={tensor} or be a'
      ' multiple of it, so that the query heads of one device read whole groups'
      ' or one'
    )
  if config.qk_norm == 'all' and tensor > 1:
    return (
      f"model.qk_norm='all': must be 'none' or 'head' with mesh.tensor="
      f'{tensor}, because devices split the heads that it normalizes together'
    )
  return ''


def _check_hidden_limit(config: ModelConfig) -> None:
  """Refuses a limit whose formula is that of relu(norm(x)·W)² (`clamp.py`)."""
  if config.quantization.clamp_hidden != 'weight_rms':
    return
  for name, wanted in (
    ('feedforward', ('relu2',)),
    ('norms', ('before', 'both')),
  ):
    value = getattr(config, name)
    if value not in wanted:
      raise ValueError(
        f"model.quantization.clamp_hidden='weight_rms': must be 'input_std' or"
        f" 'none' with model.{name}={value!r}, because its formula is that of"
        ' relu² behind a norm.'
      )


def _check_kv_heads(config: ModelConfig) -> None:
  heads = config.num_kv_heads
  if config.num_heads % heads:
    raise ValueError(
      f'model.num_kv_heads={heads}: must divide model.num_heads='
      f'{config.num_heads}, because each is read by as many query heads.'
    )
  quantization = config.quantization
  if heads > 1 and (quantization.kv, quantization.kv_scale) == (
    'int8',
    'channel',
  ):
    raise ValueError(
      "model.quantization.kv_scale='channel': must be 'token' with"
      f' model.num_kv_heads={heads}, because a channel has one limit for all'
      ' rows of a kernel.'
    )


def _check_sums(config: ModelConfig) -> None:
  """Refuses contractions whose int32 sums could wrap."""
  quantization = config.quantization
  d_model = f'model.d_model={config.d_model}'
  if quantization_config.has_codes(quantization):
    bounds.check(d_model, config.d_model)
    bounds.check(
      f'model.num_heads={config.num_heads} × head_dim={config.head_dim}',
      config.num_heads * config.head_dim,
    )
    bounds.check(
      f'model.d_ff={config.d_ff}',
      config.d_ff,
      nonnegative=config.feedforward == 'relu2',
    )
  if quantization.embedding == 'int8':
    bounds.check(d_model, config.d_model)
    if quantization.input_gradient == 'int8':
      bounds.check(f'model.vocab_size={config.vocab_size}', config.vocab_size)


def _check_layers(config: ModelConfig) -> None:
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

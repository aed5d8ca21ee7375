"""A family of models: what its config.json says, and how its tensors are named.

A family is one value of `Family` in a file of its own. `registry.py` picks it
by model_type, and no other code knows a model's name. All families share
`SHAPE`, RMSNorm, and projections [outputs, inputs] whose rotary pairs are
(x[i], x[i + K/2]).

Fields and defaults are those of `transformers` 4.57 and 5.23.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

from kaiju_jax.interchange import fields as fields_lib
from kaiju_jax.interchange import generation
from kaiju_jax.interchange import rope
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config

# {our field: theirs}, positive integers; and the most that some may be.
_MOST = {'num_layers': layers_lib.MOST, 'max_length': model_config.LENGTH}
SHAPE = {
  'vocab_size': 'vocab_size',
  'd_model': 'hidden_size',
  'num_layers': 'num_hidden_layers',
  'num_heads': 'num_attention_heads',
  'd_ff': 'intermediate_size',
  'max_length': 'max_position_embeddings',
}

# {field: (the only value that it may have, the reason)}; absent and null pass.
_FIXED = {
  'attention_bias': (False, 'the output projection has no bias'),
  'mlp_bias': (False, 'the feed-forward has no bias'),
  'partial_rotary_factor': (1.0, 'whole heads are rotated'),
  'rope_interleaved': (False, 'rotary pairs are (x[i], x[i + K/2])'),
  'use_mrope': (False, 'a token has one position'),
  'use_bidirectional_attention': (False, 'tokens see no later token'),
  'attn_logit_softcapping': (None, 'attention logits are not capped'),
  'final_logit_softcapping': (None, 'logits are not capped'),
  'is_encoder_decoder': (False, 'the model is a decoder'),
  'add_cross_attention': (False, 'the model is a decoder'),
  'pruned_heads': ({}, 'all heads are there'),
}

# Fields that change no logit; `Fields.finish` knows more, by their kind.
_IGNORED = frozenset(
  [
    'architectures',
    'attention_dropout',
    'attn_implementation',
    'cache_implementation',
    'chunk_size_feed_forward',
    'finetuning_task',
    'id2label',
    'initializer_range',
    'is_decoder',
    'is_llama_config',
    'label2id',
    'model_type',
    'name_or_path',
    'num_labels',
    'output_attentions',
    'output_hidden_states',
    'prefix',
    'pretraining_tp',
    'problem_type',
    'return_dict',
    'task_specific_params',
    'tf_legacy_loss',
    'tokenizer_class',
    'torchscript',
    'transformers.js_config',
    'unsloth_fixed',
    'use_bfloat16',
    'use_cache',
    # How text was drawn, which older versions kept here, too.
    *generation.FIELDS,
  ]
)

# {field of `plain.Layer`: the tensor's name below model.layers.I}.
LLAMA_TENSORS = {
  'attention_gain_D': 'input_layernorm.weight',
  'w_q_DHK': 'self_attn.q_proj.weight',
  'w_k_DUK': 'self_attn.k_proj.weight',
  'w_v_DUK': 'self_attn.v_proj.weight',
  'w_o_DHK': 'self_attn.o_proj.weight',
  'feedforward_gain_D': 'post_attention_layernorm.weight',
  'w_gate_DF': 'mlp.gate_proj.weight',
  'w_in_DF': 'mlp.up_proj.weight',
  'w_out_DF': 'mlp.down_proj.weight',
}
QK_NORM_TENSORS = {
  'q_gain': 'self_attn.q_norm.weight',
  'k_gain': 'self_attn.k_norm.weight',
}
GATES = {'silu': 'swiglu', 'gelu_pytorch_tanh': 'geglu'}


class Sizes(NamedTuple):
  """What a family's `read` may need of the fields that all families share."""

  num_layers: int
  max_length: int
  head_dim: int


class Special(NamedTuple):
  """What a family's `read` finds."""

  changes: dict[str, Any]  # Fields of `ModelConfig`.
  query_scale: float = 1.0  # Multiplies the gain of the queries' norm.
  is_ours: bool = False  # Whether this project wrote the folder.


class Wrapping(NamedTuple):
  """A config.json that holds the family's fields in an object of its own."""

  name: str  # The object's name.
  ignored: frozenset[str]  # The other fields of the file.


@dataclasses.dataclass(frozen=True)
class Family:
  """One family."""

  model_types: tuple[str, ...]  # The values of model_type that it reads.
  defaults: Mapping[str, Any]  # The class's values of absent fields.
  # Reads what is this family's own.
  read: Callable[[fields_lib.Fields, Sizes], Special]
  # {field of `plain.Layer`: the tensor's name below its layer}.
  tensors: Mapping[str, str] = dataclasses.field(
    default_factory=LLAMA_TENSORS.copy
  )
  activation: str = 'hidden_act'  # The field with the activation's name.
  # {its value: our feed-forward}.
  activations: Mapping[str, str] = dataclasses.field(default_factory=GATES.copy)
  ignored: frozenset[str] = frozenset()  # Further fields that change no logit.
  # {model_type: `Wrapping`}.
  wrappings: Mapping[str, Wrapping] = dataclasses.field(default_factory=dict)
  # What tensors' names may begin with instead of 'model.'.
  prefixes: tuple[str, ...] = ()
  # Beginnings of names of tensors that are not the language model's.
  skipped: tuple[str, ...] = ()
  gain_offset: float = 0.0  # Added to every norm's stored gain.


class Reading(NamedTuple):
  """A config.json, read."""

  family: Family  # The model's family.
  # Our config in float32; the tensors say what dtype they are.
  config: model_config.ModelConfig
  query_scale: float  # See `Special`.
  is_ours: bool  # See `Special`.


def read(family: Family, fields: fields_lib.Fields) -> Reading:
  """Reads the fields of a model.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name, (wanted, why) in _FIXED.items():
    fields.require(name, wanted, why)
  if family.activation != 'hidden_act':
    fields.ignore(['hidden_act'])
  fields.ignore(_IGNORED | family.ignored)
  shape = {
    ours: fields.count(theirs, most=_MOST.get(ours, 2**31 - 1))
    for ours, theirs in SHAPE.items()
  }
  head_dim = _head_dim(fields, shape['d_model'], shape['num_heads'])
  special = family.read(
    fields, Sizes(shape['num_layers'], shape['max_length'], head_dim)
  )
  config = model_config.ModelConfig(
    **shape,
    num_kv_heads=_kv_heads(fields, shape['num_heads']),
    head_dim=head_dim,
    period=1,
    local_share=1,
    global_share=1,
    norm_epsilon=_epsilon(fields),
    scaled_embedding=False,
    tied_embedding=fields.flag('tie_word_embeddings'),
    feedforward=fields.choice(family.activation, family.activations),
    dtype='float32',
    quantization=quantization_config.none(),
  )
  fields.finish()
  config = dataclasses.replace(config, **special.changes)
  model_config.check(config)
  return Reading(family, config, special.query_scale, special.is_ours)


def ignore_shared(fields: fields_lib.Fields) -> None:
  """Lets the fields pass that change no logit of any family."""
  fields.ignore(_IGNORED)


def _head_dim(fields, d_model: int, num_heads: int) -> int:
  if fields.take('head_dim') is None and d_model % num_heads:
    raise fields.error(
      'num_attention_heads',
      f'must divide hidden_size={d_model} where head_dim is not given',
    )
  head_dim = fields.count('head_dim', d_model // num_heads)
  if head_dim % 2:
    name = 'head_dim' if fields.has('head_dim') else 'hidden_size'
    raise fields.error(name, f'must be even heads, not of {head_dim}')
  return head_dim


def _kv_heads(fields, num_heads: int) -> int:
  heads = fields.count('num_key_value_heads', num_heads)
  if num_heads % heads:
    raise fields.error(
      'num_key_value_heads', f'must divide num_attention_heads={num_heads}'
    )
  return heads


def _epsilon(fields) -> float:
  epsilon = fields.number('rms_norm_eps', 0.0)
  if not 0 < epsilon < 1:
    raise fields.error('rms_norm_eps', 'must lie between 0 and 1')
  return epsilon


def stack(letters: Sequence[str], window: int | None) -> dict[str, Any]:
  """Returns the fields of `ModelConfig` for layers L, G and N."""
  changes = {} if window is None else {'window': window}
  if set(letters) != {'G'}:
    changes['layout'] = layers_lib.draw(
      [
        layers_lib.Layer(
          window if letter == 'L' else None, index, turned=letter != 'N'
        )
        for index, letter in enumerate(letters)
      ]
    )
  return changes


def layer_types(fields: fields_lib.Fields, depth: int) -> list[str] | None:
  """Returns the letters L and G of layer_types; None where it is not given."""
  if not fields.has('layer_types'):
    fields.ignore(['layer_types'])
    return None
  found = fields.list_of('layer_types', rope.LAYER_TYPES, depth)
  return ['G' if one == rope.FULL else 'L' for one in found]


def window(fields: fields_lib.Fields, letters: Sequence[str]) -> int | None:
  """Returns sliding_window; refuses none where a layer has one."""
  fields.ignore(['sliding_window'])
  if 'L' not in letters:
    return None
  return fields.count('sliding_window')

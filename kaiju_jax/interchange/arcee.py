"""Translates a Kaiju config to `transformers`' `ArceeConfig`, and back.

    ours                     theirs
    vocab_size               vocab_size
    d_model                  hidden_size
    num_layers               num_hidden_layers
    num_heads                num_attention_heads
    num_kv_heads             num_key_value_heads (if absent,
                             num_attention_heads)
    head_dim                 head_dim
    d_ff                     intermediate_size
    max_length               max_position_embeddings
    norm_epsilon             rms_norm_eps
    rope_global              rope_parameters.rope_theta (before version 5,
                             rope_theta; both are written)
    squared ReLU             hidden_act = 'relu2'
    the embedding's √D       folded into the table, which unties the head

Both rotate the pairs (x[i], x[i + K/2]). A field that is missing in a file has
the class's default. `config_of` refuses a field that it does not know, because
it may change the mathematics. (Fields of versions 4.57 and 5.23.)
"""

from collections.abc import Mapping
from typing import Any

from kaiju_jax.interchange import lost
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config

_SHAPE = {
  'vocab_size': 'vocab_size',
  'd_model': 'hidden_size',
  'num_layers': 'num_hidden_layers',
  'num_heads': 'num_attention_heads',
  'd_ff': 'intermediate_size',
  'max_length': 'max_position_embeddings',
}

# {field: (the only value that it may have, which is its default; the reason)}.
_FIXED = {
  'hidden_act': ('relu2', 'the feed-forward is squared ReLU'),
  'attention_bias': (False, 'projections have no bias'),
  'mlp_bias': (False, 'the feed-forward has no bias'),
  'rope_scaling': (None, 'rotary angles are not scaled'),
}

# Fields that change no logit.
_IGNORED = frozenset(
  {
    'architectures',
    'attention_dropout',
    'bos_token_id',
    'dtype',
    'eos_token_id',
    'initializer_range',
    'pad_token_id',
    'torch_dtype',
    'transformers_version',
    'use_cache',
    '_name_or_path',
  }
)

_READ = frozenset(
  {
    'model_type',
    'head_dim',
    'num_key_value_heads',
    'rms_norm_eps',
    'rope_parameters',
    'rope_theta',
    'tie_word_embeddings',
  }
)


def fields(config: model_config.ModelConfig, bos_id: int) -> dict[str, Any]:
  """Returns a model's config.json.

  Args:
    config: the model's config. The fields leave out what Arcee cannot express
      (`lost.list_losses`).
    bos_id: the token that opens each document. There is no end token, because
      training documents have none.

  Raises:
    ValueError: the heads do not divide the width, as Arcee requires.
  """
  if config.d_model % config.num_heads:
    raise ValueError(
      f'model.num_heads={config.num_heads}: must divide'
      f' model.d_model={config.d_model} in an Arcee model, even though'
      f' head_dim={config.head_dim} is given.'
    )
  base = lost.base_of(config)
  return {
    'architectures': ['ArceeForCausalLM'],
    'model_type': 'arcee',
    **{theirs: getattr(config, ours) for ours, theirs in _SHAPE.items()},
    'num_hidden_layers': len(config.layers()),  # A layout has its own depth.
    **{name: value for name, (value, _) in _FIXED.items()},
    'head_dim': config.head_dim,
    'num_key_value_heads': config.num_kv_heads,
    'rms_norm_eps': config.norm_epsilon,
    'rope_theta': base,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': base},
    'tie_word_embeddings': False,
    'attention_dropout': 0.0,
    'bos_token_id': bos_id,
    'eos_token_id': None,
    'pad_token_id': None,
    'dtype': 'float32',
    'torch_dtype': 'float32',
  }


def config_of(
  fields: Mapping[str, Any], dtype: str, tied: bool
) -> model_config.ModelConfig:
  """Returns the model config for a config.json's fields.

  Args:
    fields: the parsed JSON.
    dtype: dtype of activations.
    tied: whether our embedding serves as the head, which only the tensors show
      (`tensors.is_ours_tied`).

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  if fields.get('model_type') != 'arcee':
    raise ValueError(
      f"model_type={fields.get('model_type')!r}: must be 'arcee'."
    )
  known = {*_SHAPE.values(), *_FIXED, *_IGNORED, *_READ}
  for name in sorted(fields.keys() - known):
    raise ValueError(
      f'{name}={fields[name]!r}: not a field of the Arcee models that can be'
      ' read; must be absent.'
    )
  for name, (wanted, why) in _FIXED.items():
    value = fields.get(name, wanted)
    if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
      raise ValueError(f'{name}={value!r}: must be {wanted!r}: {why}.')
  shape = {
    ours: _number(fields, theirs, int) for ours, theirs in _SHAPE.items()
  }
  width = shape['d_model'] // max(shape['num_heads'], 1)
  base = _rotary_base(fields)
  config = model_config.ModelConfig(
    **shape,
    num_kv_heads=_kv_heads(fields, shape['num_heads']),
    head_dim=_number(fields, 'head_dim', int, width),
    period=1,
    local_share=1,
    global_share=1,
    rope_local=base,
    rope_global=base,
    norm_epsilon=_number(fields, 'rms_norm_eps', float, 1e-5),
    tied_embedding=tied,
    dtype=dtype,
    quantization=quantization_config.none(),
  )
  model_config.check(config)
  return config


def is_tied(fields: Mapping[str, Any]) -> bool:
  """Returns whether the folder's head is the same table as its embedding.

  Raises:
    ValueError: the field is neither true nor false.
  """
  tied = fields.get('tie_word_embeddings', False)
  if not isinstance(tied, bool):
    raise ValueError(f'tie_word_embeddings={tied!r}: must be true or false.')
  return tied


def _kv_heads(fields, num_heads: int) -> int:
  heads = _number(fields, 'num_key_value_heads', int, num_heads)
  if heads < 1 or num_heads % heads:
    raise ValueError(
      f'num_key_value_heads={heads}: must divide'
      f' num_attention_heads={num_heads}.'
    )
  return heads


def _rotary_base(fields) -> float:
  """Returns the rotary base; refuses two spellings that differ."""
  rotary = fields.get('rope_parameters')
  if rotary is None:
    return _number(fields, 'rope_theta', float, 10_000.0)
  if not isinstance(rotary, Mapping) or not rotary.keys() <= {
    'rope_type',
    'rope_theta',
  }:
    raise ValueError(
      f'rope_parameters={rotary!r}: must hold only rope_type and rope_theta.'
    )
  if rotary.get('rope_type', 'default') != 'default':
    raise ValueError(
      f"rope_parameters.rope_type={rotary['rope_type']!r}: must be 'default',"
      ' because rotary angles are not scaled.'
    )
  base = _number(rotary, 'rope_theta', float, 10_000.0)
  other = _number(fields, 'rope_theta', float, base)
  if base != other:
    raise ValueError(
      f'rope_theta={other}: must be rope_parameters.rope_theta={base}.'
    )
  return base


def _number(fields, name: str, kind: type, default=None):
  value = fields.get(name)
  if value is None:
    value = default
  if value is None:
    raise ValueError(f'{name}: missing.')
  allowed = (int, float) if kind is float else int
  if isinstance(value, bool) or not isinstance(value, allowed):
    raise ValueError(f'{name}={value!r}: must be {kind.__name__}.')
  return kind(value)

"""Translates a Kaiju config to `transformers`' `ArceeConfig`.

    ours                     theirs
    vocab_size               vocab_size
    d_model                  hidden_size
    num_layers               num_hidden_layers
    num_heads                num_attention_heads
    num_kv_heads             num_key_value_heads
    head_dim                 head_dim
    d_ff                     intermediate_size
    max_length               max_position_embeddings
    norm_epsilon             rms_norm_eps
    rope_global              rope_parameters.rope_theta (before version 5,
                             rope_theta; both are written)
    rope_scaling             the rest of rope_parameters, and rope_scaling
    squared ReLU             hidden_act = 'relu2'
    the embedding's √D       folded into the table, which unties the head
    embeddings without √D    tie_word_embeddings, and a transformers_version,
                             by which a folder in that library's own terms is
                             told from ours

Both rotate the pairs (x[i], x[i + K/2]). `families/arcee.py` reads such a file.
(Fields of versions 4.57 and 5.23.)
"""

from typing import Any

from kaiju_jax.interchange import losses
from kaiju_jax.interchange.families import family
from kaiju_jax.model import config as model_config
from kaiju_jax.model import rope_scaling


def fields(config: model_config.ModelConfig, bos_id: int) -> dict[str, Any]:
  """Returns a model's config.json.

  Args:
    config: the model's config. The fields leave out what Arcee cannot express
      (`losses.list_losses`).
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
  base = losses.base_of(config)
  scaling = _scaling(config.rope_scaling)
  is_tied = config.tied_embedding and not config.scaled_embedding
  own_terms = {} if config.scaled_embedding else {'transformers_version': '5'}
  return {
    'architectures': ['ArceeForCausalLM'],
    'model_type': 'arcee',
    **{theirs: getattr(config, ours) for ours, theirs in family.SHAPE.items()},
    'num_hidden_layers': len(config.layers()),  # A layout has its own depth.
    'hidden_act': 'relu2',
    'attention_bias': False,
    'mlp_bias': False,
    'rope_scaling': scaling if len(scaling) > 1 else None,
    'head_dim': config.head_dim,
    'num_key_value_heads': config.num_kv_heads,
    'rms_norm_eps': config.norm_epsilon,
    'rope_theta': base,
    'rope_parameters': {**scaling, 'rope_theta': base},
    'tie_word_embeddings': is_tied,
    'attention_dropout': 0.0,
    'bos_token_id': bos_id,
    'eos_token_id': None,
    'pad_token_id': None,
    'dtype': 'float32',
    'torch_dtype': 'float32',
    **own_terms,
  }


def _scaling(config: rope_scaling.RopeScalingConfig) -> dict[str, Any]:
  """Returns the fields of scaled rotary angles, without their base."""
  if config.kind == 'none':
    return {'rope_type': 'default'}
  out = {'rope_type': config.kind, 'factor': config.factor}
  if config.kind != 'linear':
    out['original_max_position_embeddings'] = config.original_length
  if config.kind == 'llama3':
    return out | {
      'low_freq_factor': config.low,
      'high_freq_factor': config.high,
    }
  if config.kind == 'yarn':
    out |= {
      'beta_fast': config.fast,
      'beta_slow': config.slow,
      'attention_factor': config.attention_factor,
    }
  return out

"""Makes a Hugging Face config.json of a GGUF file's metadata.

`general.architecture` names the family, and stands before the keys of sizes, as
in 'llama.block_count'. A key that is not known here becomes a field of the same
name, which `families/registry.py` refuses unless the caller accepts it.

Llama 3's scaled angles are a tensor of divisors, `rope_freqs.weight`, from
which the numbers of its config are found again.
Source: github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py and src/models.
"""

from collections.abc import Mapping
import math
from typing import Any

import numpy as np

from kaiju_jax.interchange import rope
from kaiju_jax.interchange import shards
from kaiju_jax.interchange.gguf import header as header_lib

# {architecture: model_type}.
ARCHITECTURES = {
  'arcee': 'arcee',
  'gemma3': 'gemma3_text',
  'llama': 'llama',
  'olmo2': 'olmo2',  # Or olmo3, where layers slide.
  'qwen2': 'qwen2',
  'qwen3': 'qwen3',
  'smollm3': 'smollm3',
}
TOKENS = 'tokenizer.ggml.tokens'
ROPE_DIVISORS = 'rope_freqs.weight'
# {key behind the architecture's name: field}.
_FIELDS = {
  'block_count': 'num_hidden_layers',
  'context_length': 'max_position_embeddings',
  'embedding_length': 'hidden_size',
  'feed_forward_length': 'intermediate_size',
  'attention.head_count': 'num_attention_heads',
  'attention.head_count_kv': 'num_key_value_heads',
  'attention.key_length': 'head_dim',
  'attention.layer_norm_rms_epsilon': 'rms_norm_eps',
  'rope.freq_base': 'rope_theta',
  'rope.freq_base_swa': 'rope_local_base_freq',
}
# Keys that repeat others, which `_check` holds them to, or that are read apart.
_OTHERS = (
  'vocab_size',
  'rope.dimension_count',
  'attention.value_length',
  'rope.scaling.type',
  'rope.scaling.finetuned',
  'rope.scale_linear',
)
# {key of a scaling: field of rope_scaling}.
_SCALING = {
  'rope.scaling.factor': 'factor',
  'rope.scaling.original_context_length': 'original_max_position_embeddings',
  'rope.scaling.yarn_beta_fast': 'beta_fast',
  'rope.scaling.yarn_beta_slow': 'beta_slow',
}
_ATTENTION = 'rope.scaling.attn_factor'
# {key, or what follows the architecture's name: its type}, of keys whose values
# are computed with before `families` checks the fields.
_KINDS = {
  'general.architecture': str,
  'general.sampling.penalty_last_n': int,
  TOKENS: list,
  'tokenizer.ggml.pre': str,
  'tokenizer.ggml.add_space_prefix': bool,
  'attention.key_length': int,
  'rope.freq_base': float,
  'rope.scaling.factor': float,
  _ATTENTION: float,
}
_WINDOWS = {
  'attention.sliding_window': 'sliding_window',
  'attention.sliding_window_pattern': 'sliding_window_pattern',
}
_GEMMA3_27B = 62  # Its layers, by which llama.cpp, too, knows it.
# Llama 3.1 to 3.3, the only models with such divisors.
_LLAMA3 = {
  'rope_type': 'llama3',
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 8192,
}


def read(header: header_lib.Header) -> dict[str, Any]:
  """Returns the fields of config.json.

  Raises:
    ValueError: names a key, its value and what would be right.
  """
  known = header.fields
  for key, value in known.items():
    kind = _KINDS.get(key) or _KINDS.get(key.partition('.')[2])
    if kind and not isinstance(value, kind):
      raise ValueError(f'{key}={value!r:.80}: must be {kind.__name__}.')
  name = known.get('general.architecture')
  if name not in ARCHITECTURES:
    raise ValueError(
      f'general.architecture={name!r}: cannot be read; can:'
      f' {", ".join(ARCHITECTURES)}.'
    )
  prefix = f'{name}.'
  own = {
    key.removeprefix(prefix): value
    for key, value in known.items()
    if key.startswith(prefix)
  }
  for key in 'block_count', 'embedding_length', 'attention.head_count':
    if type(own.get(key)) is not int or own[key] < 1:
      raise ValueError(
        f'{prefix}{key}={own.get(key)!r}: must be a positive number.'
      )
  fields = {_FIELDS[key]: own.pop(key) for key in _FIELDS if key in own}
  fields |= {
    'model_type': ARCHITECTURES[name],
    'vocab_size': _vocab_size(header),
    'tie_word_embeddings': 'output.weight' not in header.tensors,
  }
  fields.setdefault('rope_theta', 10_000.0)  # As llama.cpp does.
  _check(prefix, own, fields)
  if name in ('gemma3', 'olmo2'):
    fields |= _windows(own, fields)
  scaling = _scaling(prefix, own) or _divisors(header, fields)
  if scaling:
    fields['rope_scaling'] = scaling
  if name == 'gemma3':
    fields |= _gemma3(fields)
  if name == 'smollm3':
    fields['no_rope_layer_interval'] = 4
  if name == 'arcee':  # Arcee's own; a folder of ours has no such field.
    fields['transformers_version'] = ''
  unknown = {
    f'{prefix}{key}': value
    for key, value in own.items()
    if key not in _OTHERS and value not in (0, False)
  }
  return fields | unknown


def _vocab_size(header: header_lib.Header) -> int:
  """Returns the rows of the table of embeddings."""
  table = header.tensors.get('token_embd.weight')
  if table is None or len(table.shape) != 2:
    raise ValueError('token_embd.weight: missing; must be a matrix.')
  return table.shape[0]


def _check(
  prefix: str, own: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
  """Refuses keys that contradict others."""
  head = fields.get(
    'head_dim', fields['hidden_size'] // fields['num_attention_heads']
  )
  for key, wanted in {
    'vocab_size': fields['vocab_size'],
    'rope.dimension_count': head,
    'attention.value_length': head,
    'rope.scale_linear': 1.0,
  }.items():
    if own.get(key, wanted) != wanted:
      raise ValueError(f'{prefix}{key}={own[key]!r}: must be {wanted}.')


def _windows(own: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
  """Takes the fields of layers that slide out of `own`."""
  window, pattern = (own.pop(key, None) for key in _WINDOWS)
  if not window:
    return {}
  found = {'sliding_window': window}
  if fields['model_type'] == 'olmo2':
    found['model_type'] = 'olmo3'
  if isinstance(pattern, list):
    found['layer_types'] = [
      rope.SLIDING if slides else rope.FULL for slides in pattern
    ]
  elif pattern:
    found['sliding_window_pattern'] = pattern
  return found


def _scaling(prefix: str, own: dict[str, Any]) -> dict[str, Any]:
  """Takes rope_scaling out of `own`; returns an empty one for none."""
  kind = own.pop('rope.scaling.type', 'none')
  found = {_SCALING[key]: own.pop(key) for key in _SCALING if key in own}
  if kind == 'none':
    return {}
  longer = found.get('factor', 1.0)
  if not longer >= 1:
    raise ValueError(
      f'{prefix}rope.scaling.factor={longer!r}: must be at least 1.'
    )
  factor = own.pop(_ATTENTION, 1.0)
  usual = 0.1 * math.log(longer) + 1
  # Writers mean the usual factor by 1, which llama.cpp multiplies it by.
  if not (factor == 1.0 or math.isclose(factor, usual, rel_tol=1e-6)):
    raise ValueError(f'{prefix}{_ATTENTION}={factor!r}: must be 1.')
  return {'rope_type': kind, **found}


def _divisors(
  header: header_lib.Header, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns rope_scaling of the divisors of angles; empty without them."""
  stored = header.tensors.get(ROPE_DIVISORS)
  if stored is None:
    return {}
  if stored.dtype != 'F32' or len(stored.shape) != 1:
    raise ValueError(f'{ROPE_DIVISORS}: must be a vector of F32.')
  found = np.concatenate([one.copy()[0] for _, one in shards.blocks(stored)])
  head_dim = 2 * len(found)
  waves = (
    2 * math.pi * fields['rope_theta'] ** (np.arange(len(found)) * 2 / head_dim)
  )
  factor = float(found.max())
  low, high = _LLAMA3['low_freq_factor'], _LLAMA3['high_freq_factor']
  turns = _LLAMA3['original_max_position_embeddings'] / waves
  ramp = np.clip((turns - low) / (high - low), 0, 1)
  wanted = 1 / ((1 - ramp) / factor + ramp)
  if not np.allclose(found, wanted, rtol=1e-4):
    raise ValueError(
      f'{ROPE_DIVISORS}: must be those of Llama 3 (low_freq_factor 1,'
      ' high_freq_factor 4, 8,192 positions).'
    )
  return {**_LLAMA3, 'factor': factor}


def _gemma3(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what a file does not say of Gemma 3."""
  head_dim = fields.get('head_dim', 256)
  scalar = head_dim
  if fields['num_hidden_layers'] == _GEMMA3_27B:
    scalar = fields['hidden_size'] / fields['num_attention_heads']
  return {'head_dim': head_dim, 'query_pre_attn_scalar': scalar}

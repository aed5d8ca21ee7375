"""Small folders of every family, as `save_pretrained` of version 5 writes them.

Each shows its fields: attention that is not uniform, gains and biases away from
0 and 1, K ≠ D/H, windows shorter than the text, scaled angles whose original
length is exceeded, bases far apart.
"""

import json
import zlib

import numpy as np
import safetensors.numpy

from kaiju_jax.interchange import tensors as tensors_lib
from kaiju_jax.interchange.families import registry

FULL, SLIDING = 'full_attention', 'sliding_attention'
_COMMON = {
  'vocab_size': 90,
  'hidden_size': 30,
  'intermediate_size': 40,
  'num_hidden_layers': 2,
  'num_attention_heads': 6,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'max_position_embeddings': 64,
  'rms_norm_eps': 0.25,
  'hidden_act': 'silu',
  'tie_word_embeddings': False,
  'attention_dropout': 0.0,
  'initializer_range': 0.02,
  'use_cache': True,
  'bos_token_id': 0,
  'eos_token_id': [1, 2],
  'pad_token_id': None,
  'dtype': 'float32',
  'transformers_version': '5.23.0',
}
_PLAIN = {'rope_type': 'default', 'rope_theta': 300.0}
_LLAMA3 = {
  'rope_type': 'llama3',
  'rope_theta': 500.0,
  'factor': 4.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 16,
}
_YARN = {
  'rope_type': 'yarn',
  'rope_theta': 50.0,
  'factor': 4.0,
  'beta_fast': 1.0,
  'beta_slow': 0.25,
  'original_max_position_embeddings': 24,
}
_WINDOWS = {'sliding_window': 5, 'layer_types': [FULL, SLIDING]}
_NO_BIAS = {'attention_bias': False, 'mlp_bias': False}
FIELDS = {
  'llama': {**_NO_BIAS, 'rope_parameters': _LLAMA3, 'pretraining_tp': 1},
  'mistral': {'rope_parameters': _PLAIN, 'sliding_window': 5},
  'qwen2': {
    **_WINDOWS,
    'rope_parameters': _YARN,
    'tie_word_embeddings': True,
    'use_sliding_window': True,
    'max_window_layers': 1,
  },
  'qwen3': {
    **_WINDOWS,
    'rope_parameters': {**_PLAIN, 'rope_type': 'linear', 'factor': 4.0},
    'attention_bias': False,
    'use_sliding_window': True,
    'max_window_layers': 1,
  },
  'smollm3': {
    **_NO_BIAS,
    'rope_parameters': _PLAIN,
    'layer_types': [FULL, FULL],
    'no_rope_layers': [1, 0],
    'no_rope_layer_interval': 2,
    'sliding_window': None,
    'use_sliding_window': False,
    'tie_word_embeddings': True,
  },
  'gemma3_text': {
    'num_hidden_layers': 3,
    'layer_types': [SLIDING, SLIDING, FULL],
    '_sliding_window_pattern': 3,
    'sliding_window': 5,
    'attention_bias': False,
    'attn_logit_softcapping': None,
    'final_logit_softcapping': None,
    'use_bidirectional_attention': False,
    'hidden_activation': 'gelu_pytorch_tanh',
    'query_pre_attn_scalar': 24,
    'tie_word_embeddings': True,
    'rope_parameters': {
      FULL: {'rope_type': 'linear', 'rope_theta': 9000.0, 'factor': 8.0},
      SLIDING: {'rope_type': 'default', 'rope_theta': 30.0},
    },
  },
  'olmo2': {'attention_bias': False, 'rope_parameters': _PLAIN},
  'olmo3': {
    **_WINDOWS,
    'attention_bias': False,
    'rope_parameters': {
      FULL: _YARN,
      SLIDING: {'rope_type': 'default', 'rope_theta': 50.0},
    },
  },
  'arcee': {**_NO_BIAS, 'hidden_act': 'relu2', 'rope_parameters': _YARN},
}


def fields_of(name: str) -> dict:
  """Returns a family's config.json, a copy that the caller may change."""
  fields = {'model_type': name, **_COMMON, **FIELDS[name]}
  if name == 'gemma3_text':
    del fields['hidden_act']
  return json.loads(json.dumps(fields))


def old_spelling(fields: dict) -> dict:
  """Returns the file as version 4 wrote it: flat bases, older windows."""
  fields = dict(fields)
  rope = fields.pop('rope_parameters')
  if fields['model_type'] != 'olmo3':  # It is younger than layer_types.
    fields.pop('layer_types', None)
  fields['torch_dtype'] = fields.pop('dtype')
  if FULL in rope:
    base = rope[SLIDING]['rope_theta']
    if fields['model_type'].startswith('gemma3'):
      fields['rope_local_base_freq'] = base
      fields['sliding_window_pattern'] = fields.pop('_sliding_window_pattern')
    rope = rope[FULL]
  rope = dict(rope)
  fields['rope_theta'] = rope.pop('rope_theta')
  rope['type'] = rope.pop('rope_type')
  fields['rope_scaling'] = None if rope == {'type': 'default'} else rope
  return fields


def tensors_of(fields: dict) -> dict[str, np.ndarray]:
  """Returns random tensors under the family's own names."""
  reading = registry.read(fields)
  rng = np.random.default_rng(zlib.crc32(fields['model_type'].encode()))
  out = {}
  for name, shape in sorted(tensors_lib.shapes(reading).items()):
    x = rng.standard_normal(shape)
    if 'norm' in name:
      x = 1 - reading.family.gain_offset + 0.3 * x
    elif name.endswith('bias'):
      x = 1 + 0.3 * x
    elif '.q_proj' in name or '.k_proj' in name:
      x = 0.4 * x
    else:
      x = 0.2 * x
    out[name] = x.astype(np.float32)
  return out


def write(path, fields: dict, tensors: dict | None = None):
  """Writes a folder at `path` and returns the path."""
  path.mkdir()
  (path / 'config.json').write_text(json.dumps(fields))
  tensors = tensors_of(fields) if tensors is None else tensors
  safetensors.numpy.save_file(
    tensors, path / 'model.safetensors', {'format': 'pt'}
  )
  return path


def load(folder):
  """Returns config.json's fields and the tensors of a folder."""
  fields = json.loads((folder / 'config.json').read_text())
  return fields, safetensors.numpy.load_file(folder / 'model.safetensors')

"""Qwen2 and 2.5, with biases of q, k and v; Qwen3, with norms of q and k.

Qwen2's biases have no field: they are always there. Layers from
max_window_layers on slide if use_sliding_window says so; layer_types, where
given, says which slide instead.
"""

from typing import Any

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family


def _reader(**changes: Any):
  def read(fields, sizes: family.Sizes) -> family.Special:
    depth = sizes.num_layers
    slides = fields.flag('use_sliding_window') and fields.has_value(
      'sliding_window'
    )
    first = fields.count('max_window_layers', least=0) if slides else depth
    fields.ignore(['max_window_layers'])
    letters = family.layer_types(fields, depth) or [
      'L' if index >= first else 'G' for index in range(depth)
    ]
    if 'L' in letters and not slides:
      raise fields.error(
        'layer_types', 'must slide nowhere without use_sliding_window'
      )
    return family.Special(
      {
        **changes,
        **family.stack(letters, family.window(fields, letters)),
        **rope.read(fields, sizes.max_length, 10_000.0),
      }
    )

  return read


_DEFAULTS = {
  'vocab_size': 151_936,
  'hidden_size': 4096,
  'intermediate_size': 22_016,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'num_key_value_heads': 32,
  'hidden_act': 'silu',
  'max_position_embeddings': 32_768,
  'rms_norm_eps': 1e-6,
  'use_sliding_window': False,
  'sliding_window': 4096,
  'max_window_layers': 28,
  'tie_word_embeddings': False,
}
QWEN2 = family.Family(
  model_types=('qwen2',),
  defaults=_DEFAULTS,
  read=_reader(qkv_bias=True),
  tensors=family.LLAMA_TENSORS
  | {
    'bias_q_HK': 'self_attn.q_proj.bias',
    'bias_k_UK': 'self_attn.k_proj.bias',
    'bias_v_UK': 'self_attn.v_proj.bias',
  },
)
QWEN3 = family.Family(
  model_types=('qwen3',),
  defaults=_DEFAULTS | {'head_dim': 128},
  read=_reader(qk_norm='head'),
  tensors=family.LLAMA_TENSORS | family.QK_NORM_TENSORS,
)

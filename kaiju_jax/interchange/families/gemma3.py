"""Gemma 3, its text part: gated by gelu, norms on both sides, two rotary bases.

A stored gain w means 1 + w. The logits' scale, query_pre_attn_scalar^−½ instead
of K^−½, goes into the gain of the queries' norm. The images' part of a larger
model is skipped.
"""

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family


def _letters(fields, depth: int) -> list[str]:
  names = 'sliding_window_pattern', '_sliding_window_pattern'
  fields.ignore(names)
  given = [name for name in names if fields.has(name)]
  pattern = fields.count(given[0]) if given else 6
  drawn = ['G' if (index + 1) % pattern == 0 else 'L' for index in range(depth)]
  letters = family.layer_types(fields, depth) or drawn
  if given and letters != drawn:
    raise fields.error(given[0], 'must draw the same layers as layer_types')
  return letters


def _read(fields, sizes: family.Sizes) -> family.Special:
  letters = _letters(fields, sizes.num_layers)
  scalar = fields.number('query_pre_attn_scalar', 1e-6)
  return family.Special(
    {
      'scaled_embedding': True,
      'norms': 'both',
      'qk_norm': 'head',
      **family.stack(letters, family.window(fields, letters)),
      **rope.read_by_layer_type(
        fields,
        sizes.max_length,
        1_000_000.0,
        'rope_local_base_freq',
        10_000.0,
      ),
    },
    query_scale=(sizes.head_dim / scalar) ** 0.5,
  )


FAMILY = family.Family(
  model_types=('gemma3_text',),
  defaults={
    'vocab_size': 262_208,
    'hidden_size': 2304,
    'intermediate_size': 9216,
    'num_hidden_layers': 26,
    'num_attention_heads': 8,
    'num_key_value_heads': 4,
    'head_dim': 256,
    'hidden_activation': 'gelu_pytorch_tanh',
    'max_position_embeddings': 131_072,
    'rms_norm_eps': 1e-6,
    'query_pre_attn_scalar': 256,
    'sliding_window': 4096,
    'tie_word_embeddings': True,
  },
  read=_read,
  tensors=family.LLAMA_TENSORS
  | family.QK_NORM_TENSORS
  | {
    'attention_out_gain_D': 'post_attention_layernorm.weight',
    'feedforward_gain_D': 'pre_feedforward_layernorm.weight',
    'feedforward_out_gain_D': 'post_feedforward_layernorm.weight',
  },
  activation='hidden_activation',
  wrappings={
    'gemma3': family.Wrapping(
      'text_config',
      frozenset(
        [
          'boi_token_id',
          'boi_token_index',
          'eoi_token_id',
          'eoi_token_index',
          'image_token_id',
          'image_token_index',
          'mm_tokens_per_image',
          'vision_config',
        ]
      ),
    )
  },
  prefixes=('language_model.model.', 'model.language_model.'),
  skipped=(
    'vision_tower.',
    'multi_modal_projector.',
    'model.vision_tower.',
    'model.multi_modal_projector.',
  ),
  gain_offset=1.0,
)

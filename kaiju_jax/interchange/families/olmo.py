"""OLMo 2 and 3: norms behind attention and feed-forward, and over all heads.

OLMo 3 has three sliding layers per full one, and scales the full ones' angles
alone. Versions of transformers differ in its rotary base, so a file must give
one.
"""

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family

_CHANGES = {'norms': 'after', 'qk_norm': 'all'}


def _read2(fields, sizes: family.Sizes) -> family.Special:
  angles = rope.read(fields, sizes.max_length, 10_000.0)
  return family.Special({**_CHANGES, **angles})


def _read3(fields, sizes: family.Sizes) -> family.Special:
  depth = sizes.num_layers
  letters = family.layer_types(fields, depth) or [
    'G' if (index + 1) % 4 == 0 else 'L' for index in range(depth)
  ]
  return family.Special(
    {
      **_CHANGES,
      **family.stack(letters, family.window(fields, letters)),
      **rope.read_by_layer_type(fields, sizes.max_length, None),
    }
  )


_DEFAULTS = {
  'vocab_size': 50_304,
  'hidden_size': 4096,
  'intermediate_size': 11_008,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
  'hidden_act': 'silu',
  'max_position_embeddings': 2048,
  'rms_norm_eps': 1e-5,
  'tie_word_embeddings': False,
}
_TENSORS = {
  name: tensor
  for name, tensor in family.LLAMA_TENSORS.items()
  if not name.endswith('gain_D')
}
_TENSORS |= family.QK_NORM_TENSORS | {
  'attention_out_gain_D': 'post_attention_layernorm.weight',
  'feedforward_out_gain_D': 'post_feedforward_layernorm.weight',
}
OLMO2 = family.Family(('olmo2',), _DEFAULTS, _read2, _TENSORS)
OLMO3 = family.Family(
  ('olmo3',), _DEFAULTS | {'sliding_window': 4096}, _read3, _TENSORS
)

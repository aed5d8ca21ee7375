"""SmolLM3: as Llama, but every fourth layer is not rotated.

Where a window is used, the layers that are not rotated slide.
"""

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family


def _turned(fields, depth: int) -> list[int]:
  """Returns 1 for each layer that is rotated and 0 for the others."""
  fields.ignore(['no_rope_layers', 'no_rope_layer_interval'])
  if fields.has('no_rope_layers'):
    return fields.list_of('no_rope_layers', (0, 1), depth)
  interval = fields.count('no_rope_layer_interval')
  return [int((index + 1) % interval != 0) for index in range(depth)]


def _read(fields, sizes: family.Sizes) -> family.Special:
  depth = sizes.num_layers
  turned = _turned(fields, depth)
  slides = fields.flag('use_sliding_window') and fields.has_value(
    'sliding_window'
  )
  letters = family.layer_types(fields, depth) or [
    'L' if slides and not is_turned else 'G' for is_turned in turned
  ]
  if 'L' in letters and not slides:
    raise fields.error(
      'layer_types', 'must slide nowhere without use_sliding_window'
    )
  angles = rope.read(fields, sizes.max_length, 2_000_000.0)
  of_sliding = {t for letter, t in zip(letters, turned) if letter == 'L'}
  if len(of_sliding) > 1:
    raise fields.error(
      'no_rope_layers', 'must rotate all of the layers that slide, or none'
    )
  if of_sliding == {0}:
    angles['rope_local'] = 0.0
  letters = [
    'N' if letter == 'G' and not is_turned else letter
    for letter, is_turned in zip(letters, turned)
  ]
  return family.Special(
    {
      **family.stack(letters, family.window(fields, letters)),
      **angles,
    }
  )


FAMILY = family.Family(
  model_types=('smollm3',),
  defaults={
    'vocab_size': 128_256,
    'hidden_size': 2048,
    'intermediate_size': 11_008,
    'num_hidden_layers': 36,
    'num_attention_heads': 16,
    'num_key_value_heads': 4,
    'hidden_act': 'silu',
    'max_position_embeddings': 32_768,
    'rms_norm_eps': 1e-6,
    'use_sliding_window': False,
    'no_rope_layer_interval': 4,
    'tie_word_embeddings': True,
  },
  read=_read,
  # Left in files by the training code of the first release.
  ignored=frozenset({'max_window_layers'}),
)

"""Mistral: as Llama, but all layers slide unless sliding_window is null."""

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family


def _read(fields, sizes: family.Sizes) -> family.Special:
  # An absent window is the class's, a null one is none.
  letter = 'G' if fields.take('sliding_window') is None else 'L'
  letters = [letter] * sizes.num_layers
  return family.Special(
    {
      **family.stack(letters, family.window(fields, letters)),
      **rope.read(fields, sizes.max_length, 10_000.0),
    }
  )


FAMILY = family.Family(
  model_types=('mistral',),
  defaults={
    'vocab_size': 32_000,
    'hidden_size': 4096,
    'intermediate_size': 14_336,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'hidden_act': 'silu',
    'max_position_embeddings': 131_072,
    'rms_norm_eps': 1e-6,
    'sliding_window': 4096,
    'tie_word_embeddings': False,
  },
  read=_read,
)

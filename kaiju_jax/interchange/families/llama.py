"""Llama 2 and 3, TinyLlama, SmolLM2: gated by silu, no biases, no windows."""

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family


def _read(fields, sizes: family.Sizes) -> family.Special:
  return family.Special(rope.read(fields, sizes.max_length, 10_000.0))


FAMILY = family.Family(
  model_types=('llama',),
  defaults={
    'vocab_size': 32_000,
    'hidden_size': 4096,
    'intermediate_size': 11_008,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'hidden_act': 'silu',
    'max_position_embeddings': 2048,
    'rms_norm_eps': 1e-6,
    'tie_word_embeddings': False,
  },
  read=_read,
)

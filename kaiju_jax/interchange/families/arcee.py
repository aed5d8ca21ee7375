"""Arcee (AFM): squared ReLU without a gate; the class that `arcee.py` writes.

A folder that this project wrote has no transformers_version. Its embedding
holds √D, and its angles were float64.
"""

import dataclasses

from kaiju_jax.interchange import rope
from kaiju_jax.interchange.families import family


def _read(fields, sizes: family.Sizes) -> family.Special:
  is_ours = not fields.has('transformers_version')
  angles = rope.read(fields, sizes.max_length, 10_000.0)
  if is_ours:
    scaling = dataclasses.replace(angles['rope_scaling'], angles='float64')
    angles['rope_scaling'] = scaling
  return family.Special(
    {'scaled_embedding': is_ours, **angles}, is_ours=is_ours
  )


FAMILY = family.Family(
  model_types=('arcee',),
  defaults={
    'vocab_size': 32_000,
    'hidden_size': 2560,
    'intermediate_size': 18_432,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'hidden_act': 'relu2',
    'max_position_embeddings': 4096,
    'rms_norm_eps': 1e-5,
    'tie_word_embeddings': False,
  },
  read=_read,
  tensors={
    name: tensor
    for name, tensor in family.LLAMA_TENSORS.items()
    if name != 'w_gate_DF'
  },
  activations={'relu2': 'relu2'},
)

"""Names a GGUF file's tensors as a Hugging Face folder does.

llama.cpp rotates neighbours in the architectures of `_PAIRED`, whose files hold
the rows of queries and keys in that order: `Stored.paired` says so. A Gemma's
gains are 1 + w there.
"""

import dataclasses

from kaiju_jax.interchange import shards
from kaiju_jax.interchange import tensors as tensors_lib
from kaiju_jax.interchange.families import family as family_lib
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.interchange.gguf import metadata

_PAIRED = ('arcee', 'llama', 'smollm3')
_WHOLE = {
  'token_embd.weight': tensors_lib.EMBEDDING,
  'output_norm.weight': tensors_lib.NORM,
  'output.weight': tensors_lib.HEAD,
}
# {part of a family's name of a tensor: GGUF's}.
_PARTS = {
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'input_layernorm': 'attn_norm',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
}


def read(
  unpacked: gguf_folder.Unpacked, reading: family_lib.Reading
) -> tuple[list[shards.Stored], family_lib.Reading]:
  """Returns the model's tensors by a folder's names, and how to read them.

  Tensors without such a name keep theirs.

  Args:
    unpacked: the file.
    reading: of its config.json.
  """
  family = reading.family
  layer = _name_layer(family)
  is_paired = unpacked.architecture in _PAIRED
  found = []
  for theirs, one in unpacked.tensors.items():
    if theirs == metadata.ROPE_DIVISORS:
      continue
    name = _WHOLE.get(theirs, theirs)
    block, _, rest = theirs.partition('.')
    index, _, rest = rest.partition('.')
    if block == 'blk' and rest in layer:
      name = f'model.layers.{index}.{layer[rest]}'
    turns = is_paired and rest in ('attn_q.weight', 'attn_k.weight')
    paired = reading.config.head_dim if turns else 0
    found.append(one._replace(name=name, paired=paired))
  plain = dataclasses.replace(family, gain_offset=0.0, prefixes=(), skipped=())
  return found, reading._replace(family=plain)


def _name_layer(family: family_lib.Family) -> dict[str, str]:
  """Returns {GGUF's name of a tensor of a layer: the family's}."""
  # This norm is behind attention in some families; in most it is the next.
  is_behind = 'attention_out_gain_D' in family.tensors
  norm = 'post_attention_norm' if is_behind else 'ffn_norm'
  parts = _PARTS | {'post_attention_layernorm': norm}
  found = {}
  for theirs in family.tensors.values():
    part, _, kind = theirs.rpartition('.')
    found[f'{parts[part]}.{kind}'] = theirs
  return found

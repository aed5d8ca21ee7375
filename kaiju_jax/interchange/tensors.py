"""Names a model's weights as a family of `transformers` does, and back.

torch's Linear holds [outputs, inputs] and multiplies by the transpose; our
weights have D first:

    model.embed_tokens.weight         [V, D]   √D · embedding_DVᵀ
    model.layers.I.…
      input_layernorm.weight          [D]      attention_norm.gain_D
      self_attn.q_proj.weight         [HK, D]  w_q_DHKᵀ
      self_attn.k_proj.weight         [UK, D]  w_k_DUKᵀ
      self_attn.v_proj.weight         [UK, D]  w_v_DUKᵀ
      self_attn.o_proj.weight         [D, HK]  w_o_DHK
      post_attention_layernorm.weight [D]      feedforward_norm.gain_D
      mlp.up_proj.weight              [F, D]   w_in_DFᵀ
      mlp.down_proj.weight            [D, F]   w_out_DF
    model.norm.weight                 [D]      final_norm.gain_D
    lm_head.weight                    [V, D]   head_DVᵀ, embedding_DVᵀ if tied

These are Arcee's names, in which we write; other families' files have theirs
(`families/`). Where embeddings are not multiplied by √D, the table holds none.

A head that we wrote counts as tied where the embedding is √D times the head, to
the bit. So a tied model that we exported comes back tied.
"""

from collections.abc import Mapping
import math

import numpy as np

from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange import quantized
from kaiju_jax.interchange import scale
from kaiju_jax.interchange import shards
from kaiju_jax.interchange.families import family as family_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import rules

EMBEDDING = 'model.embed_tokens.weight'
HEAD = 'lm_head.weight'
NORM = 'model.norm.weight'

# A folder stores these with our axes; other matrices are transposed.
UPRIGHT = ('w_o_DHK', 'w_out_DF')


def name_tensors(
  plain: plain_lib.Plain,
  family: family_lib.Family,
  scaled: bool = True,
  query_scale: float = 1.0,
) -> dict[str, np.ndarray]:
  """Returns a folder's float32 tensors by name, each contiguous in memory.

  Args:
    plain: the weights.
    family: the folder's.
    scaled: whether the table is multiplied by √D. Otherwise tied tables stay
      one.
    query_scale: as of `family.Special`.
  """
  offset = np.float32(family.gain_offset)
  table_DV, head_DV = plain.embedding_DV, plain.head_DV
  out = {NORM: plain.final_gain_D - offset}
  if scaled:
    head_DV = table_DV if head_DV is None else head_DV
    table_DV = scale.scale(table_DV, len(table_DV))
  out[EMBEDDING] = table_DV.T
  if head_DV is not None:
    out[HEAD] = head_DV.T
  for index, layer in enumerate(plain.layers):
    for ours, theirs in family.tensors.items():
      w = getattr(layer, ours)
      if ours == 'q_gain':
        w = w / np.float32(query_scale)
      if '_gain' in ours:
        w = w - offset
      if ours.startswith('w_'):
        w = w.reshape(w.shape[0], -1)
        w = w if ours in UPRIGHT else w.T
      else:
        w = w.reshape(-1)
      out[f'model.layers.{index}.{theirs}'] = w
  return {name: np.ascontiguousarray(tensor) for name, tensor in out.items()}


def letters_of(ours: str, config: model_config.ModelConfig) -> str:
  """Returns the letters of a field of `plain.Layer`."""
  if ours in ('q_gain', 'k_gain'):
    both = 'HK' if ours == 'q_gain' else 'UK'
    return 'K' if config.qk_norm == 'head' else both
  return rules.letters_of(ours)


def _sizes(config: model_config.ModelConfig) -> dict[str, int]:
  return {
    'D': config.d_model,
    'F': config.d_ff,
    'H': config.num_heads,
    'U': config.num_kv_heads,
    'K': config.head_dim,
  }


def rename(name: str, family: family_lib.Family) -> str | None:
  """Returns a tensor's name with 'model.' in front; None to skip it.

  A larger model's file has other tensors beside the language model's, and old
  files have the rotary rates of each layer.
  """
  if name.startswith(family.skipped) or name.endswith('.rotary_emb.inv_freq'):
    return None
  for prefix in family.prefixes:
    if name.startswith(prefix):
      return f'model.{name.removeprefix(prefix)}'
  return HEAD if name == f'language_model.{HEAD}' else name


def check(
  tensors: Mapping[str, shards.Stored], reading: family_lib.Reading
) -> None:
  """Refuses tensors that do not fit the config; reads no data.

  Args:
    tensors: all tensors of the folder, by Llama's names where families differ
      in the beginning (`rename`); with the head, unless it is tied.
    reading: the result of `registry.read`; its config says whether the head is
      tied.

  Raises:
    ValueError: names a tensor that is missing, unknown or of another shape.
  """
  wanted = shapes(reading)
  for name in sorted(wanted.keys() | tensors.keys()):
    if name not in tensors:
      raise ValueError(f'{name}: missing.')
    if name not in wanted:
      raise ValueError(f'{name}: no such tensor in this model.')
    if tensors[name].dtype not in (*shards.DTYPES, *quantized.SIZES):
      raise ValueError(
        f'{name}: holds {tensors[name].dtype}, must be one of'
        f' {", ".join((*shards.DTYPES, *quantized.SIZES))}.'
      )
    if tensors[name].shape != wanted[name]:
      raise ValueError(
        f'{name}: has shape {list(tensors[name].shape)}, config.json asks for'
        f' {list(wanted[name])}.'
      )


def shapes(reading: family_lib.Reading) -> dict[str, tuple[int, ...]]:
  """Returns {name: shape} for every tensor of a folder."""
  config = reading.config
  d, v = config.d_model, config.vocab_size
  layer = {
    theirs: _stored_shape(ours, config)
    for ours, theirs in reading.family.tensors.items()
  }
  # A tied head that we wrote is there, because it holds no √D.
  has_head = reading.is_ours or not config.tied_embedding
  return {
    EMBEDDING: (v, d),
    NORM: (d,),
    **({HEAD: (v, d)} if has_head else {}),
    **{
      f'model.layers.{index}.{theirs}': shape
      for index in range(config.num_layers)
      for theirs, shape in layer.items()
    },
  }


def _stored_shape(ours: str, config) -> tuple[int, ...]:
  sizes = _sizes(config)
  first, *rest = (sizes[letter] for letter in letters_of(ours, config))
  if not ours.startswith('w_'):
    return (math.prod((first, *rest)),)
  shape = first, math.prod(rest)
  return shape if ours in UPRIGHT else shape[::-1]

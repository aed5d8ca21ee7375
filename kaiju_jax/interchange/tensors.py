"""Translates our weights to Arcee's names and axes, and back.

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

A folder's head counts as tied in our sense where the embedding is √D times the
head, to the bit. So a tied model that we exported comes back tied. A folder
that ties its own tables has no √D between them, and becomes two tables here.
"""

from collections.abc import Mapping

import numpy as np

from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange import scale
from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import rules

EMBEDDING = 'model.embed_tokens.weight'
HEAD = 'lm_head.weight'
_NORM = 'model.norm.weight'

_LAYER = {
  'attention_gain_D': 'input_layernorm.weight',
  'w_q_DHK': 'self_attn.q_proj.weight',
  'w_k_DUK': 'self_attn.k_proj.weight',
  'w_v_DUK': 'self_attn.v_proj.weight',
  'w_o_DHK': 'self_attn.o_proj.weight',
  'feedforward_gain_D': 'post_attention_layernorm.weight',
  'w_in_DF': 'mlp.up_proj.weight',
  'w_out_DF': 'mlp.down_proj.weight',
}

# A folder stores these with our axes, and the others transposed.
_UPRIGHT = ('attention_gain_D', 'w_o_DHK', 'feedforward_gain_D', 'w_out_DF')


def name_tensors(plain: plain_lib.Plain) -> dict[str, np.ndarray]:
  """Returns a folder's float32 tensors by name, each contiguous in memory."""
  head_DV = plain.embedding_DV if plain.head_DV is None else plain.head_DV
  out = {
    EMBEDDING: scale.scale(plain.embedding_DV).T,
    _NORM: plain.final_gain_D,
    HEAD: head_DV.T,
  }
  for index, layer in enumerate(plain.layers):
    for ours, theirs in _LAYER.items():
      w = getattr(layer, ours)
      w = w.reshape(w.shape[0], -1) if w.ndim > 1 else w
      out[f'model.layers.{index}.{theirs}'] = w if ours in _UPRIGHT else w.T
  return {name: np.ascontiguousarray(tensor) for name, tensor in out.items()}


def plain(
  tensors: Mapping[str, np.ndarray], config: model_config.ModelConfig
) -> plain_lib.Plain:
  """Returns the weights of a folder's tensors, in float32.

  Args:
    tensors: all tensors of the folder, of any float dtype, with the head even
      if it is the embedding.
    config: the result of `arcee.config_of`; it says whether the head is tied.

  Raises:
    ValueError: names a tensor that is missing, unknown or of another shape.
  """
  check(tensors, config)
  tensors = {
    name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()
  }
  table_DV = tensors[EMBEDDING].T
  head_DV = tensors[HEAD].T
  if config.tied_embedding:
    embedding_DV, head_DV = head_DV, None
  else:
    embedding_DV = scale.unscale(table_DV)
  return plain_lib.Plain(
    embedding_DV,
    head_DV,
    tensors[_NORM],
    tuple(_layer(tensors, config, i) for i in range(config.num_layers)),
  )


def _layer(tensors, config, index: int) -> plain_lib.Layer:
  heads = {'DHK': config.num_heads, 'DUK': config.num_kv_heads}
  out = {}
  for ours, theirs in _LAYER.items():
    w = tensors[f'model.layers.{index}.{theirs}']
    w = w if ours in _UPRIGHT else w.T
    count = heads.get(rules.letters_of(ours))
    shape = (config.d_model, count, config.head_dim)
    out[ours] = w.reshape(shape) if count else w
  return plain_lib.Layer(**out)


def is_ours_tied(tensors: Mapping[str, np.ndarray]) -> bool:
  """Returns whether the embedding is √D times the head, to the bit."""
  table_VD, head_VD = (
    np.asarray(tensors.get(name, 0), np.float32) for name in (EMBEDDING, HEAD)
  )
  if head_VD.ndim != 2 or table_VD.shape != head_VD.shape:
    return False
  return np.array_equal(table_VD.T, scale.scale(head_VD.T))


def check(
  tensors: Mapping[str, np.ndarray], config: model_config.ModelConfig
) -> None:
  """Refuses tensors that do not fit the config.

  Raises:
    ValueError: names a tensor that is missing, unknown or of another shape.
  """
  wanted = shapes(config)
  for name in sorted(wanted.keys() | tensors.keys()):
    if name not in tensors:
      raise ValueError(f'{name}: missing.')
    if name not in wanted:
      raise ValueError(f'{name}: no such tensor in this model.')
    if tensors[name].shape != wanted[name]:
      raise ValueError(
        f'{name}: has shape {list(tensors[name].shape)}, config.json asks for'
        f' {list(wanted[name])}.'
      )


def shapes(config: model_config.ModelConfig) -> dict[str, tuple[int, ...]]:
  """Returns {name: shape} for every tensor of a folder."""
  d, v, k = config.d_model, config.vocab_size, config.head_dim
  layer = {
    'attention_gain_D': (d,),
    'w_q_DHK': (config.num_heads * k, d),
    'w_k_DUK': (config.num_kv_heads * k, d),
    'w_v_DUK': (config.num_kv_heads * k, d),
    'w_o_DHK': (d, config.num_heads * k),
    'feedforward_gain_D': (d,),
    'w_in_DF': (config.d_ff, d),
    'w_out_DF': (d, config.d_ff),
  }
  return {
    EMBEDDING: (v, d),
    _NORM: (d,),
    HEAD: (v, d),
    **{
      f'model.layers.{index}.{theirs}': layer[ours]
      for index in range(config.num_layers)
      for ours, theirs in _LAYER.items()
    },
  }

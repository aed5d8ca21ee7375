"""Converts a model's weights to plain float32 matrices per layer, and back.

These are the matrices that the forward pass multiplies by: codes times scales
where it reads int8 (also from a ternary model's replica), with Bungee's exp(b)
folded in, and without the leading N of a scan. Keys and values have a dimension
U even if there is one head. A layer that reads another layer's keys and values
gets that layer's projections, which come nearest in a model without sharing
(`lost.py` names this loss).
"""

from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary_plan


class Layer(NamedTuple):
  """One layer's float32 weights and gains."""

  attention_gain_D: np.ndarray
  w_q_DHK: np.ndarray
  w_k_DUK: np.ndarray
  w_v_DUK: np.ndarray
  w_o_DHK: np.ndarray
  feedforward_gain_D: np.ndarray
  w_in_DF: np.ndarray
  w_out_DF: np.ndarray


_ATTENTION = ('w_q_DHK', 'w_k_DUK', 'w_v_DUK', 'w_o_DHK')


class Plain(NamedTuple):
  """A model's float32 weights; √D is not multiplied into the embedding.

  Attributes:
    embedding_DV: the input table.
    head_DV: the output table; None where it is the input table.
    final_gain_D: gain of the last norm.
    layers: all layers, from the first to the last.
  """

  embedding_DV: np.ndarray
  head_DV: np.ndarray | None
  final_gain_D: np.ndarray
  layers: tuple[Layer, ...]


def weights(
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
) -> Plain:
  """Returns the weights that the forward pass of `params` multiplies by.

  Args:
    params: trained float32 masters, or an export's tree (`own.load`).
    config: the model's config.
    replica: the training state's replica, where its updates were ternary.

  Raises:
    ValueError: see `deployed.quantize`.
  """
  if not deployed.is_deployed(params):
    params = deployed.quantize(params, config, replica)
  tables = _group(params['embedding'])
  layers = config.layers()
  return Plain(
    tables['embedding_DV'],
    tables.get('head_DV'),
    np.asarray(params['final_norm']['gain_D']),
    tuple(
      _layer(params['blocks'], layers, index) for index in range(len(layers))
    ),
  )


def _layer(blocks, layers, index: int) -> Layer:
  own = _repeat(blocks, layers, index)
  owner = _repeat(blocks, layers, layers[index].kv_from)
  attention = {**_group(owner['attention']), **_group(own['attention'])}
  for name in 'w_k', 'w_v':
    if f'{name}_DK' in attention:
      attention[f'{name}_DUK'] = attention[f'{name}_DK'][:, None]
  feedforward = _group(own['feedforward'])
  return Layer(
    np.asarray(own['attention_norm']['gain_D']),
    *(attention[name] for name in _ATTENTION),
    np.asarray(own['feedforward_norm']['gain_D']),
    *(feedforward[name] for name in ('w_in_DF', 'w_out_DF')),
  )


def _repeat(blocks, layers, index: int):
  """Returns the parameters of one layer, without the scan's leading N."""
  repeat, place = divmod(index, len(layers_lib.repeating_block(layers)))
  return jax.tree.map(lambda x: x[repeat], blocks[f'layer_{place}'])


def _group(group) -> dict[str, np.ndarray]:
  """Returns one module's weights in float32, with Bungee folded in."""
  out = {}
  for name, w in group.items():
    if name not in rules.CONTRACTED:
      continue
    scalar = f'bungee_{name.removesuffix(f"_{rules.letters_of(name)}")}'
    if scalar in group:
      w = bungee.stretch(w, group[scalar])
    if isinstance(w, int8.Quantized):
      w = int8.dequantize(w)
    out[name] = np.asarray(w, np.float32)
  return out


def params(plain: Plain) -> Any:
  """Returns the parameter tree of a model whose layers are all alike.

  All layers must be global, none share keys and values, and nothing be int8. So
  the scan's block is one layer, and each of its leaves has a leading N.
  """
  stacked = Layer(*map(np.stack, zip(*plain.layers)))._asdict()
  layer = {
    'attention_norm': {'gain_D': stacked['attention_gain_D']},
    'attention': name_weights({name: stacked[name] for name in _ATTENTION}),
    'feedforward_norm': {'gain_D': stacked['feedforward_gain_D']},
    'feedforward': {name: stacked[name] for name in ('w_in_DF', 'w_out_DF')},
  }
  embedding = {'embedding_DV': plain.embedding_DV}
  if plain.head_DV is not None:
    embedding['head_DV'] = plain.head_DV
  tree = {
    'embedding': embedding,
    'blocks': {'layer_0': layer},
    'final_norm': {'gain_D': plain.final_gain_D},
  }
  return jax.tree.map(jax.numpy.asarray, tree)


def name_weights(attention: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns weights under the model's names: DUK becomes DK where U is 1."""
  out = {}
  for name, w in attention.items():
    if name.endswith('_DUK') and w.shape[-2] == 1:
      name, w = f'{name.removesuffix("_DUK")}_DK', w[..., 0, :]
    out[name] = w
  return out

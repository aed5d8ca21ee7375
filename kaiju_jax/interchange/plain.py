"""Converts a model's weights to plain float32 matrices per layer, and back.

These are the matrices that the forward pass multiplies by: codes times scales
where it reads int8 (also from a ternary model's replica), with Bungee's exp(b)
folded in, turned back where codes are those of a rotated model, and without
the leading N of a scan. Keys and values have a dimension U even if there is one
head. A layer that reads another layer's keys and values gets that layer's
projections, which come nearest in a model without sharing (`losses.py` names
this loss).
"""

from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.interchange import own
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import lora
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import rotation
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary_plan


class Layer(NamedTuple):
  """One layer's float32 weights, biases and gains; None for what it has not.

  The gain of a norm over queries or keys is [K], or [H, K] and [U, K] where it
  is over all heads together.
  """

  attention_gain_D: np.ndarray | None
  w_q_DHK: np.ndarray
  w_k_DUK: np.ndarray | None
  w_v_DUK: np.ndarray | None
  w_o_DHK: np.ndarray
  feedforward_gain_D: np.ndarray | None
  w_in_DF: np.ndarray
  w_out_DF: np.ndarray
  w_gate_DF: np.ndarray | None = None
  attention_out_gain_D: np.ndarray | None = None
  feedforward_out_gain_D: np.ndarray | None = None
  bias_q_HK: np.ndarray | None = None
  bias_k_UK: np.ndarray | None = None
  bias_v_UK: np.ndarray | None = None
  q_gain: np.ndarray | None = None
  k_gain: np.ndarray | None = None
  sink_logit_H: np.ndarray | None = None


# {a module of a layer: the fields of `Layer` that it holds}.
_MODULES = {
  'attention_norm': ('attention_gain_D',),
  'attention': (
    'w_q_DHK',
    'w_k_DUK',
    'w_v_DUK',
    'w_o_DHK',
    'bias_q_HK',
    'bias_k_UK',
    'bias_v_UK',
    'q_gain',
    'k_gain',
    'sink_logit_H',
  ),
  'attention_out_norm': ('attention_out_gain_D',),
  'feedforward_norm': ('feedforward_gain_D',),
  'feedforward': ('w_in_DF', 'w_gate_DF', 'w_out_DF'),
  'feedforward_out_norm': ('feedforward_out_gain_D',),
}
# The letters of the gains of queries' and keys' norms, by their dimensions.
_GAINS = {('q_gain', 2): 'HK', ('k_gain', 2): 'UK'}


class Plain(NamedTuple):
  """A model's float32 weights; √D is not multiplied into the embedding."""

  embedding_DV: np.ndarray  # The input table.
  # The output table; None where it is the input table.
  head_DV: np.ndarray | None
  final_gain_D: np.ndarray  # Gain of the last norm.
  layers: tuple[Layer, ...]  # All layers, from the first to the last.


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
    ValueError: see `deployed.quantize`; or the parameters hold adapters.
  """
  lora.refuse(params)
  if not deployed.is_deployed(params):
    params = deployed.quantize(params, config, replica)
  tables = _group(params['embedding'])
  layers = config.layers()
  found = Plain(
    tables['embedding_DV'],
    tables.get('head_DV'),
    np.asarray(params['final_norm']['gain_D']),
    tuple(
      _layer(params['blocks'], layers, index) for index in range(len(layers))
    ),
  )
  if rotation.NAME not in params:
    return found
  mix_NJJ = params['blocks']['layer_0']['feedforward'].get(rotation.MIX)
  mix_JJ = None if mix_NJJ is None else np.asarray(mix_NJJ[0])
  held = jax.device_get(params[rotation.NAME])
  return _turn_back(found, held, mix_JJ, config.norms == 'before')


def _turn_back(
  plain: Plain, held: Any, mix_JJ: np.ndarray | None, writes: bool
) -> Plain:
  """Returns the weights without their rotation; norms' gains stay folded.

  `writes` says whether weights that write to the stream are turned.
  """

  def back(w):
    w = rotation.turn(held, np.moveaxis(w, 0, -1).astype(np.float64), True)
    return np.moveaxis(w, -1, 0).astype(np.float32)

  layers = []
  for layer in plain.layers:
    if mix_JJ is not None:
      w_out_DF = layer.w_out_DF.astype(np.float64)
      layer = layer._replace(w_out_DF=rotation.mix(w_out_DF, mix_JJ))
    changes = {
      name: back(w)
      for name, w in layer._asdict().items()
      if w is not None
      and name.startswith('w_')
      and (writes or rules.CONTRACTED[name] == 'D')
    }
    layers.append(layer._replace(**changes))
  head_DV = None if plain.head_DV is None else back(plain.head_DV)
  return Plain(
    back(plain.embedding_DV), head_DV, plain.final_gain_D, tuple(layers)
  )


def _layer(blocks, layers, index: int) -> Layer:
  own = _repeat(blocks, layers, index)
  owner = _repeat(blocks, layers, layers[index].kv_from)
  found = dict.fromkeys(Layer._fields)
  for module, names in _MODULES.items():
    group = _group({**owner.get(module, {}), **own.get(module, {})})
    for name in names:
      held = _name(module, name, group)
      if held is not None:
        found[name] = group[held]
        if name.endswith('UK') and not held.endswith('UK'):
          found[name] = group[held][..., None, :]
  return Layer(**found)


def _name(module: str, field: str, group) -> str | None:
  """Returns the model's name of a field of `Layer`, if the group has it."""
  names = {field}
  if module.endswith('_norm'):
    names = {'gain_D'}
  elif field.endswith('_gain'):
    names = {name for name in group if name.startswith(f'{field}_')}
  elif field.endswith('UK'):
    names = {field, f'{field.removesuffix("UK")}K'}
  return next(iter(names & group.keys()), None)


def _repeat(blocks, layers, index: int):
  """Returns the parameters of one layer, without the scan's leading N."""
  repeat, place = divmod(index, len(layers_lib.repeating_block(layers)))
  return jax.tree.map(lambda x: x[repeat], blocks[f'layer_{place}'])


def _group(group) -> dict[str, np.ndarray]:
  """Returns one module's parameters in float32, with Bungee folded in."""
  out = {}
  for name, w in group.items():
    if name.startswith('bungee_') or 'limit' in name:
      continue
    if name not in rules.CONTRACTED:
      out[name] = np.asarray(w, np.float32)
      continue
    scalar = f'bungee_{name.removesuffix(f"_{rules.letters_of(name)}")}'
    if scalar in group:
      w = bungee.stretch(w, group[scalar])
    if isinstance(w, int8.Quantized):
      w = int8.dequantize(w)
    out[name] = np.asarray(w, np.float32)
  return out


def params(plain: Plain, config: model_config.ModelConfig) -> Any:
  """Returns the float32 parameters of a model with these weights.

  Bungee's scalars, which a plain model has not, start at 0, and so do the sink
  logits of layers that have none.

  Raises:
    ValueError: a weight that the config asks for is missing.
  """
  named = [name_parameters(layer) for layer in plain.layers]
  period = len(layers_lib.repeating_block(config.layers()))
  tops = {
    'embedding_DV': plain.embedding_DV,
    'head_DV': plain.head_DV,
    'gain_D': plain.final_gain_D,
  }

  def start(path, shape):
    names = [key.key for key in path]
    if names[0] != 'blocks':
      return jax.numpy.asarray(tops[names[-1]])
    first = int(names[1].removeprefix('layer_'))
    name = '.'.join(names[2:])
    is_new = names[-1] == 'sink_logit_H' and name not in named[first]
    if is_new or names[-1].startswith('bungee_'):
      return jax.numpy.zeros(shape.shape, jax.numpy.float32)
    if any(name not in one for one in named[first::period]):
      raise ValueError(f'layer {first}: {name} is missing.')
    return jax.numpy.asarray(
      np.stack([one[name] for one in named[first::period]])
    )

  return jax.tree_util.tree_map_with_path(
    start, own.shapes(config, masters=True)
  )


def name_parameters(layer: Layer) -> dict[str, np.ndarray]:
  """Returns {module.name: array} under the model's names.

  DUK becomes DK where U is 1, and UK becomes K.
  """
  out = {}
  for field, w in zip(Layer._fields, layer):
    if w is None:
      continue
    letters = _GAINS.get((field, w.ndim), 'K')
    if not field.endswith('_gain'):
      letters = rules.letters_of(field)
    if letters.endswith('UK') and w.shape[-2] == 1:
      letters, w = f'{letters.removesuffix("UK")}K', w[..., 0, :]
    out['.'.join(name_parameter(field, letters))] = w
  return out


def name_parameter(field: str, letters: str) -> tuple[str, str]:
  """Returns the module and the name of the parameter that a field becomes.

  Args:
    field: a field of `Layer`.
    letters: the letters of the parameter's dimensions.
  """
  (module,) = (one for one, fields in _MODULES.items() if field in fields)
  if module.endswith('_norm'):
    return module, 'gain_D'
  stem = field if field.endswith('_gain') else field.rpartition('_')[0]
  return module, f'{stem}_{letters}'

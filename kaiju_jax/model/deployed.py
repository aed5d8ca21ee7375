"""Parameters for inference: int8 codes and scales in place of the weights.

Inference computes exactly what training computed. The training step's forward
pass reads codes, scales and clamp limits, and the same functions make those of
a deployed tree of parameters. So the two forward passes agree bit for bit (at
the same shapes, on one backend). Where updates were ternary, training read
replicas, and the deployed tree holds these.

Every projection and the feed-forward become `Quantized`, with Bungee's exp(b)
folded into the scales; the embedding and the output head too if
`quantization.embedding='int8'`. Norm gains and other weights stay float32. A
model whose matmuls are not int8 keeps its float32 masters, and Bungee's scalars
(`bungee_w_in`) among them.

`interchange/own.py` writes such a tree to a file.
"""

import functools
from typing import Any

import jax

from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules
from kaiju_jax.wire import fsdp
from kaiju_jax.wire import ternary_plan


def quantize(
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
) -> Any:
  """Returns `params` with `Quantized` weights and clamp limits.

  The same model takes the tree as its parameters. Its `Quantized` weights carry
  no gradient.

  Args:
    params: float32 master weights.
    config: the model's config. Weights that it does not hold in int8 stay
      float.
    replica: the training state's replica if its updates were ternary.

  Raises:
    ValueError: a ternary model without its replica, or a replica beside a model
      that is not ternary.
  """
  is_ternary = config.quantization.wire_weights == 'ternary'
  if is_ternary != (replica is not None):
    raise ValueError(
      'model.quantization.wire_weights='
      f'{config.quantization.wire_weights!r}: the replica that training read is'
      f' {"missing" if is_ternary else "not of this model"}.'
    )
  replica = ternary_plan.collections(replica).get('replica', {})
  static = model_config.freeze(config)
  held = replica.get('blocks', {})
  blocks = params['blocks']
  if quantization_config.has_codes(config.quantization):
    blocks = {
      name: _over_repeats(layer, held.get(name, {}), static)
      for name, layer in blocks.items()
    }
  embedding = params['embedding']
  if config.quantization.embedding == 'int8':
    embedding = _tables(embedding, replica.get('embedding', {}), static)
  return {**params, 'blocks': blocks, 'embedding': embedding}


@functools.partial(jax.jit, static_argnums=2)
def _over_repeats(layer: Any, held: Any, static: model_config.Static) -> Any:
  # A loop over the repeats, as in the model's scan, because a vectorized exp or
  # sum need not round as the scalar one does.
  return jax.lax.map(lambda one: _layer(*one, static.config), (layer, held))


@functools.partial(jax.jit, static_argnums=2)
def _tables(embedding: Any, held: Any, static: model_config.Static) -> Any:
  return _group(embedding, held, static.config)


def _layer(layer: Any, held: Any, config: model_config.ModelConfig) -> Any:
  layer = {
    **layer,
    **{
      name: _group(layer[name], held.get(name, {}), config)
      for name in ('attention', 'feedforward')
    },
  }
  if config.quantization.clamp_hidden == 'weight_rms':
    layer['feedforward']['hidden_limit'] = clamp.weight_rms_limit(
      layer['feedforward']['w_in_DF'],
      layer['feedforward_norm']['gain_D'],
      config.quantization.clamp_hidden_k,
    )
  return layer


def _group(group: Any, held: Any, config: model_config.ModelConfig) -> Any:
  """Returns one module's quantized weights or replicas, Bungee folded in."""
  out = {}
  for name, w in group.items():
    if name.startswith('bungee_'):
      continue
    if name not in rules.CONTRACTED:
      out[name] = w
      continue
    letters = rules.letters_of(name)
    # Training makes codes before the wire, or behind it from weights in the
    # model's dtype; the same choice gives the same bits here.
    wire = fsdp.Wire(
      letters,
      rules.CONTRACTED[name],
      config.dtype,
      int8=True,
      weights=config.quantization.wire_weights,
    )
    if name in held:
      weight = fsdp.follow(held[name], w, wire)
    else:
      weight = fsdp.gather(w, wire)
    stem = name.removesuffix(f'_{letters}')
    if f'bungee_{stem}' in group:
      weight = bungee.stretch(weight, group[f'bungee_{stem}'])
    out[name] = weight._replace(carrier=None)
  return out


def turn(params: Any) -> Any:
  """Returns parameters whose codes and tables are summed over their last axis.

  A CPU reads them so (`decoding/device/weights.py`); `rules.turn` names them.

  Args:
    params: unstacked. What is turned already stays.
  """
  out = {}
  for name, x in params.items():
    is_table = name.endswith('_DV')
    if isinstance(x, dict):
      x = turn(x)
    elif name in rules.CONTRACTED and (_is_quantized(x) or is_table):
      if rules.turn(name) != name:
        x = jax.tree.map(_move_first, x)
      name = rules.turn(name)
    out[name] = x
  return out


def _move_first(x: Any) -> Any:
  """Returns an array, or a NumPy array, with its first dimension last."""
  return x.transpose(*range(1, x.ndim), 0)


def is_deployed(params: Any) -> bool:
  """Returns whether any weight of a tree of parameters is `Quantized`."""
  leaves = jax.tree.leaves(params, is_leaf=_is_quantized)
  return any(map(_is_quantized, leaves))


def _is_quantized(x: Any) -> bool:
  return isinstance(x, int8.Quantized)

"""A trained checkpoint in a file: what is served is what was trained.

The forward pass reads codes, scales and clamp limits; an export holds exactly
these, made by the functions that the training step calls, so that its forward
pass is the training one bit for bit (at the same shapes, on one backend). Where
updates were ternary, training read replicas, and these are what is exported.
A model whose matmuls are not int8 is held as its float32 masters, Bungee's
scalars (`bungee_w_in`) among them.

This is the format for everything that the model can be: windows, shared keys
and values, clamps. Other libraries' folders hold less (`interchange/`).

One safetensors file. Names are the parameters' paths joined by dots, stacked
over the N repeats of the layer block as in training:

    blocks.layer_0.feedforward.w_in_DF.codes        int8     [N, D, F]
    blocks.layer_0.feedforward.w_in_DF.scales       float32  [N, 1, F]
    blocks.layer_0.feedforward.hidden_limit         float32  [N]
    blocks.layer_0.attention_norm.gain_D            float32  [N, D]
    embedding.embedding_DV                          float32  [D, V]

int8: every projection and the feed-forward, Bungee's exp(b) folded into the
scales; embedding and output head where `quantization.embedding` says so.
float32: else these, and norm gains. Keys and values need
nothing where their scale is a token's, and their channels' running limits
(`k_limit_K`, `v_limit_K`) where it is a channel's. The file's metadata holds
the model's config as JSON, under `config`, and under `format` the word below.
"""

import dataclasses
import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import bungee
from kaiju_jax.quantization import clamp
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules
from kaiju_jax.storage import strict
from kaiju_jax.storage import tensor_file
from kaiju_jax.wire import fsdp
from kaiju_jax.wire import ternary_plan

_FORMAT = 'kaiju_jax 2'


def quantized(
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
) -> Any:
  """Returns `params` with `Quantized` weights and clamp limits.

  The tree serves as parameters of the same model; where anything in it is
  `Quantized`, it carries no gradient.

  Args:
    params: float32 master weights.
    config: the model's. What it does not hold in int8 stays as it is.
    replica: the training state's, where its updates were ternary.

  Raises:
    ValueError: no replica of a model that read it, or one of a model that did
      not.
  """
  is_ternary = config.quantization.wire_weights == 'ternary'
  if is_ternary != (replica is not None):
    raise ValueError(
      'model.quantization.wire_weights='
      f'{config.quantization.wire_weights!r}: the replica that training read is'
      f' {"missing" if is_ternary else "not of this model"}.'
    )
  replica = ternary_plan.collections(replica).get('replica', {})

  # A loop over the repeats, as the model's scan is: a vectorized exp or sum
  # need not round as the scalar one does.
  @jax.jit
  def over_repeats(layer, held):
    return jax.lax.map(lambda one: _layer(*one, config), (layer, held))

  held = replica.get('blocks', {})
  blocks = params['blocks']
  if config.quantization.matmul == 'int8':
    blocks = {
      name: over_repeats(layer, held.get(name, {}))
      for name, layer in blocks.items()
    }
  embedding = params['embedding']
  if config.quantization.embedding == 'int8':
    embedding = jax.jit(_group)(embedding, replica.get('embedding', {}))
  return {**params, 'blocks': blocks, 'embedding': embedding}


def _layer(layer: Any, held: Any, config: model_config.ModelConfig) -> Any:
  layer = {
    **layer,
    'attention': _group(layer['attention'], held.get('attention', {})),
    'feedforward': _group(layer['feedforward'], held.get('feedforward', {})),
  }
  if config.quantization.clamp_hidden == 'weight_rms':
    layer['feedforward']['hidden_limit'] = clamp.weight_rms_limit(
      layer['feedforward']['w_in_DF'],
      layer['feedforward_norm']['gain_D'],
      config.quantization.clamp_hidden_k,
    )
  return layer


def _group(group: Any, held: Any) -> Any:
  """Quantizes one module's weights, or takes its replicas; folds Bungee in."""
  out = {}
  for name, w in group.items():
    if name.startswith('bungee_'):
      continue
    if name not in rules.CONTRACTED:
      out[name] = w
      continue
    letters = rules.letters_of(name)
    wire = fsdp.Wire(letters, rules.CONTRACTED[name], 'float32', int8=True)
    if name in held:
      weight = fsdp.follow(held[name], w, wire)
    else:
      weight = fsdp.gather(w, wire)
    stem = name.removesuffix(f'_{letters}')
    if f'bungee_{stem}' in group:
      weight = bungee.stretch(weight, group[f'bungee_{stem}'])
    out[name] = weight._replace(carrier=None)
  return out


def save(
  path: str | os.PathLike,
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
) -> None:
  """Writes the export of float32 `params`; whole or not at all.

  Raises:
    ValueError: see `quantized`, whose arguments these are.
    OSError: the file cannot be written.
  """
  tensors = {}
  for tree_path, leaf in jax.tree_util.tree_leaves_with_path(
    quantized(params, config, replica)
  ):
    tensors[_name(tree_path)] = np.asarray(jax.device_get(leaf))
  metadata = {
    'format': _FORMAT,
    'config': json.dumps(dataclasses.asdict(config), sort_keys=True),
  }
  tensor_file.write(path, tensors, metadata)


def load(path: str | os.PathLike) -> tuple[Any, model_config.ModelConfig]:
  """Returns the parameters and the model's config of an export.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: it is no export of this format, its config is none of this
      code's, or its tensors are not those of that model.
  """
  tensors, metadata = tensor_file.read(path, _FORMAT)
  try:
    fields = json.loads(metadata.get('config', '{}'))
    config = strict.parse(model_config.ModelConfig, fields)
    model_config.check(config)
    _check(tensors, config)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return _tree(tensors), config


def _check(
  tensors: dict[str, np.ndarray], config: model_config.ModelConfig
) -> None:
  """Refuses tensors that are not what `save` writes of such a model."""
  found = {name: (x.dtype.name, x.shape) for name, x in tensors.items()}
  wanted = {
    _name(path): (leaf.dtype.name, leaf.shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(_shapes(config))
  }
  for name in sorted(wanted.keys() | found.keys()):
    if found.get(name) != wanted.get(name):
      has, is_due = (
        'nothing' if one is None else f'{one[0]} {list(one[1])}'
        for one in (found.get(name), wanted.get(name))
      )
      raise ValueError(f'{name}: holds {has}, the config asks for {is_due}.')


def _shapes(config: model_config.ModelConfig) -> Any:
  """The tree of an export's shapes and dtypes, by no arithmetic at all."""
  # Imported here, for the model imports this room.
  from kaiju_jax.model import transformer

  config = dataclasses.replace(
    config,
    quantization=dataclasses.replace(config.quantization, wire_weights='int8'),
  )

  def exported():
    params = transformer.Transformer(config).init(
      jax.random.key(0), jnp.zeros((1, 1), jnp.int32), visibility_lib.causal(1)
    )['params']
    return quantized(params, config)

  return jax.eval_shape(exported)


def _name(tree_path) -> str:
  return '.'.join(
    str(getattr(key, 'key', getattr(key, 'name', key))) for key in tree_path
  )


def _tree(tensors: dict[str, np.ndarray]) -> Any:
  tree: dict[str, Any] = {}
  for name, tensor in tensors.items():
    *parents, last = name.split('.')
    if last in int8.Quantized._fields:
      *parents, last = parents
      node = _descend(tree, parents)
      weight = node.get(last, int8.Quantized(None, None))
      field = name.rpartition('.')[2]
      node[last] = weight._replace(**{field: jnp.asarray(tensor)})
    else:
      _descend(tree, parents)[last] = jnp.asarray(tensor)
  return tree


def _descend(tree: dict[str, Any], parents: list[str]) -> dict[str, Any]:
  for name in parents:
    tree = tree.setdefault(name, {})
  return tree

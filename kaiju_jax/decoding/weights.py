"""A trained or exported tree of parameters as decoding reads it.

Every weight is what the forward pass uses, made once and not at every step:
codes and scales where the model is int8, else the model's dtype. And each layer
has its own, `layer_0` and on. Training stacks them over the N repeats of the
layer block and scans; a scan copies each weight out of its stack before it is
read, which a matrix product of a whole batch does not notice and a decoding
step, which does little but read weights, does.
"""

from typing import Any

import jax

from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary_plan


def ready(
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
) -> Any:
  """Returns the parameters of `Transformer(config, unstacked=True)`.

  Args:
    params: float32 master weights, or an export (`own.load`).
    config: the model's.
    replica: the training state's, where its updates were ternary.

  Raises:
    ValueError: a replica that is missing or too much.
  """
  quantization = config.quantization
  has_codes = 'int8' in (quantization.matmul, quantization.embedding)
  if has_codes and not deployed.is_deployed(params):
    params = deployed.quantized(params, config, replica)
  return _with_columns(unstacked(_cast(params, config.dtype), config))


def unstacked(params: Any, config: model_config.ModelConfig) -> Any:
  """Returns the tree with a layer's own parameters instead of a stack's."""
  layers = config.layers()
  period = len(layers_lib.repeating_block(layers))

  def layer(index: int):
    stacked = params['blocks'][f'layer_{index % period}']
    return jax.tree.map(lambda x: x[index // period], stacked)

  blocks = {f'layer_{index}': layer(index) for index in range(len(layers))}
  return {**params, 'blocks': blocks}


def _with_columns(params: Any) -> Any:
  """Adds the sums that coded non-negative activations are repaid with."""
  blocks = {}
  for name, layer in params['blocks'].items():
    feedforward = dict(layer['feedforward'])
    w_out_DF = feedforward['w_out_DF']
    if isinstance(w_out_DF, int8.Quantized):
      axes = tuple(map('DF'.index, rules.CONTRACTED['w_out_DF']))
      feedforward['w_out_DF'] = w_out_DF._replace(
        columns=qat.columns_of(w_out_DF, axes)
      )
    blocks[name] = {**layer, 'feedforward': feedforward}
  return {**params, 'blocks': blocks}


def _cast(params: Any, dtype: str) -> Any:
  """Float weights in the model's dtype; gains and limits stay float32."""

  def cast(path, x):
    name = str(getattr(path[-1], 'key', ''))
    return x.astype(dtype) if name in rules.CONTRACTED else x

  return jax.tree_util.tree_map_with_path(cast, params)

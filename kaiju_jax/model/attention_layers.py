"""Attention of all layers by themselves: their inputs and outputs in a pass.

`record` runs a model and keeps what each layer's attention reads and gives;
`attend` runs a model's attention on inputs from elsewhere, with nothing between
the layers. I are the layers, from the first to the last.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.model import attention
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import transformer


class Record(NamedTuple):
  """This device's part of L of what attention reads and gives."""

  # The inputs, behind the norm if one stands before attention.
  x_IBLD: jax.Array
  out_IBLD: jax.Array  # The outputs behind w_o, before any further norm.


def record(
  model: transformer.Transformer, params: Any, batch: packing.Batch
) -> Record:
  """Returns the inputs and outputs of each layer's attention in a forward pass.

  Args:
    model: a model without remat.
    params: its parameters.
    batch: rows [B, L].
  """

  def keep(function, args, kwargs, context):
    made = function(*args, **kwargs)
    module = context.module
    is_attention = isinstance(module, attention.Attention)
    if is_attention and context.method_name == '__call__':
      module.sow('heads', 'x_BLD', args[0])
      module.sow('heads', 'out_BLD', made[0])
    return made

  with nn.intercept_methods(keep):
    _, kept = model.apply(
      {'params': params},
      batch.tokens_BL,
      batch.visibility(),
      method='hidden',
      mutable=['heads'],
    )
  blocks = kept['heads']['blocks']
  return Record(*(_in_order(blocks, name) for name in ('x_BLD', 'out_BLD')))


def _in_order(blocks: Mapping[str, Any], name: str) -> jax.Array:
  """Returns [I, B, L, D] of what each layer of the scanned block kept."""
  x_PNBLD = jnp.stack(
    [
      blocks[f'layer_{place}']['attention'][name][0]
      for place in range(len(blocks))
    ]
  )
  return jnp.swapaxes(x_PNBLD, 0, 1).reshape(-1, *x_PNBLD.shape[2:])


def attend(
  model: transformer.Transformer,
  params: Any,
  x_IBLD: jax.Array,
  batch: packing.Batch,
  z: jax.Array | float = 0.0,
) -> jax.Array:
  """Returns the output [I, B, L, D] of each layer's attention.

  A layer that reads another layer's keys and values reads those that its owner
  makes of the owner's inputs.

  Args:
    model: the model.
    params: its parameters; those of attention are read.
    x_IBLD: this device's part of the inputs, as `Record.x_IBLD`.
    batch: the rows that the inputs are of.
    z: Attention Z-Reg's coefficient.
  """
  config = model.config
  repeating = layers_lib.repeating_block(config.layers())
  context = model.apply(
    {'params': {}}, batch.visibility(), z, method='context_of'
  )

  def run(blocks, x_PBLD):
    made, out = {}, []
    for place, layer in enumerate(repeating):
      module = attention.Attention(config, layer, model.z_target, parent=None)
      apply = module.apply
      if config.remat == 'layer':
        apply = jax.checkpoint(apply)
      out_BLD, key_value = apply(
        {'params': blocks[f'layer_{place}']['attention']},
        x_PBLD[place],
        made.get(layer.kv_from),
        context,
      )
      if layer.kv_from == place:
        made[place] = key_value
      out.append(out_BLD)
    return jnp.stack(out)

  x_NPBLD = x_IBLD.reshape(-1, len(repeating), *x_IBLD.shape[1:])
  _, out_NPBLD = jax.lax.scan(
    lambda _, both: (None, run(*both)), None, (params['blocks'], x_NPBLD)
  )
  return out_NPBLD.reshape(x_IBLD.shape)

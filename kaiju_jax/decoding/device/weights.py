"""Prepares trained or exported parameters for decoding.

Each weight is converted once, instead of at every step, to the form that the
forward pass reads: codes and scales if the model is int8, otherwise the model's
dtype. Each layer has its own weights, `layer_0` and on, because a scan over
stacked ones would copy each weight before it is read.

On a CPU, codes and tables of the vocabulary lie with the dimension that is
summed over last, `w_in_FD`, `embedding_VD`: XLA would pack another order anew
at every step (`quantization/qat/project.py`), and a lookup reads a row instead
of a column. The fast mode alone does so, because it moves the last bits of the
logits of float tables.

For several devices all of this happens in the host's memory: `placement.py`
then sends each device its part of each tensor, and no device ever holds more.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import numpy as np

from kaiju_jax.decoding.device import balance
from kaiju_jax.decoding.device import packed
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import lora
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary_plan

_BLOCKS = 'blocks'


def ready(
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
  turned: bool = False,
  devices: int = 1,
) -> Any:
  """Returns the parameters of `Transformer(config, unstacked=True)`.

  `params` are float32 master weights, an export (`own.load`), or unstacked
  already (`interchange/stream.py`); `replica` is the training state's, exactly
  if its updates were ternary, otherwise ValueError. If `turned`, codes and
  tables of the vocabulary get their contracted dimensions last. `devices` is
  how many will split F, H and V.
  """
  quantization = config.quantization
  has_codes = (
    quantization_config.has_codes(quantization)
    or quantization.embedding == 'int8'
  )
  if has_codes and not deployed.is_deployed(params):
    params = deployed.quantize(params, config, replica)
  params = _cast(params, config.dtype)
  if not is_unstacked(params):
    params = unstack(params, config)
  params = balance.balance(params, config)
  if config.feedforward == 'relu2':
    params = _with_columns(params, devices)
  return deployed.turn(params) if turned else params


def make_ready(
  config: model_config.ModelConfig,
  jit: Callable[..., Any],
  mode: str,
  devices: int = 1,
) -> Callable[..., Any]:
  """Returns (params, replica=…) → `ready` parameters of a decoder's `mode`.

  `jit` compiles for one device. For several `devices` the parameters are whole
  NumPy arrays, made by the host's CPU (ValueError if JAX_PLATFORMS leaves it
  out).
  """
  prepare = functools.partial(ready, config=config, devices=devices)
  if mode == 'reference':
    prepare = jit(prepare)  # It has sums, too.
  elif dispatch.platform() == 'cpu':
    prepare = functools.partial(prepare, turned=True)
    if devices == 1:
      return functools.partial(_packed, prepare)
  return prepare if devices == 1 else functools.partial(_by_host, prepare)


def _packed(prepare, params: Any, replica: Any = None) -> Any:
  """Returns what `prepare` makes, each layer `packed.Packed`."""
  params = prepare(params, replica=replica)
  blocks = {name: packed.pack(x) for name, x in params[_BLOCKS].items()}
  return {**params, _BLOCKS: blocks}


def _by_host(prepare, params: Any, replica: Any = None) -> Any:
  """Returns what `prepare` makes, as arrays in the host's memory."""
  params, replica = jax.tree.map(np.asarray, (params, replica))
  with on_host():
    return jax.tree.map(np.asarray, prepare(params, replica=replica))


def on_host() -> Any:
  """Returns a context in which new arrays lie in the host's memory.

  Raises ValueError: JAX was started without the CPU.
  """
  try:
    return jax.default_device(jax.local_devices(backend='cpu')[0])
  except RuntimeError as error:
    raise ValueError(
      f'JAX_PLATFORMS={jax.config.jax_platforms}: must list cpu, too, which'
      ' prepares the weights of several devices.'
    ) from error


def check_alike(given: Any, held: Any) -> None:
  """Refuses parameters that programs compiled for `held` cannot take.

  Raises ValueError: names one that is missing, new, or of another shape or
  dtype.
  """
  theirs, ours = (
    {
      jax.tree_util.keystr(path, simple=True, separator='.'): (
        f'{x.dtype}{list(x.shape)}'
      )
      for path, x in jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(packed.unpack, tree)
      )
    }
    for tree in (given, held)
  )
  for name in sorted({*theirs, *ours}):
    if theirs.get(name) != ours.get(name):
      raise ValueError(
        f'params: {name} is {theirs.get(name, "missing")}; must be'
        f' {ours.get(name, "left out")}, as in the model that the decoder has.'
      )


def is_unstacked(params: Any) -> bool:
  """Returns whether weights have no leading N, as their names say."""
  group = params[_BLOCKS]['layer_0']['feedforward']
  return 'w_in_DF' not in group or len(group['w_in_DF'].shape) == len('DF')


def unstack(params: Any, config: model_config.ModelConfig) -> Any:
  """Returns the tree with each layer's parameters apart from the others'."""
  layers = config.layers()
  period = len(layers_lib.repeating_block(layers))

  def layer(index: int):
    stacked = params[_BLOCKS][f'layer_{index % period}']
    return jax.tree.map(lambda x: x[index // period], stacked)

  blocks = {f'layer_{index}': layer(index) for index in range(len(layers))}
  return {**params, _BLOCKS: blocks}


def _with_columns(params: Any, devices: int) -> Any:
  """Adds the column sums [D, devices] that products of unsigned codes need.

  Codes of non-negative activations are shifted by 128; the product with a
  weight's column sums makes up for that. A device's product sums its own part
  of F, and needs the sums of that part alone.
  """
  blocks = {}
  for name, layer in params[_BLOCKS].items():
    feedforward = dict(layer['feedforward'])
    w_out_DF = feedforward['w_out_DF']
    if isinstance(w_out_DF, int8.Quantized):
      parts = w_out_DF.codes.reshape(len(w_out_DF.codes), devices, -1)
      feedforward['w_out_DF'] = w_out_DF._replace(
        columns=parts.sum(axis=-1, dtype=np.int32)
      )
    blocks[name] = {**layer, 'feedforward': feedforward}
  return {**params, _BLOCKS: blocks}


def _cast(params: Any, dtype: str) -> Any:
  """Returns weights in the model's dtype; gains and limits stay float32."""

  def cast(path, x):
    name = str(getattr(path[-1], 'key', ''))
    is_weight = name in rules.CONTRACTED or lora.is_trained(name)
    return x.astype(dtype) if is_weight else x

  return jax.tree_util.tree_map_with_path(cast, params)

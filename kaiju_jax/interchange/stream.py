"""Fills a model's parameters from a folder's tensors, block by block.

Each block of rows becomes float32 numbers or int8 codes at once, in its place
in the result, so that memory holds the result and little more:

    masters    float32, stacked over the repeats of the layer block: to train
    deployed   the same tree with codes where the config has them: to write
    decoding   codes or floats in the model's dtype, each layer by itself, as
               decoding reads them (`decoding/device/weights.py`)
    turned     the same, codes with the dimension that is summed over last, as
               decoding reads them on a CPU

Codes to be decoded may be those of a rotated model, which lose less
(`quantization/rotation.py`); a matrix whose rows are mixed is read as a whole.

A row of a stored matrix holds one output channel, or one entry of a table. So a
row has one scale, and codes need no second pass. They have the same bits as
those that are made of masters (`model/deployed.py`).
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.interchange import own
from kaiju_jax.interchange import plain
from kaiju_jax.interchange import scale
from kaiju_jax.interchange import shards
from kaiju_jax.interchange import tensors
from kaiju_jax.interchange.families import family as family_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import rotation
from kaiju_jax.sharding import rules
from kaiju_jax.wire import fsdp

FORMS = 'masters', 'deployed', 'decoding', 'turned'
MASTERS, DEPLOYED, DECODING, TURNED = FORMS
_COLUMNS = 1024  # Of a matrix that is mixed at once: whole spans.
_ALIGNMENT = 64  # Bytes; JAX takes such an array on a CPU without a copy.


class _Part(NamedTuple):
  """One tensor's place in the parameters."""

  stored: shards.Stored  # The tensor in the folder.
  path: tuple[str, ...]  # Keys of the parameter.
  # Its number in a stacked parameter; None if it is not stacked.
  repeat: int | None = None
  # Whether the folder has our order of axes; otherwise a parameter's columns
  # are the tensor's rows.
  is_upright: bool = True
  # What becomes of its float32 numbers; None for nothing.
  change: Callable[[np.ndarray], np.ndarray] | None = None
  is_whole: bool = False  # Whether `change` takes all rows at once.


def form_for_decoding() -> str:
  """Returns the form that decoding reads on this platform."""
  return TURNED if dispatch.platform() == 'cpu' else DECODING


def fill(
  found: Mapping[str, shards.Stored],
  reading: family_lib.Reading,
  form: str,
  rotated: bool = False,
) -> Any:
  """Returns the parameters of a model.

  Args:
    found: the folder's tensors by name, which `tensors.check` has passed.
    reading: its config.json; the config's quantization says what is int8.
    form: one of `FORMS`.
    rotated: whether the model is rotated.

  Raises:
    ValueError: a tensor has a number that is not finite, its file is cut off,
      or a weight that the config asks for is missing.
  """
  config = reading.config
  wanted = _shapes(config, form)
  if rotated:
    held = rotation.parameters(config.d_model)
    mix_JJ = rotation.mixing(config.feedforward, config.d_ff)
  parts: dict[tuple[str, ...], list[_Part]] = {}
  for part in _parts(found, reading, form):
    if rotated:
      part = _rotate(part, found, reading, held, mix_JJ)
    part = _turn(part, wanted) if form == TURNED else part
    parts.setdefault(part.path, []).append(part)

  def start(path, shape):
    keys = tuple(key.key for key in path)
    if keys not in parts:
      raise ValueError(f'{".".join(keys)}: missing.')
    leaf = jax.tree.map(allocate, shape)
    for part in parts[keys]:
      _write(part, leaf, config)
    # One at a time: a device that is no CPU takes a copy.
    return jax.tree.map(jax.device_put, leaf)

  params = jax.tree_util.tree_map_with_path(
    start, wanted, is_leaf=lambda x: isinstance(x, int8.Quantized)
  )
  return rotation.add(params, held, mix_JJ) if rotated else params


def _shapes(config: model_config.ModelConfig, form: str) -> Any:
  """Returns the shapes and dtypes of a form's parameters."""
  wanted = own.shapes(config, masters=form == MASTERS)
  if form not in (DECODING, TURNED):
    return wanted
  layers = config.layers()
  period = len(layers_lib.repeating_block(layers))

  def without_repeats(x):
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

  blocks = {
    f'layer_{index}': jax.tree.map(
      without_repeats, wanted['blocks'][f'layer_{index % period}']
    )
    for index in range(len(layers))
  }

  def cast(path, x):
    is_weight = rules.name_of(path) in rules.CONTRACTED
    if not is_weight or isinstance(x, int8.Quantized):
      return x
    return jax.ShapeDtypeStruct(x.shape, config.dtype)

  wanted = jax.tree_util.tree_map_with_path(
    cast,
    {**wanted, 'blocks': blocks},
    is_leaf=lambda x: isinstance(x, int8.Quantized),
  )
  return jax.eval_shape(deployed.turn, wanted) if form == TURNED else wanted


def _turn(part: _Part, wanted: Any) -> _Part:
  """Returns the part with the name that a turned parameter has."""
  *parents, name = part.path
  group = functools.reduce(dict.__getitem__, parents, wanted)
  if name in group or name not in rules.CONTRACTED:
    return part
  # A stored matrix is [out, in], as is one whose sum comes last.
  return part._replace(path=(*parents, rules.turn(name)), is_upright=True)


def _parts(
  found: Mapping[str, shards.Stored], reading: family_lib.Reading, form: str
) -> Iterator[_Part]:
  config = reading.config
  table = _Part(
    found[tensors.EMBEDDING], ('embedding', 'embedding_DV'), None, False
  )
  if reading.is_ours and config.tied_embedding:
    table = table._replace(stored=found[tensors.HEAD])
  elif reading.is_ours:
    unscale = functools.partial(scale.unscale, d_model=config.d_model)
    table = table._replace(change=unscale)
  yield table
  if not config.tied_embedding:
    path = 'embedding', 'head_DV'
    yield _Part(found[tensors.HEAD], path, None, False)
  shift = functools.partial(
    np.add, np.float32(reading.family.gain_offset), dtype=np.float32
  )
  yield _Part(found[tensors.NORM], ('final_norm', 'gain_D'), change=shift)
  period = len(layers_lib.repeating_block(config.layers()))
  for index in range(config.num_layers):
    is_stacked = form not in (DECODING, TURNED)
    layer = f'layer_{index % period if is_stacked else index}'
    for ours, theirs in reading.family.tensors.items():
      letters = tensors.letters_of(ours, config)
      if config.num_kv_heads == 1:
        letters = letters.replace('U', '')
      change = shift if '_gain' in ours else None
      if ours == 'q_gain':
        factor = np.float32(reading.query_scale)
        change = functools.partial(_shift_and_scale, shift, factor)
      yield _Part(
        found[f'model.layers.{index}.{theirs}'],
        ('blocks', layer, *plain.name_parameter(ours, letters)),
        index // period if is_stacked else None,
        not ours.startswith('w_') or ours in tensors.UPRIGHT,
        change,
      )


def _rotate(
  part: _Part,
  found: Mapping[str, shards.Stored],
  reading: family_lib.Reading,
  held: Any,
  mix_JJ: np.ndarray | None,
) -> _Part:
  """Returns the part as a rotated model has it."""
  *parents, name = part.path
  if 'embedding' in parents:
    change = part.change or (lambda x: x)
    return part._replace(change=lambda x: _turn_rows(held, change(x)))
  if 'blocks' not in parents or name not in rules.CONTRACTED:
    is_folded = parents[-1] in ('attention_norm', 'feedforward_norm')
    return part._replace(change=np.ones_like) if is_folded else part
  if name in tensors.UPRIGHT:
    turned = held if reading.config.norms == 'before' else None
    mix = mix_JJ if name == 'w_out_DF' else None
    turn = functools.partial(_turn_columns, turned, mix)
    return part._replace(change=turn, is_whole=True)
  gain_D = np.float32(1)
  if norm := reading.family.tensors.get(f'{parents[-1]}_gain_D'):
    stem = part.stored.name.rsplit('.', 3)[0]
    ((_, gain_1D),) = shards.blocks(found[f'{stem}.{norm}'])
    gain_D = gain_1D[0].astype(np.float32)
    gain_D += np.float32(reading.family.gain_offset)
  return part._replace(change=lambda x: _turn_rows(held, x * gain_D))


def _turn_rows(held: Any, x: np.ndarray) -> np.ndarray:
  """Returns x·Q in float32, whose bits hang on no order of float64 sums."""
  return rotation.turn(held, x.astype(np.float64)).astype(np.float32)


def _turn_columns(
  held: Any | None, mix_JJ: np.ndarray | None, x: np.ndarray
) -> np.ndarray:
  """Returns Qᵀ·x in float32, its columns mixed; some columns at a time.

  Without `held`, Q is the identity.
  """
  out = np.empty_like(x)
  for first in range(0, x.shape[1], _COLUMNS):
    part = x[:, first : first + _COLUMNS]
    if mix_JJ is not None:
      part = rotation.mix(part.astype(np.float64), mix_JJ)
    if held is not None:
      part = _turn_rows(held, part.T).T
    out[:, first : first + _COLUMNS] = part
  return out


def _shift_and_scale(shift, factor: np.float32, x: np.ndarray) -> np.ndarray:
  return shift(x) * factor


def allocate(shape: jax.ShapeDtypeStruct) -> np.ndarray:
  """Returns an array that JAX takes on a CPU without a copy."""
  dtype = np.dtype(shape.dtype)
  size = math.prod(shape.shape) * dtype.itemsize
  raw = np.empty(size + _ALIGNMENT, np.uint8)
  first = -raw.ctypes.data % _ALIGNMENT
  return raw[first : first + size].view(dtype).reshape(shape.shape)


def _write(
  part: _Part,
  leaf: np.ndarray | int8.Quantized,
  config: model_config.ModelConfig,
) -> None:
  """Writes one tensor into its place in a parameter."""
  if part.repeat is not None:
    leaf = jax.tree.map(lambda x: x[part.repeat], leaf)
  is_coded = isinstance(leaf, int8.Quantized)
  target = leaf.codes if is_coded else leaf
  rows, columns = part.stored.matrix
  shape = (rows, columns) if part.is_upright else (columns, rows)
  target = target.reshape(shape)
  target = target if part.is_upright else target.T
  size = rows if part.is_whole else shards.block_rows(part.stored)
  for first, block in shards.blocks(part.stored, size):
    if part.change is not None:
      block = part.change(block.astype(np.float32))
    last = first + len(block)
    if is_coded:
      block, scales = _encode(block, size, config)
      leaf.scales.reshape(-1)[first:last] = scales
    target[first:last] = block


def _encode(
  block: np.ndarray, most: int, config: model_config.ModelConfig
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a block's codes and its rows' scales; `most` rows are compiled."""
  rows, columns = block.shape
  padded = np.zeros((most, columns), block.dtype)
  padded[:rows] = block
  codes, scales = _coder(config.dtype, config.quantization.wire_weights)(padded)
  return np.asarray(codes)[:rows], np.asarray(scales)[:rows, 0]


@functools.cache
def _coder(dtype: str, weights: str) -> Callable[..., Any]:
  """Returns the compiled coder of rows: that of training, on one device."""
  wire = fsdp.Wire('DF', 'F', dtype, int8=True, weights=weights)

  @jax.jit
  def encode(block):
    coded = fsdp.gather(block.astype(np.float32), wire)
    return coded.codes, coded.scales

  return encode

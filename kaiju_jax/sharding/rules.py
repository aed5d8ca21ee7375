"""Sharding rules: the mesh axis of each dimension, from a tensor's name.

A parameter is named after its shape, `w_in_DF`, and a table maps each letter to
a mesh axis or to none. Adam's moments have the same names, so the same rules
shard the optimizer's state. A letter that is in no table is an error, so that a
misspelt name does not silently replicate a tensor.

    stored    D over fsdp; F, H and V over tensor: each f32 master, moment and
              gradient has one owner
    in use    D whole (gathered, as int8); F, H and V over tensor
    rows      B over fsdp, L over tensor between the blocks
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

_WHOLE = dict.fromkeys('NKMCTPSRGU')
STORED = _WHOLE | {'D': 'fsdp', 'F': 'tensor', 'H': 'tensor', 'V': 'tensor'}
IN_USE = STORED | {'D': None}
ROWS = _WHOLE | {'B': 'fsdp', 'L': 'tensor', 'D': None}

# The letters that each weight's matmul sums over: their product is its fan-in,
# and one int8 scale covers them. The others are its output channels.
CONTRACTED = {
  'w_q_DHK': 'D',
  'w_k_DK': 'D',
  'w_v_DK': 'D',
  'w_k_DUK': 'D',
  'w_v_DUK': 'D',
  'w_o_DHK': 'HK',
  'w_in_DF': 'D',
  'w_gate_DF': 'D',
  'w_out_DF': 'F',
  'embedding_DV': 'D',
  'head_DV': 'D',
}


# The parts of a `Quantized` weight that keep contracted dimensions as size 1.
_KEPT = 'scales', 'columns'

# Parameters without letters, of which each repeat of a layer has one number.
_SCALARS = 'bungee_', 'lora_scale_', 'hidden_limit'
# Those of a rotation (`quantization/rotation.py`), whole on every device.
_ROTATION = 'axis_', 'mix_', 'signs_'


def letters_of(name: str) -> str:
  """Returns the shape suffix of a tensor's name: 'DF' of 'w_in_DF'.

  Raises:
    ValueError: the name has none.
  """
  stem, _, letters = name.rpartition('_')
  if not stem or not letters.isalpha() or not letters.isupper():
    raise ValueError(
      f'{name!r} has no shape suffix: a name ends in an underscore and one'
      " capital letter per dimension, as 'w_in_DF'."
    )
  return letters


def turn(name: str) -> str:
  """Returns a weight's name with its contracted letters last, 'w_in_FD'."""
  letters, contract = letters_of(name), CONTRACTED[name]
  rest = ''.join(letter for letter in letters if letter not in contract)
  return f'{name.removesuffix(letters)}{rest}{contract}'


def spec(
  name: str, rank: int, table: Mapping[str, str | None]
) -> jax.sharding.PartitionSpec:
  """Returns the axes of a tensor's dimensions.

  Args:
    name: ends in the shape's letters; a scalar's name needs none.
    rank: the tensor's number of dimensions; one more than the name has letters
      if a scan stacks the tensor, whose leading N is then whole.
    table: STORED, IN_USE or ROWS.

  Raises:
    ValueError: a letter is unknown, two letters have the same axis, or the rank
      does not match the name.
  """
  letters = _letters(name, rank)
  axes = []
  for letter in letters:
    if letter not in table:
      raise ValueError(
        f'{name!r}: no rule for the letter {letter!r}; there are rules for'
        f' {"".join(sorted(table))}.'
      )
    axis = table[letter]
    if axis is not None and axis in axes:
      other = letters[axes.index(axis)]
      raise ValueError(
        f'{name!r}: {other} and {letter} would both be split over {axis!r}.'
      )
    axes.append(axis)
  return trim(axes)


def trim(axes: Sequence[str | None]) -> PartitionSpec:
  """Returns the spec of these axes, without trailing ones that do not split.

  JAX looks compiled steps up by spec, and XLA's own specs end there.
  """
  axes = list(axes)
  while axes and axes[-1] is None:
    axes.pop()
  return PartitionSpec(*axes)


def part(
  letters: str,
  shape: Sequence[int],
  widths: Mapping[str, int],
  table: Mapping[str, str | None] = STORED,
) -> tuple[int, ...]:
  """Returns the shape of one device's part of a tensor.

  Args:
    letters: the letters of the shape's dimensions.
    shape: the tensor's shape over the whole mesh.
    widths: the number of devices along each axis.
    table: STORED, IN_USE or ROWS.
  """
  return tuple(
    size // widths[table[letter]] if table[letter] else size
    for letter, size in zip(letters, shape)
  )


def _letters(name: str, rank: int) -> str:
  is_scalar = rank == 0 or (rank == 1 and name.startswith(_SCALARS))
  if is_scalar or name.startswith(_ROTATION):
    return 'N' * rank  # A scalar has one for each repeat of a scan.
  letters = letters_of(name)
  if rank == len(letters) + 1:
    letters = f'N{letters}'
  if rank != len(letters):
    raise ValueError(
      f'{name!r} names {len(letters)} dimensions, the tensor has {rank}.'
    )
  return letters


def shardings(
  tree: Any,
  mesh: jax.sharding.Mesh,
  table: Mapping[str, str | None] = STORED,
) -> Any:
  """Returns the `NamedSharding` of every leaf, from its dictionary key.

  Args:
    tree: arrays or their shapes, such as parameters or a whole train state;
      codes and scales of a `Quantized` weight have its name.
    mesh: a mesh from `mesh.make`.
    table: STORED, IN_USE or ROWS.

  Raises:
    ValueError: see `spec`; or an axis does not divide its dimension.
  """

  def of(path, leaf):
    name = name_of(path)
    axes = spec(name, len(leaf.shape), table)
    if getattr(path[-1], 'name', '') in _KEPT:
      # Dimensions that a scale covers have size 1 and are whole.
      whole = [axis if n > 1 else None for n, axis in zip(leaf.shape, axes)]
      axes = trim(whole)
    for size, axis in zip(leaf.shape, axes):
      width = 1 if axis is None else mesh.shape[axis]
      if size % width:
        raise ValueError(
          f'{jax.tree_util.keystr(path)} of shape {tuple(leaf.shape)}: {size}'
          f' does not divide over {axis}={width}.'
        )
    return jax.sharding.NamedSharding(mesh, axes)

  return jax.tree_util.tree_map_with_path(of, tree)


def specs(tree: Any, mesh: jax.sharding.Mesh) -> Any:
  """Returns the `PartitionSpec` of every leaf by the table STORED."""
  return jax.tree.map(lambda sharding: sharding.spec, shardings(tree, mesh))


def name_of(path: Sequence[Any]) -> str:
  """Returns the innermost dictionary key of a path; '' if it has none."""
  for key in reversed(path):
    if isinstance(key, jax.tree_util.DictKey):
      return str(key.key)
  return ''

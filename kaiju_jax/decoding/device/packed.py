"""A layer's scales, gains and other small floats in one array.

On a CPU each array that goes into a call costs a microsecond of its thread:
those of a model of 30 layers took .4 ms of a step of 8. XLA fuses the slices
into what reads them.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# An array of so many floats is a weight, which a slice would copy.
_LARGE = 2**16


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=('floats_N', 'others'),
  meta_fields=('structure', 'shapes'),
)
@dataclasses.dataclass(frozen=True)
class Packed:
  """A tree whose small float32 arrays are one."""

  floats_N: jax.Array
  others: tuple[jax.Array, ...]  # The tree's other leaves.
  structure: Any  # The tree's.
  shapes: tuple[tuple[int, ...] | None, ...]  # Of leaves; None for others.


def pack(tree: Any) -> Packed:
  """Returns a tree of arrays, small ones of float32 as one."""
  leaves, structure = jax.tree.flatten(tree)
  shapes = tuple(x.shape if _is_small(x) else None for x in leaves)
  floats = [np.ravel(x) for x in leaves if _is_small(x)]
  floats_N = np.concatenate([np.zeros(0, np.float32), *floats])
  others = tuple(x for x in leaves if not _is_small(x))
  return Packed(jnp.asarray(floats_N), others, structure, shapes)


def unpack(tree: Any) -> Any:
  """Returns a tree in which each `Packed` is what it was made of."""
  return jax.tree.map(
    lambda x: _unpack(x) if isinstance(x, Packed) else x,
    tree,
    is_leaf=lambda x: isinstance(x, Packed),
  )


def _is_small(x: Any) -> bool:
  return x.dtype == jnp.float32 and x.size < _LARGE


def _unpack(packed: Packed) -> Any:
  others, begin, leaves = iter(packed.others), 0, []
  for shape in packed.shapes:
    if shape is None:
      leaves.append(next(others))
      continue
    end = begin + int(np.prod(shape))
    leaves.append(packed.floats_N[begin:end].reshape(shape))
    begin = end
  return jax.tree.unflatten(packed.structure, leaves)

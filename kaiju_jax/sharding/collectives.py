"""Collectives of the training step and the model; on one device, no-ops.

The step runs under a manual `shard_map`: each device differentiates its own
copy of the loss with respect to the arrays that it holds, and a cotangent is
its part of the gradient. These transposes make the parts add up:

    forward            backward
    enter  all-gather  reduce-scatter    L whole inside attention and
    leave  reduce-sc.  all-gather        feed-forward, and split between them
    total  all-reduce  nothing           a sum that every device continues with

A dimension's letter says which axis splits it (`rules.py`). An axis that is not
bound has width 1, so model code calls these functions wherever it runs.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import rules


def width(axis: str) -> int:
  """Returns how many devices a mesh axis spans; 1 for an unbound axis."""
  try:
    return lax.axis_size(axis)
  except NameError:
    return 1


def devices() -> int:
  """Returns how many devices the whole mesh has."""
  return math.prod(map(width, sharding_config.AXES))


def axes_of(
  letters: str, table: Mapping[str, str | None] = rules.IN_USE
) -> tuple[str, ...]:
  """Returns the axes of more than one device that split any of `letters`."""
  axes = dict.fromkeys(table[letter] for letter in letters)
  return tuple(axis for axis in axes if axis and width(axis) > 1)


def local_shape(letters: str, shape: Sequence[int]) -> tuple[int, ...]:
  """Returns the shape of one device's part of a stored tensor."""
  widths = {axis: width(axis) for axis in sharding_config.AXES}
  return rules.part(letters, shape, widths)


def largest(
  x: jax.Array, letters: str, table: Mapping[str, str | None] = rules.IN_USE
) -> jax.Array:
  """Returns the maximum over the devices that split `letters`.

  Has no gradient. `x` is each device's own maximum over these letters.
  """
  return _reduce_over(highest, x, letters, table)


def highest(x: jax.Array, axes: Sequence[str]) -> jax.Array:
  """Returns `lax.pmax` in float32, or NaN where any device has a NaN.

  The maximum is taken over integers in the order of the floats, with NaN on
  top. XLA's all-reduce on a CPU drops a NaN, and a NaN token would silently
  become zero on the other devices.
  """
  x = x.astype(jnp.float32)
  bits = lax.bitcast_convert_type(x, jnp.int32)
  ordered = lax.pmax(jnp.where(jnp.isnan(x), _SIGNLESS, _flip(bits)), axes)
  return lax.bitcast_convert_type(_flip(ordered), jnp.float32)


_SIGNLESS = jnp.iinfo(jnp.int32).max  # Above infinity's bits: a NaN's.


def _flip(bits):
  """Maps floats' bits to integers of the same order; its own inverse."""
  return jnp.where(bits < 0, bits ^ _SIGNLESS, bits)


def mean(
  x: jax.Array, letters: str, table: Mapping[str, str | None] = rules.IN_USE
) -> jax.Array:
  """Returns the mean over the devices that split `letters`.

  Has no gradient. `x` is each device's own mean over these letters.
  """
  return _reduce_over(lax.pmean, x, letters, table)


def _reduce_over(reduce, x, letters, table):
  axes = axes_of(letters, table)
  return reduce(lax.stop_gradient(x), axes) if axes else x


def total(
  x: jax.Array, letters: str, table: Mapping[str, str | None] = rules.IN_USE
) -> jax.Array:
  """Returns the sum over the devices that split `letters`.

  All of them continue with the same value, and each with its own share of the
  gradient, because the cotangent passes unchanged. (The transpose of `lax.psum`
  would add up the copies and count the loss once per device.)
  """
  axes = axes_of(letters, table)
  return _total(x, axes) if axes else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _total(x, axes):
  return lax.psum(x, axes)


_total.defvjp(
  lambda x, axes: (_total(x, axes), None), lambda axes, _, dy: (dy,)
)


def enter(x_BLD: jax.Array) -> jax.Array:
  """Returns whole rows [B, L, …] of an array that devices split along L."""
  if width('tensor') == 1:
    return x_BLD
  return lax.all_gather(x_BLD, 'tensor', axis=1, tiled=True)


def leave(x_BLD: jax.Array) -> jax.Array:
  """Returns this device's part of L of the sum over the axis `tensor`."""
  if width('tensor') == 1:
    return x_BLD
  return lax.psum_scatter(x_BLD, 'tensor', scatter_dimension=1, tiled=True)


def own_rows(x_BL: jax.Array) -> jax.Array:
  """Returns this device's part of L of rows [B, L, …] that are whole."""
  count = width('tensor')
  if count == 1:
    return x_BL
  size = x_BL.shape[1] // count
  begin = lax.axis_index('tensor') * size
  return lax.dynamic_slice_in_dim(x_BL, begin, size, axis=1)


def first_of(letter: str, local_size: int) -> jax.Array | int:
  """Returns the index at which this device's part of a dimension begins."""
  axes = axes_of(letter)
  return lax.axis_index(axes) * local_size if axes else 0


def whole(x_D: jax.Array) -> jax.Array:
  """Gathers an array that devices split along D, such as a norm's gain.

  The backward pass sums its gradient at the owners, uncompressed. Weights are
  gathered by `wire/fsdp.py` instead.
  """
  if width('fsdp') == 1:
    return x_D
  return lax.all_gather(x_D, 'fsdp', axis=0, tiled=True)


def summed_over_copies(gradients: Any) -> Any:
  """Returns each stored gradient summed over the axes that do not split it.

  Along the axes that split it, the backward pass of the gather has already
  reduced a gradient to its owner.

  Args:
    gradients: a tree with the parameters' names.
  """

  def of(path, gradient):
    spec = rules.spec(rules.name_of(path), gradient.ndim, rules.STORED)
    copies = tuple(
      axis
      for axis in sharding_config.AXES
      if axis not in spec and width(axis) > 1
    )
    return lax.psum(gradient, copies) if copies else gradient

  return jax.tree_util.tree_map_with_path(of, gradients)

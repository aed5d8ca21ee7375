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

# Whether functions traced inside `keep_tokens(…)` leave all tokens on all
# devices. Then nothing is gathered on entering, and `leave` is an all-reduce:
# more bytes and fewer launches. It has no gradient.
keep_tokens: Any = jax.make_user_context(False)


def _splits_tokens() -> bool:
  return width('tensor') > 1 and not keep_tokens.value


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


def moments(
  mean: jax.Array, largest: jax.Array, letters: str
) -> tuple[jax.Array, jax.Array]:
  """Returns what `mean` and `largest` return, by one gather; no gradient."""
  both = lax.all_gather(jnp.stack([mean, largest]), axes_of(letters))
  # Not `jnp.max`, which drops a NaN from a large array on a CPU.
  largest = functools.reduce(jnp.maximum, both[:, 1])
  return jnp.mean(both[:, 0], axis=0), largest


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
  if not _splits_tokens():
    return x_BLD
  return lax.all_gather(x_BLD, 'tensor', axis=1, tiled=True)


def leave(x_BLD: jax.Array) -> jax.Array:
  """Returns this device's part of L of the sum over the axis `tensor`."""
  if not _splits_tokens():
    return x_BLD if width('tensor') == 1 else lax.psum(x_BLD, 'tensor')
  scatter = functools.partial(lax.psum_scatter, axis_name='tensor', tiled=True)
  if x_BLD.shape[0] > 1:
    return scatter(x_BLD, scatter_dimension=1)
  # XLA for TPUs would all-reduce: it scatters no dimension behind one of 1.
  return scatter(x_BLD[0], scatter_dimension=0)[None]


def own_rows(x_BL: jax.Array) -> jax.Array:
  """Returns this device's part of L of rows [B, L, …] that are whole."""
  if not _splits_tokens():
    return x_BL
  count = width('tensor')
  size = x_BL.shape[1] // count
  begin = lax.axis_index('tensor') * size
  return lax.dynamic_slice_in_dim(x_BL, begin, size, axis=1)


def lay_flat(x_BL: jax.Array) -> jax.Array:
  """Returns rows [B, L, …] as one of all their tokens, [1, T, …].

  Zeros follow, so that devices can split it. Where they do not, x is returned.
  """
  if not _splits_tokens():
    return x_BL
  count = width('tensor')
  x_LT = x_BL.reshape(1, -1, *x_BL.shape[2:])
  beyond = (0, 0), (0, -x_LT.shape[1] % count)
  return jnp.pad(x_LT, (*beyond, *[(0, 0)] * (x_LT.ndim - 2)))


def lay_rows(x_BL: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Returns what `lay_flat` made of rows as rows again; `shape` is (B, L)."""
  if not _splits_tokens():
    return x_BL
  B, L = shape
  return x_BL[0, : B * L].reshape(B, L, *x_BL.shape[2:])


def to_rows(x_BLV: jax.Array) -> jax.Array:
  """Returns of rows [B, L, V/N] this device's part of the tokens, V whole.

  The parts are those of `lay_flat`; one device keeps the rows.
  """
  if width('tensor') == 1:
    return x_BLV
  return lax.all_to_all(lay_flat(x_BLV), 'tensor', 1, 2, tiled=True)


def own_part(x_B: jax.Array) -> jax.Array:
  """Returns this device's part of B whole entries, filled up with zeros."""
  if width('tensor') == 1:
    return x_B
  return own_rows(lay_flat(x_B[:, None]))[0]


def join_parts(x_NB: jax.Array, count: int) -> jax.Array:
  """Returns the `count` entries [N, B] of which each device has a part."""
  if width('tensor') == 1:
    return x_NB
  return lax.all_gather(x_NB, 'tensor', axis=1, tiled=True)[:, :count]


def stripe(stripes: int) -> jax.Array | int:
  """Returns which of a page's stripes this device has.

  Each run of `stripes` neighbours along the axis `tensor` has all of them.
  """
  return lax.axis_index('tensor') % stripes if stripes > 1 else 0


def gather_stripes(x: jax.Array, stripes: int, axis: int) -> jax.Array:
  """Returns x of all devices that share pages, side by side along `axis`."""
  if stripes == 1:
    return x
  groups = _sharing(stripes)
  return lax.all_gather(
    x, 'tensor', axis=axis, tiled=True, axis_index_groups=groups
  )


def exchange(
  out_BLHK: jax.Array, lse_BLH: jax.Array, stripes: int
) -> tuple[jax.Array, jax.Array]:
  """Returns attention over each stripe, for this device's heads.

  Heads are those of all devices that share pages, and each device has attended
  to its own stripe. One all-to-all of bytes moves both arrays and no bit.

  Returns:
    out [W, B, L, H/W, K] and lse [W, B, L, H/W], in the order of the stripes.
  """
  B, L, H, K = out_BLHK.shape
  parts = [_bytes_of(out_BLHK, B * L, H), _bytes_of(lse_BLH, B * L, H)]
  # Heads lie side by side: a TPU would pad the bytes of each to 128 lanes.
  packed = jnp.concatenate(parts, axis=-1).reshape(B * L, stripes, -1)
  packed = lax.all_to_all(
    packed, 'tensor', 1, 0, axis_index_groups=_sharing(stripes)
  )
  shape = stripes, B, L, H // stripes
  packed = packed.reshape(stripes, B * L, H // stripes, -1)
  size = parts[0].shape[-1]
  width_K = out_BLHK.dtype.itemsize
  out = packed[..., :size].reshape(*shape, K, width_K)
  lse = packed[..., size:].reshape(*shape, lse_BLH.dtype.itemsize)
  return (
    lax.bitcast_convert_type(out, out_BLHK.dtype),
    lax.bitcast_convert_type(lse, lse_BLH.dtype),
  )


def _bytes_of(x: jax.Array, *shape: int) -> jax.Array:
  return lax.bitcast_convert_type(x, jnp.uint8).reshape(*shape, -1)


def _sharing(stripes: int) -> list[list[int]] | None:
  """Returns the devices that share pages, None where all do."""
  count = width('tensor')
  if stripes == count:
    return None
  firsts = range(0, count, stripes)
  return [list(range(first, first + stripes)) for first in firsts]


def whole_letters(
  x: jax.Array, letters: str, table: Mapping[str, str | None] = rules.IN_USE
) -> jax.Array:
  """Returns x with its last dimensions `letters` whole; has no gradient."""
  for axis, letter in zip(range(-len(letters), 0), letters):
    for name in axes_of(letter, table):
      x = lax.all_gather(x, name, axis=x.ndim + axis, tiled=True)
  return x


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

"""Sums over devices with 6 bits per number on the wire.

Any trainer can call these functions inside a `jax.shard_map` or `jax.pmap`.
This module needs only the codec of this project (`kaiju_jax.kernels.squinch`).

    reduce_scatter   encode, all-to-all of bytes, decode, float32 sum at the
                     owner in the order of the axis; the owner keeps its shard
    all_reduce       the same, then the owner encodes the sum once and its bytes
                     are gathered: all replicas decode the same bytes, and agree
                     to the bit
    transform        all_reduce's mean as an optax transformation

Only uint8 planes are on the wire: 0.75 bytes per element one way, 0.375 times
those of bf16. Each worker's error stays within the codec's bound, so the error
of a mean does not grow with the number of workers.

The sources say only that gradients are reduced in Squinch. Our guesses: a first
exchange to the owner and a second of forwarded bytes; and error feedback, off
by default. With it a worker adds the loss of this gradient's encoding to its
next gradient:

    sent = decode(encode(x + residual)),    residual' = x + residual − sent

The owner adds the loss of the second exchange to its own residual, so that
every loss is sent later. Where x is NaN or inf, the residual stays unchanged.

A group whose largest element is below 5.4e-10 (`ln6`) arrives as zeros. The
gradients of a mean over all tokens of a large batch are that small: encode the
local mean and rescale at the owner, or pass `scale`.

Inside a `jax.shard_map` JAX itself sums the gradient with respect to replicated
parameters, uncompressed, unless `check_vma=False`. So `all_reduce` refuses
arrays that JAX knows to be the same on all workers.
"""

from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from kaiju_jax.kernels.squinch import api
from kaiju_jax.kernels.squinch import reference

Axis = str | Sequence[str]


def reduce_scatter(
  x: jax.Array,
  axis: Axis,
  *,
  dimension: int = 0,
  elements: str = 'zero',
  header: str = 'ln6',
) -> jax.Array:
  """Returns this device's shard of the sum over `axis`, float32.

  On an axis of one device nothing crosses, and the result is x in float32.

  Args:
    x: floats of any rank, whole on every device.
    axis: the mesh axis; its devices get the shards in the axis's order.
    dimension: the dimension that is split; groups of eight run along it.
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.

  Raises:
    ValueError: a dimension that is no multiple of 8 × the axis, an array that
      is not of floats, or an unknown code.
  """
  codes = elements, header
  _check(x, 'x', codes)
  width = lax.axis_size(axis)
  if not -x.ndim <= dimension < x.ndim:
    raise ValueError(f'dimension={dimension}: x of shape {x.shape} has none.')
  if x.shape[dimension] % (reference.GROUP * width):
    raise ValueError(
      f'dimension {dimension} of shape {x.shape} is {x.shape[dimension]}: it'
      f' must be a multiple of {reference.GROUP} × {width}, the size of'
      f' {axis!r}.'
    )
  if width == 1:
    return x.astype(jnp.float32)
  packed_NPGC = api.encode_parts(_rows(x, dimension), width, *codes)
  sum_RC = api.decode_sum(_exchange(packed_NPGC, axis), *codes)
  shape = list(x.shape)
  shape[dimension] //= width
  return _from_rows(sum_RC, shape, dimension)


def all_reduce(
  tree: Any,
  axis: Axis,
  *,
  mean: bool = False,
  scale: float | jax.Array = 1.0,
  elements: str = 'zero',
  header: str = 'ln6',
) -> Any:
  """Returns the tree's sum over `axis`, the same bits on every replica.

  It replaces `lax.psum`, with the same shapes and dtypes, and sums in float32.
  Groups of eight run along the first dimension that eight divides. If there is
  none, they run through the flattened leaf, padded with zeros. The groups of
  all leaves cross together, in two collectives for any tree, because a hundred
  small collectives would wait for the network a hundred times.

  On an axis of one device the result is the tree itself.

  Args:
    tree: leaves of floats, different on each worker.
    axis: the mesh axis.
    mean: whether to divide by the axis's size, before the second exchange.
    scale: the factor of x on the wire, preferably a power of two.
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.

  Raises:
    ValueError: a leaf holds no floats or is already the same on all workers, or
      a code is unknown.
  """
  reduced, _ = _all_reduce(tree, None, axis, mean, scale, (elements, header))
  return reduced


class FeedbackState(NamedTuple):
  """The state of error feedback."""

  # float32 leaves of shape [1, *parameter.shape], different on each worker:
  # under `jax.shard_map` the state's spec is P(axis).
  residual: Any


def transform(
  axis: Axis,
  *,
  scale: float | jax.Array = 1.0,
  elements: str = 'zero',
  header: str = 'ln6',
  error_feedback: bool = False,
) -> optax.GradientTransformation:
  """Returns an optax transformation: gradients → their mean over `axis`.

  Put it first in a chain, before the transformations that read the gradients:
  `optax.chain(squinch.transform('data'), optax.adam(1e-3))`. With error
  feedback, call `init` and `update` inside the `jax.shard_map`.

  Args:
    axis: the mesh axis.
    scale: see `all_reduce`.
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.
    error_feedback: whether losses are sent later; the state is then a
      `FeedbackState`, and otherwise empty.

  Raises:
    ValueError: an unknown code.
  """
  reference.check(elements, header)
  codes = elements, header

  def init(params):
    if not error_feedback:
      return optax.EmptyState()
    return FeedbackState(
      jax.tree.map(lambda p: jnp.zeros((1, *p.shape), jnp.float32), params)
    )

  def update(updates, state, params=None):
    del params
    if not error_feedback:
      reduced, _ = _all_reduce(updates, None, axis, True, scale, codes)
      return reduced, state
    residual = jax.tree.map(lambda r: r[0], state.residual)
    reduced, residual = _all_reduce(updates, residual, axis, True, scale, codes)
    return reduced, FeedbackState(jax.tree.map(lambda r: r[None], residual))

  return optax.GradientTransformation(init, update)


def _all_reduce(tree, residual, axis, mean, scale, codes):
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    name = f'tree{jax.tree_util.keystr(path)}'
    _check(leaf, name, codes)
    _check_own(leaf, name, axis)
  own, treedef = jax.tree.flatten(tree)
  values = own
  residuals = None if residual is None else treedef.flatten_up_to(residual)
  if residuals is not None:
    values = [x.astype(jnp.float32) + r for x, r in zip(values, residuals)]
  width = lax.axis_size(axis)
  if width == 1 or not values:
    reduced = [x.astype(leaf.dtype) for x, leaf in zip(values, own)]
    if residuals is not None:
      residuals = treedef.unflatten(map(jnp.zeros_like, values))
    return treedef.unflatten(reduced), residuals

  packed = [api.encode(_group(_scale(x, scale)), *codes) for x in values]
  sum_RC = api.decode_sum(_exchange(_by_owner(packed, width), axis), *codes)
  divisor = width if mean else 1
  forwarded_PGC = api.encode(sum_RC / divisor, *codes)
  gathered_PGC = lax.all_gather(forwarded_PGC, axis, axis=2, tiled=True)
  received = [api.decode(p, *codes) for p in _split(gathered_PGC, packed)]
  reduced = [
    (_ungroup(x_RC, leaf.shape) / scale).astype(leaf.dtype)
    for x_RC, leaf in zip(received, own)
  ]
  if residuals is not None:
    # What the second exchange lost counts as the owner's own loss.
    lost_RC = sum_RC - divisor * api.decode(forwarded_PGC, *codes)
    lost = _of_owner(lost_RC, packed, axis, width)
    residuals = treedef.unflatten(
      _next(
        x - _ungroup(api.decode(p, *codes) - l_RC, x.shape) / scale,
        r,
      )
      for x, p, l_RC, r in zip(values, packed, lost, residuals)
    )
  return treedef.unflatten(reduced), residuals


def _exchange(packed_NPGC: jax.Array, axis: Axis) -> jax.Array:
  """Sends part i to device i; returns the parts that this device received."""
  return lax.all_to_all(packed_NPGC, axis, 0, 0, tiled=True)


def _scale(x: jax.Array, scale: float | jax.Array) -> jax.Array:
  """Returns x · scale; for 1, x itself, which may be bf16 for the kernel."""
  if isinstance(scale, float | int) and scale == 1:
    return x
  return x.astype(jnp.float32) * scale


def _rows(x: jax.Array, dimension: int) -> jax.Array:
  x = jnp.moveaxis(x, dimension, 0)
  return x.reshape(len(x), -1)


def _from_rows(x_RC: jax.Array, shape, dimension: int) -> jax.Array:
  """Undoes `_rows` for an array of this shape."""
  shape = list(shape)
  rows = shape.pop(dimension)
  return jnp.moveaxis(x_RC.reshape(rows, *shape), 0, dimension)


def _grouped_dimension(shape: Sequence[int]) -> int | None:
  """Returns the dimension that groups of eight run along."""
  for dimension, size in enumerate(shape):
    if size and size % reference.GROUP == 0:
      return dimension
  return None


def _group(x: jax.Array) -> jax.Array:
  """Returns the leaf as rows and columns, the rows a multiple of eight."""
  dimension = _grouped_dimension(x.shape)
  if dimension is not None:
    return _rows(x, dimension)
  return jnp.pad(x.reshape(-1, 1), ((0, -x.size % reference.GROUP), (0, 0)))


def _ungroup(x_RC: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Undoes `_group`."""
  dimension = _grouped_dimension(shape)
  if dimension is not None:
    return _from_rows(x_RC, shape, dimension)
  return x_RC.reshape(-1)[: math.prod(shape)].reshape(shape)


def _by_owner(packed: Sequence[jax.Array], width: int) -> jax.Array:
  """Splits the groups of all leaves evenly by owner: uint8[N, 6, 1, C]."""
  groups_PC = jnp.concatenate(
    [p.reshape(reference.PLANES, -1) for p in packed], axis=1
  )
  groups_PC = jnp.pad(groups_PC, ((0, 0), (0, -groups_PC.shape[1] % width)))
  split = groups_PC.reshape(reference.PLANES, width, 1, -1)
  return jnp.moveaxis(split, 1, 0)


def _split(x: jax.Array, packed: Sequence[jax.Array]) -> list[jax.Array]:
  """Cuts [I, 1, all groups] up into [I, G, C] for each leaf."""
  parts, start = [], 0
  for p in packed:
    _, groups, columns = p.shape
    part = x[:, 0, start : start + groups * columns]
    parts.append(part.reshape(-1, groups, columns))
    start += groups * columns
  return parts


def _of_owner(x_RC, packed, axis, width) -> list[jax.Array]:
  """Returns the owner's rows among all groups, zeros elsewhere, per leaf."""
  _, columns = x_RC.shape
  whole = jnp.zeros((reference.GROUP, 1, width * columns), jnp.float32)
  start = lax.axis_index(axis) * columns
  whole = lax.dynamic_update_slice_in_dim(whole, x_RC[:, None], start, axis=2)
  return [
    jnp.moveaxis(part, 0, 1).reshape(-1, part.shape[2])
    for part in _split(whole, packed)
  ]


def _next(lost: jax.Array, residual: jax.Array) -> jax.Array:
  return jnp.where(jnp.isfinite(lost), lost, residual)


def _check(x: jax.Array, name: str, codes: tuple[str, str]) -> None:
  reference.check(*codes)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise ValueError(f'{name} is {x.dtype}{x.shape}: Squinch takes floats.')


def _check_own(x: jax.Array, name: str, axis: Axis) -> None:
  """Refuses an array that JAX knows to be the same on all of the axis."""
  axes = jax.typeof(lax.axis_index(axis)).manual_axis_type.varying
  if axes - jax.typeof(x).manual_axis_type.varying:
    raise ValueError(
      f'{name} is the same on all of {axis!r}: JAX has probably summed this'
      ' gradient already, in full. Pass check_vma=False to jax.shard_map.'
    )

"""Groups of operands that all implementations take."""

from collections.abc import Mapping
import math
import operator
from typing import Any
from typing import NamedTuple

import jax.numpy as jnp


class Ranges(NamedTuple):
  """The ranges that decide which query sees which key; all fields int32."""

  start_BM: Any  # The first query coordinate that sees each key.
  limit_BM: Any  # One past the last; equal to start for an empty slot.
  coordinate_BL: Any  # The coordinate of each query.
  position_BL: Any  # The position of each query.
  position_BM: Any  # The position of each key.

  def exempt(self, sinks: int) -> 'Ranges':
    """Returns ranges in which each window reaches the keys before `sinks`.

    To a window, such a key is the newest: it has the largest position. Plans
    and kernels thus need no rule for sinks.
    """
    if not sinks:
      return self
    is_sink_BM = self.position_BM < sinks
    newest = jnp.iinfo(jnp.int32).max
    position_BM = jnp.where(is_sink_BM, newest, self.position_BM)
    return self._replace(position_BM=position_BM)


class Scales(NamedTuple):
  """The scales of int8 codes; a field is None where its operand is floats."""

  q_BLH: Any = None  # One per query and head.
  k: Any = None  # One per key [B, M] or one per channel [K].
  v: Any = None  # One per value [B, M] or one per channel [K].


class Cotangents(NamedTuple):
  """Each query's lse and cotangents, as the backward pass needs them."""

  lse_BLH: Any  # float32, as the forward pass returned it.
  dout_BLHK: Any  # The cotangent of out.
  dlse_BLH: Any  # float32, the cotangent of lse.
  delta_BLH: Any  # float32, rowsum(dout · out) - dlse.


def check_options(window: int | None, sinks: int, scale: float) -> None:
  """Refuses a window or sinks that no query has, and what scales no logits."""
  if window is not None and operator.index(window) < 1:
    raise ValueError(
      f'window={window}: counts the query itself, so it is at least 1 (None'
      ' sees everything that visibility allows).'
    )
  if operator.index(sinks) < 0 or (sinks and window is None):
    raise ValueError(
      f'sinks={sinks} with window={window}: must be at least 0, and 0 without a'
      ' window.'
    )
  if not isinstance(scale, int | float) or not math.isfinite(scale):
    raise ValueError(f'scale={scale!r}: expected a finite Python number.')


def output_dtype(dtype: Any, q: Any, v: Any) -> Any:
  """Returns a given dtype, which must be a float's, or the operands'."""
  if dtype is None:
    floats = [x.dtype for x in (v, q) if x.dtype != jnp.int8]
    dtype = floats[0] if floats else jnp.bfloat16
  if not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(f'dtype={jnp.dtype(dtype)}: expected a float.')
  return dtype


def check_dtypes(arrays: Mapping[str, Any]) -> None:
  """Refuses other integers than int32 and the codes of q, k and v."""
  for name, x in arrays.items():
    if name in ('table_BN', *Ranges._fields):
      if x.dtype != jnp.int32:
        raise TypeError(f'{name} is {x.dtype}: expected int32.')
    elif not jnp.issubdtype(x.dtype, jnp.floating) and not (
      x.dtype == jnp.int8 and name[0] in 'qkv'
    ):
      raise TypeError(f'{name} is {x.dtype}: expected a float or int8 codes.')


def check_scales(arrays: Mapping[str, Any], scales: Mapping[str, Any]) -> None:
  """Refuses scales that are not those of q, k and v, in this order."""
  for (name, scale), (operand, x) in zip(scales.items(), arrays.items()):
    shapes = [x.shape[:-1]]
    if x.dtype != jnp.int8:
      if scale is not None:
        raise ValueError(
          f'{name} is given, but {operand} is {x.dtype}: only int8 codes have'
          ' a scale.'
        )
      continue
    if operand != 'q_BLHK':
      shapes.append(x.shape[-1:])
    expected = ' or '.join(map(str, shapes))
    if scale is None:
      raise ValueError(
        f'{name} is missing: {operand} is int8, so it needs one of {expected}.'
      )
    if scale.shape not in shapes:
      raise ValueError(f'{name} has shape {scale.shape}: expected {expected}.')
    if not jnp.issubdtype(scale.dtype, jnp.floating):
      raise TypeError(f'{name} is {scale.dtype}: expected a float.')


def visible(ranges: Ranges, window: int | None):
  """Returns bool[B, L, M]: whether each query sees each key.

  Args:
    ranges: the ranges of queries and keys, jnp or numpy arrays.
    window: positions that a query looks back, itself included; None for all.
      `Ranges.exempt` has its sinks.
  """
  coordinate_BL1 = ranges.coordinate_BL[:, :, None]
  visible_BLM = (ranges.start_BM[:, None] <= coordinate_BL1) & (
    coordinate_BL1 < ranges.limit_BM[:, None]
  )
  if window is None:
    return visible_BLM
  behind_BLM = ranges.position_BL[:, :, None] - ranges.position_BM[:, None]
  return visible_BLM & (behind_BLM < window)

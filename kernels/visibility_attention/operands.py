"""Groups of operands that all implementations take."""

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


def check_window(window: int | None, sinks: int) -> None:
  """Refuses a window or sinks that no query has."""
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

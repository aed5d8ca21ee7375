"""Groups of operands that all implementations take."""

from typing import Any
from typing import NamedTuple


class Ranges(NamedTuple):
  """The ranges that decide which query sees which key; all fields int32.

  Attributes:
    start_BM: the first query coordinate that sees each key.
    limit_BM: one past the last; equal to start for an empty slot.
    coordinate_BL: the coordinate of each query.
    position_BL: the position of each query.
    position_BM: the position of each key.
  """

  start_BM: Any
  limit_BM: Any
  coordinate_BL: Any
  position_BL: Any
  position_BM: Any


class Scales(NamedTuple):
  """The scales of int8 codes; a field is None where its operand is floats.

  Attributes:
    q_BLH: one per query and head.
    k: one per key [B, M] or one per channel [K].
    v: one per value [B, M] or one per channel [K].
  """

  q_BLH: Any = None
  k: Any = None
  v: Any = None


class Cotangents(NamedTuple):
  """Each query's lse and cotangents, as the backward pass needs them.

  Attributes:
    lse_BLH: float32, as the forward pass returned it.
    dout_BLHK: the cotangent of out.
    dlse_BLH: float32, the cotangent of lse.
    delta_BLH: float32, rowsum(dout · out) - dlse.
  """

  lse_BLH: Any
  dout_BLHK: Any
  dlse_BLH: Any
  delta_BLH: Any


def visible(ranges: Ranges, window: int | None):
  """Returns bool[B, L, M]: whether each query sees each key.

  Args:
    ranges: the ranges of queries and keys, jnp or numpy arrays.
    window: positions that a query looks back, itself included; None for all.
  """
  coordinate_BL1 = ranges.coordinate_BL[:, :, None]
  visible_BLM = (ranges.start_BM[:, None] <= coordinate_BL1) & (
    coordinate_BL1 < ranges.limit_BM[:, None]
  )
  if window is None:
    return visible_BLM
  behind_BLM = ranges.position_BL[:, :, None] - ranges.position_BM[:, None]
  return visible_BLM & (behind_BLM < window)

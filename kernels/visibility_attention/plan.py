"""Plans which key blocks a kernel visits for each query tile.

A query tile is `rows` rows of q_BLHK reshaped to [B, L·H, K]: row r belongs to
token r // heads, whatever the number of heads. A key block is `keys` keys. A
few integers summarize each. The plan skips a pair where they prove that no
query of the tile sees any key of the block:

    sees[x, y] = min start[y] <= last coordinate[x]
                 and first coordinate[x] < max limit[y]
                 and (window is None
                      or oldest position[x] - newest position[y] < window)

over the filled keys (start < limit) of y. With a window this proof alone misses
many pairs that could be skipped. A block that holds the end of one document and
the beginning of the next has a key with the latest position and another with
the latest limit, but no key with both. With a window, `sees` therefore also
tests each key alone, against some 128 tokens at a time. Where positions start
again from 0 among those tokens, it tests them in two parts: otherwise the end
of one document would seem to look back from the next document's position 0.

In most visited pairs every query sees every key, and a kernel needs no mask
there. `full` proves that in the same way.

All of this is plain jnp, once per call, without a gather: X · Y comparisons
under a reduction (with a window M · L / 64 more) and one sort of short rows.
Where a kernel's tiles hold few tokens, several of them share one list
(`blocks.plan_tiles`), which limits the number of lists: with 96 heads, 128 rows
are less than two tokens, and 32,768 tokens are 24,576 tiles.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.visibility_attention import operands

_LEAST = jnp.iinfo(jnp.int32).min
_MOST = jnp.iinfo(jnp.int32).max
# Tokens that a key is tested against at once.
_JUDGED = 128


class Plan(NamedTuple):
  """The blocks of one side that each block of the other side visits.

  A row has X visiting blocks and Y blocks that they may visit.
  """

  count_BX: Any  # int32, how many blocks each visits.
  # int32, their numbers, ascending. Places beyond the count repeat the last one
  # (0 where there is none), so that a prefetch finds a block.
  list_BXY: Any


class FullFirst(NamedTuple):
  """A plan in which blocks seen in full come before blocks seen in part."""

  full_BX: Any  # int32, how many blocks are seen in full.
  count_BX: Any  # int32, how many blocks are visited in all.
  list_BXY: Any  # int32, their numbers, ascending within full and within part.


def plan_queries(sees_BXY) -> Plan:
  """Returns the key blocks that each query tile visits."""
  Y = sees_BXY.shape[-1]
  number_Y = jnp.arange(Y, dtype=jnp.int32)
  seen_BXY = jnp.where(sees_BXY, number_Y[None, None], Y)
  last_BX = jnp.where(sees_BXY, number_Y[None, None], 0).max(axis=-1)
  return Plan(
    sees_BXY.sum(axis=-1, dtype=jnp.int32),
    jnp.minimum(jnp.sort(seen_BXY, axis=-1), last_BX[..., None]),
  )


def plan_keys(sees_BXY) -> Plan:
  """Returns the query tiles that each key block visits."""
  return plan_queries(sees_BXY.swapaxes(1, 2))


def full_first(sees_BXY, full_BXY) -> FullFirst:
  """Returns the key blocks that each query tile visits, full ones first.

  With both arguments transposed, returns the query tiles of each key block.

  Args:
    sees_BXY: bool, from `sees`.
    full_BXY: bool, from `full`.
  """
  Y = sees_BXY.shape[-1]
  number_Y = jnp.arange(Y, dtype=jnp.int32)
  rank_BXY = number_Y[None, None] + jnp.where(full_BXY, 0, Y)
  ranked_BXY = jnp.sort(jnp.where(sees_BXY, rank_BXY, 2 * Y), axis=-1)
  return FullFirst(
    (sees_BXY & full_BXY).sum(axis=-1, dtype=jnp.int32),
    sees_BXY.sum(axis=-1, dtype=jnp.int32),
    ranked_BXY % Y,
  )


def sees(ranges, window, rows, heads, keys):
  """Returns bool[B, X, Y]: whether a query tile may see a key block.

  True wherever some query of the tile sees some key of the block, and seldom
  elsewhere.

  Args:
    ranges: the `Ranges` of queries and keys.
    window: positions that a query looks back; None for all.
    rows: rows per query tile.
    heads: rows per token.
    keys: keys per key block.
  """
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM = ranges
  filled_BM = start_BM < limit_BM

  def of_filled(reduce, x_BM, empty):
    return _of_block(reduce, jnp.where(filled_BM, x_BM, empty), keys, empty)

  tile_BX = _of_tiles(coordinate_BL, position_BL, rows, heads)
  first_BX1, last_BX1, oldest_BX1, _ = (x_BX[..., None] for x_BX in tile_BX)
  sees_BXY = (of_filled(jnp.min, start_BM, _MOST) <= last_BX1) & (
    first_BX1 < of_filled(jnp.max, limit_BM, _LEAST)
  )
  if window is None:
    return sees_BXY
  newest_B1Y = of_filled(jnp.max, position_BM, _LEAST)
  sees_BXY &= oldest_BX1 - window < newest_B1Y
  together = max(1, _JUDGED * heads // rows)
  sees_BGM = filled_BM[:, None] & False
  for part in _of_parts(coordinate_BL, position_BL, rows, heads, together):
    first_BG1, last_BG1, oldest_BG1 = (x_BG[..., None] for x_BG in part)
    sees_BGM |= (
      filled_BM[:, None]
      & (start_BM[:, None] <= last_BG1)
      & (first_BG1 < limit_BM[:, None])
      & (oldest_BG1 - window < position_BM[:, None])
    )
  sees_BGY = _of_block(jnp.any, sees_BGM, keys, False)
  sees_BGY = jnp.repeat(sees_BGY, together, axis=1)
  return sees_BXY & sees_BGY[:, : sees_BXY.shape[1]]


def full(ranges, window, rows, heads, keys):
  """Returns bool[B, X, Y]: every query of the tile sees every key of the block.

  A block that goes beyond the last key, or holds an empty slot, is never full.

  Args:
    ranges: the `Ranges` of queries and keys.
    window: positions that a query looks back; None for all.
    rows: rows per query tile.
    heads: rows per token.
    keys: keys per key block.
  """
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM = ranges
  start_B1Y = _of_block(jnp.max, start_BM, keys, _MOST)
  limit_B1Y = _of_block(jnp.min, limit_BM, keys, _LEAST)
  tile_BX = _of_tiles(coordinate_BL, position_BL, rows, heads)
  first_BX1, last_BX1, _, newest_BX1 = (x_BX[..., None] for x_BX in tile_BX)
  full_BXY = (start_B1Y <= first_BX1) & (last_BX1 < limit_B1Y)
  if window is None:
    return full_BXY
  oldest_B1Y = _of_block(jnp.min, position_BM, keys, _MOST)
  return full_BXY & (newest_BX1 - window < oldest_B1Y)


def counts(ranges, window, rows, heads, keys, tiles=1) -> tuple[int, int]:
  """Returns how many pairs of tiles a kernel visits, and how many it has to.

  Args:
    ranges: the `Ranges` of queries and keys, concrete arrays.
    window, rows, heads, keys: as for `sees`.
    tiles: query tiles of `rows` that share one list.

  Returns:
    executed: the number of pairs in the plan.
    needed: the number of pairs in which some query sees some key, found by
      brute force.
  """
  ranges = operands.Ranges(*(np.asarray(x) for x in ranges))
  planned = jax.jit(sees, static_argnums=(1, 2, 3, 4))
  sees_BXY = planned(ranges, window, rows * tiles, heads, keys)
  needed_BXY = compute_dense(ranges, window, rows, heads, keys)
  executed_BXY = np.repeat(sees_BXY, tiles, axis=1)[:, : needed_BXY.shape[1]]
  return int(executed_BXY.sum()), int(needed_BXY.sum())


def compute_dense(ranges, window, rows, heads, keys):
  """Returns the exact `sees`, by brute force in numpy.

  It tests L·M pairs, and holds one tile's share of them in memory.
  """
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM = ranges
  token_XI = _tokens(coordinate_BL.shape[1], rows, heads)
  edges = np.arange(0, start_BM.shape[1], keys)

  def of_tile(b, token_I):
    coordinate_I1 = coordinate_BL[b][np.unique(token_I), None]
    visible_IM = (start_BM[b][None] <= coordinate_I1) & (
      coordinate_I1 < limit_BM[b][None]
    )
    if window is not None:
      position_I1 = position_BL[b][np.unique(token_I), None]
      visible_IM &= position_I1 - position_BM[b][None] < window
    return np.logical_or.reduceat(visible_IM.any(axis=0), edges)

  return np.array(
    [
      [of_tile(b, token_I) for token_I in token_XI]
      for b in range(len(coordinate_BL))
    ]
  )


def _of_block(reduce, x, size, beyond):
  """Reduces blocks: [B, M] to [B, 1, Y], or [B, G, M] to [B, G, Y].

  Args:
    reduce: a reduction such as jnp.min.
    size: keys per block.
    beyond: the value of the padding behind the last key.
  """
  x = x if x.ndim == 3 else x[:, None]
  spare = -x.shape[-1] % size
  x = jnp.pad(x, ((0, 0), (0, 0), (0, spare)), constant_values=beyond)
  return reduce(x.reshape(*x.shape[:2], -1, size), axis=-1)


def _of_parts(coordinate_BL, position_BL, rows, heads, together):
  """Yields first and last coordinate and oldest position, each int32[B, G].

  A group is `together` tiles. The first yield covers the group's tokens up to
  the first whose position is lower than its predecessor's; the second covers
  that token and those after it.
  """
  lower_BL = position_BL[:, 1:] < position_BL[:, :-1]
  starts_BL = jnp.cumsum(jnp.pad(lower_BL, ((0, 0), (1, 0))), axis=1)
  coordinate_BXI, position_BXI, starts_BXI = (
    _cut(x_BL, rows, heads) for x_BL in (coordinate_BL, position_BL, starts_BL)
  )
  X = starts_BXI.shape[1]
  begin_BG = _of_block(jnp.min, starts_BXI[..., 0], together, _MOST)[:, 0]
  begin_BX = jnp.repeat(begin_BG, together, axis=1)[:, :X]
  is_first_BXI = starts_BXI == begin_BX[..., None]
  for is_part_BXI in is_first_BXI, ~is_first_BXI:

    def of(reduce, x_BXI, empty, is_part_BXI=is_part_BXI):
      x_BX = reduce(jnp.where(is_part_BXI, x_BXI, empty), axis=-1)
      return _of_block(reduce, x_BX, together, empty)[:, 0]

    yield (
      of(jnp.min, coordinate_BXI, _MOST),
      of(jnp.max, coordinate_BXI, _LEAST),
      of(jnp.min, position_BXI, _MOST),
    )


def _cut(x_BL, rows, heads):
  """Returns [B, L] as [B, X, I], each tile's tokens; padding repeats the last.

  A token that two tiles share is in both.
  """
  if rows % heads:
    return x_BL[:, _tokens(x_BL.shape[1], rows, heads)]
  spare = -x_BL.shape[1] % (rows // heads)
  x_BL = jnp.pad(x_BL, ((0, 0), (0, spare)), mode='edge')
  return x_BL.reshape(len(x_BL), -1, rows // heads)


def _of_tiles(coordinate_BL, position_BL, rows, heads):
  """Returns first and last coordinate, oldest and newest position, of tiles."""
  coordinate_BXI = _cut(coordinate_BL, rows, heads)
  position_BXI = _cut(position_BL, rows, heads)
  return (
    coordinate_BXI.min(axis=-1),
    coordinate_BXI.max(axis=-1),
    position_BXI.min(axis=-1),
    position_BXI.max(axis=-1),
  )


def _tokens(length: int, rows: int, heads: int):
  """Returns int[X, I]: each tile's tokens; the last repeats to make I."""
  first_X = np.arange(0, length * heads, rows)
  last_X = np.minimum(first_X + rows, length * heads) - 1
  first_X, last_X = first_X // heads, last_X // heads
  token_I = np.arange((last_X - first_X).max() + 1)
  return np.minimum(first_X[:, None] + token_I, last_X[:, None])

"""Which tiles of queries and keys must meet, so that the others are skipped.

A query tile is `rows` rows of q_BLHK seen as [B, L·H, K]: row r belongs to
token r // heads, whatever the number of heads. A key block is `keys` keys. Both
are summed up in a few integers, and a pair is skipped where they prove that no
query of the tile sees any key of the block:

    sees[x, y] = min start[y] <= last coordinate[x]
                 and first coordinate[x] < max limit[y]
                 and (window is None
                      or oldest position[x] - newest position[y] < window)

over the filled keys (start < limit) of y. A window makes a key's own limit far
too generous, for it ends the key's range by position and not by coordinate. So
each limit is first moved to one past the last query that really sees the key,
which makes packed documents with a window exact but for the edges of tiles; in
a tree, queries of other branches may still stand before that last one.

All of it is plain jnp, once per call, in O((L + M) log L) for the limits and
X·Y for the lists. A kernel whose tiles hold few tokens keeps those lists short
by one plan for several of its tiles at once (`blocks.plan_tiles`): of 96 heads,
128 rows are less than two tokens, and 32,768 tokens 24,576 tiles.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_LEAST = jnp.iinfo(jnp.int32).min
_MOST = jnp.iinfo(jnp.int32).max


class Plan(NamedTuple):
  """What each of a row's X blocks of one side visits of the other's Y.

  Attributes:
    count_BX: int32, how many blocks.
    list_BXY: int32, which, ascending. Beyond the count the last one stands
      again, 0 where there is none, so that whatever is fetched ahead is there.
  """

  count_BX: Any
  list_BXY: Any


def of_queries(sees_BXY) -> Plan:
  """Returns the key blocks that each query tile visits."""
  Y = sees_BXY.shape[-1]
  number_Y = jnp.arange(Y, dtype=jnp.int32)
  seen_BXY = jnp.where(sees_BXY, number_Y[None, None], Y)
  last_BX = jnp.where(sees_BXY, number_Y[None, None], 0).max(axis=-1)
  return Plan(
    sees_BXY.sum(axis=-1, dtype=jnp.int32),
    jnp.minimum(jnp.sort(seen_BXY, axis=-1), last_BX[..., None]),
  )


def of_keys(sees_BXY) -> Plan:
  """Returns the query tiles that each key block visits: the transpose."""
  return of_queries(sees_BXY.swapaxes(1, 2))


def sees(
  start_BM,
  limit_BM,
  coordinate_BL,
  position_BL,
  position_BM,
  window,
  rows,
  heads,
  keys,
):
  """Returns bool[B, X, Y]: whether a query tile may see a key block.

  True wherever some query does see some key, and seldom elsewhere.

  Args:
    start_BM … position_BM, window: as `api.forward` has them.
    rows: of a query tile.
    heads: rows of a token.
    keys: of a key block.
  """
  limit_BM = tighten(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM, window
  )
  filled_BM = start_BM < limit_BM

  def of_filled(reduce, x_BM, empty):
    x_BM = jnp.where(filled_BM, x_BM, empty)
    spare = -x_BM.shape[1] % keys
    x_BM = jnp.pad(x_BM, ((0, 0), (0, spare)), constant_values=empty)
    return reduce(x_BM.reshape(len(x_BM), 1, -1, keys), axis=-1)

  start_B1Y = of_filled(jnp.min, start_BM, _MOST)
  limit_B1Y = of_filled(jnp.max, limit_BM, _LEAST)
  token_XI = _tokens(coordinate_BL.shape[1], rows, heads)
  coordinate_BXI = coordinate_BL[:, token_XI]
  first_BX1 = coordinate_BXI.min(axis=-1, keepdims=True)
  last_BX1 = coordinate_BXI.max(axis=-1, keepdims=True)
  sees_BXY = (start_B1Y <= last_BX1) & (first_BX1 < limit_B1Y)
  if window is None:
    return sees_BXY
  newest_B1Y = of_filled(jnp.max, position_BM, _LEAST)
  oldest_BX1 = position_BL[:, token_XI].min(axis=-1, keepdims=True)
  return sees_BXY & (oldest_BX1 - window < newest_B1Y)


def tighten(
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM, window
):
  """Returns limit_BM: one past the last query coordinate that sees the key.

  It is the key's start where nobody does, and its own limit without a window.

  In the order of their coordinates the queries of a range stand together, and
  the last of them near enough is found from the range's end: by strides of
  falling powers of two over queries that are all too far, as the least
  position of each stride tells.
  """
  if window is None:
    return limit_BM
  order_BL = jnp.argsort(coordinate_BL, axis=-1)
  coordinate_BL = jnp.take_along_axis(coordinate_BL, order_BL, axis=-1)
  position_BL = jnp.take_along_axis(position_BL, order_BL, axis=-1)
  # Unrolled: a loop of its own would be 15 launches of a GPU kernel.
  find = jax.vmap(functools.partial(jnp.searchsorted, method='scan_unrolled'))
  first_BM = find(coordinate_BL, start_BM)
  end_BM = find(coordinate_BL, limit_BM)
  # least[n][e]: the least position of the 2^n queries before the e-th.
  least_BE = jnp.pad(position_BL, ((0, 0), (1, 0)), constant_values=_LEAST)
  least = [least_BE]
  while 2 ** len(least) <= coordinate_BL.shape[1]:
    stride = 2 ** (len(least) - 1)
    before_BE = jnp.pad(
      least_BE[:, :-stride], ((0, 0), (stride, 0)), constant_values=_LEAST
    )
    least_BE = jnp.minimum(least_BE, before_BE)
    least.append(least_BE)
  for n in reversed(range(len(least))):
    least_BM = jnp.take_along_axis(least[n], end_BM, axis=-1)
    far_BM = (end_BM - 2**n >= first_BM) & (least_BM - window >= position_BM)
    end_BM = end_BM - jnp.where(far_BM, 2**n, 0)
  last_BM = jnp.take_along_axis(
    coordinate_BL, jnp.maximum(end_BM - 1, 0), axis=-1
  )
  return jnp.where(end_BM > first_BM, last_BM + 1, start_BM)


def counts(visibility, window, rows, heads, keys, tiles=1) -> tuple[int, int]:
  """Returns how many pairs of tiles a kernel visits, and how many it has to.

  Args:
    visibility: start_BM, limit_BM, coordinate_BL, position_BL, position_BM,
      concrete.
    window, rows, heads, keys: as `sees` has them.
    tiles: query tiles of `rows` that share one list.

  Returns:
    executed, the pairs in the plan; and needed, those with a visible pair of
    query and key, found by trying all of them.
  """
  visibility = [np.asarray(x) for x in visibility]
  planned = jax.jit(sees, static_argnums=(5, 6, 7, 8))
  sees_BXY = planned(*visibility, window, rows * tiles, heads, keys)
  needed_BXY = needed(*visibility, window, rows, heads, keys)
  executed_BXY = np.repeat(sees_BXY, tiles, axis=1)[:, : needed_BXY.shape[1]]
  return int(executed_BXY.sum()), int(needed_BXY.sum())


def needed(
  start_BM,
  limit_BM,
  coordinate_BL,
  position_BL,
  position_BM,
  window,
  rows,
  heads,
  keys,
):
  """Returns `sees` as it should be, by numpy from every query and key.

  Takes L·M steps, and memory for one tile's share of them.
  """
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


def _tokens(length: int, rows: int, heads: int):
  """int[X, I]: tokens of each tile, some of them twice so that all have I."""
  first_X = np.arange(0, length * heads, rows)
  last_X = np.minimum(first_X + rows, length * heads) - 1
  first_X, last_X = first_X // heads, last_X // heads
  token_I = np.arange((last_X - first_X).max() + 1)
  return np.minimum(first_X[:, None] + token_I, last_X[:, None])

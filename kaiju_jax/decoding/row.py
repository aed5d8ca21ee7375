"""One row of a cache, lent by its text to a tree of beams and given back.

A tree keeps its tokens in any slots and says at every step who sees them
(`beam_tree.py`). Text lies in the order of its positions, from the row's
`first` on (`cache.py`). So what comes out of a tree, one path, goes back to
that order once, when the tree is done: each kept token moves at most once,
within its row's pages. While there is a tree nothing moves.
"""

from collections.abc import Mapping

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding import beam_tree
from kaiju_jax.decoding import cache as cache_lib
from kaiju_jax.decoding import extend
from kaiju_jax.model import paging
from kaiju_jax.quantization import int8


def held(
  cache: cache_lib.Cache, pools: Mapping[str, paging.Pool], row: int
) -> dict[str, beam_tree.Held]:
  """Returns which slots of a row hold its text, by layer kind."""
  result = {}
  for name, pool in pools.items():
    kind = cache.kinds[name]
    start_M, limit_M, position_M, table_N = jax.device_get(
      (
        kind.start_RM[row],
        kind.limit_RM[row],
        kind.position_RM[row],
        kind.table_RN[row],
      )
    )
    result[name] = beam_tree.Held(
      pool.window,
      np.where(start_M < limit_M, position_M, -1),
      np.repeat(table_N >= 0, pool.page),
    )
  return result


def see(
  cache: cache_lib.Cache,
  row: jax.Array,
  ranges: Mapping[str, beam_tree.Ranges],
) -> cache_lib.Cache:
  """Returns the cache with other ranges for a row's slots."""
  kinds = {}
  for name, kind in cache.kinds.items():
    kinds[name] = kind._replace(
      start_RM=kind.start_RM.at[row].set(ranges[name].start_M),
      limit_RM=kind.limit_RM.at[row].set(ranges[name].limit_M),
      position_RM=kind.position_RM.at[row].set(ranges[name].position_M),
    )
  return cache._replace(kinds=kinds)


def chunk(
  row: int, placed: beam_tree.Placed, tokens_L: np.ndarray, size: int
) -> extend.Chunk:
  """Returns a call of `size` tokens: those that a tree placed, and padding.

  Padding stands where the last token does, so that pages which all tokens see
  stay pages which all queries see.

  Raises:
    ValueError: more tokens than the call has, or not one for each place.
  """
  count = len(placed.position_L)
  if len(tokens_L) != count or count > size:
    raise ValueError(
      f'tokens_L has {len(tokens_L)} tokens and size={size}: expected the'
      f' {count} that were placed, and a size of at least as many.'
    )

  def padded(x_L, mode, **options):
    return np.pad(x_L, (0, size - count), mode, **options)[None]

  position_BL = padded(placed.position_L, 'edge')
  return extend.Chunk(
    np.array([row], np.int32),
    padded(np.asarray(tokens_L, np.int32), 'constant'),
    visibility_lib.Visibility(
      padded(placed.start_L, 'constant'),
      padded(placed.limit_L, 'constant'),
      padded(placed.coordinate_L, 'edge'),
      position_BL,
      position_BL,
    ),
    {
      kind: padded(slot_L, 'constant', constant_values=-1)
      for kind, slot_L in placed.slot.items()
    },
  )


def order(
  pools: Mapping[str, paging.Pool],
  slots: Mapping[str, np.ndarray],
  first: Mapping[str, int],
  length: int,
) -> tuple[dict[str, np.ndarray], dict[str, np.int32]]:
  """Returns where text comes from, for `as_text`.

  Args:
    pools: of the cache.
    slots: the slot of each position by layer kind, −1 where it is gone.
    first: the position that the row's slot 0 was for, by kind.
    length: tokens of the text.

  Returns:
    By kind the slot that each slot's token lies in now, int32 [M], −1 where
    the slot stays empty; and the position that slot 0 is for.
  """
  sources, firsts = {}, {}
  for kind, pool in pools.items():
    # A ring begins with a whole page, late enough that the text's end fits.
    turns = -(-max(length - pool.row_slots - first[kind], 0) // pool.page)
    firsts[kind] = np.int32(first[kind] + turns * pool.page)
    text = slots[kind][firsts[kind] :]
    sources[kind] = np.full(pool.row_slots, -1, np.int32)
    sources[kind][: len(text)] = text
  return sources, firsts


def as_text(
  pools: Mapping[str, paging.Pool],
  cache: cache_lib.Cache,
  row: jax.Array,
  sources: Mapping[str, jax.Array],
  firsts: Mapping[str, jax.Array],
  length: jax.Array,
) -> cache_lib.Cache:
  """Returns the cache with a row whose tokens lie as text again.

  Args:
    pools: of the cache.
    cache: the cache.
    row: int32 scalar.
    sources: of `order`.
    firsts: of `order`.
    length: int32 scalar, tokens of the text.
  """
  kinds = {}
  for name, pool in pools.items():
    kind, source_M = cache.kinds[name], sources[name]
    slot_M = jnp.arange(pool.row_slots)
    page_N = kind.table_RN[row]
    place_M = page_N[slot_M // pool.page] * pool.page + slot_M % pool.page
    from_M = place_M[jnp.maximum(source_M, 0)]
    is_held_M = source_M >= 0
    to_M = jnp.where(is_held_M, place_M, pool.pages * pool.page)
    position_M = jnp.where(is_held_M, firsts[name] + slot_M, 0)
    kinds[name] = kind._replace(
      k=tuple(_moved(k, from_M, to_M) for k in kind.k),
      v=tuple(_moved(v, from_M, to_M) for v in kind.v),
      start_RM=kind.start_RM.at[row].set(position_M),
      limit_RM=kind.limit_RM.at[row].set(
        jnp.where(is_held_M, cache_lib.FOREVER, 0)
      ),
      position_RM=kind.position_RM.at[row].set(position_M),
      first_R=kind.first_R.at[row].set(firsts[name]),
    )
  return cache_lib.Cache(kinds, cache.length_R.at[row].set(length))


def _moved(pool, from_M, to_M):
  """Copies flat places of [P, S, …] to others; beyond the end, to nowhere."""
  if isinstance(pool, int8.Quantized):
    codes = _moved(pool.codes, from_M, to_M)
    if pool.scales is None:
      return int8.Quantized(codes, None)
    return int8.Quantized(codes, _moved(pool.scales, from_M, to_M))
  flat = pool.reshape(-1, *pool.shape[2:])
  # All reads before the first write, or the pool would be copied.
  moved = lax.optimization_barrier(flat[from_M])
  return flat.at[to_M].set(moved, mode='drop').reshape(pool.shape)

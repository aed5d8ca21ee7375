"""The cache: pages of keys and values, and which queries see each slot.

One design serves text, beams and trees of beams. Each kind of layers
(`model/paging.py`) has

    pools      one for each layer that makes keys and values, P pages of S
               slots: the codes of training and their scales, or floats. With
               U heads of keys and values, U pages for each: page p of head u
               is page p·U + u of the arrays. On a mesh, a stripe of each page:
               S/W of its slots, those of U heads
    tables     for each row: its N pages, and for each of its M = N·S logical
               slots the range [start, limit) of query coordinates that see it
               and its position (`visibility.py`)

Ranges and positions belong to (row, logical slot) and not to the page, because
rows that share a page see it differently. An empty slot has start == limit.

Text lies in order of position: logical slot m of a row holds position first +
m. In a global row `first` stays 0. A local row is a ring, a table that rotates:
when the next tokens need room, the pages that have left the window go to its
end, and `first` grows by as many slots. The pinned pages, the first ones of
layers with sinks, do not rotate: their slot m holds position m. No key or value
moves. The host assigns the pages (`rows.py`), because a page that another row
or a later resume may read must be replaced, not overwritten.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import kv_heads
from kaiju_jax.model import paging
from kaiju_jax.model import past
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives

# The limit of a token of text: all tokens after it see it.
FOREVER = jnp.iinfo(jnp.int32).max
Pools = tuple[tuple[str, paging.Pool], ...]  # By kind, hashable.


class Kind(NamedTuple):
  """The pools of one kind of layers, and its tables."""

  # Keys and values [P·U, S/W, K] of each layer that makes them: floats, or
  # `Quantized` codes with a scale per token [P·U, S/W], or without scales if
  # per channel.
  k: tuple[jax.Array | int8.Quantized, ...]
  v: tuple[jax.Array | int8.Quantized, ...]
  # int32, each row's pages; −1 where there is none.
  table_RN: jax.Array
  # int32, first query coordinate that sees each logical slot; limit_RM is one
  # past the last, equal to start for an empty slot.
  start_RM: jax.Array
  limit_RM: jax.Array
  # int32, the position of each slot's token.
  position_RM: jax.Array
  # int32, by how many positions a row of text has turned.
  first_R: jax.Array

  @property
  def page(self) -> int:
    return self.start_RM.shape[1] // self.table_RN.shape[1]


class Cache(NamedTuple):
  """The keys and values of R rows, by kind, and the tokens of their texts."""

  kinds: dict[str, Kind]
  length_R: jax.Array


def make(
  config: model_config.ModelConfig, pools: dict[str, paging.Pool], rows: int
) -> Cache:
  """Returns an empty cache for `rows` rows without pages (`give_pages`).

  On a mesh it is that of a device.
  """
  kinds = {}
  for kind, pool in pools.items():
    owners = range(len(pool.owners))
    zeros_RM = jnp.zeros((rows, pool.row_slots), jnp.int32)
    kinds[kind] = Kind(
      tuple(_pool(config, pool) for _ in owners),
      tuple(_pool(config, pool) for _ in owners),
      jnp.full((rows, pool.row_pages), -1, jnp.int32),
      zeros_RM,
      zeros_RM + 0,  # Buffers of their own: the cache is donated.
      zeros_RM + 0,
      jnp.zeros((rows,), jnp.int32),
    )
  return Cache(kinds, jnp.zeros((rows,), jnp.int32))


def _pool(config: model_config.ModelConfig, pool: paging.Pool):
  shape = (pool.heads * pool.pages, pool.slots, config.head_dim)
  if config.quantization.kv == 'none':
    return jnp.zeros(shape, config.dtype)
  is_token = config.quantization.kv_scale == 'token'
  scales = jnp.zeros(shape[:2], jnp.float32) if is_token else None
  return int8.Quantized(jnp.zeros(shape, jnp.int8), scales)


def bytes_of(cache: Cache) -> int:
  """Returns the bytes that the cache's buffers take."""
  return sum(x.nbytes for x in jax.tree.leaves(cache))


def give_pages(
  cache: Cache,
  row: jax.Array,
  pages: dict[str, jax.Array],
  first: dict[str, jax.Array],
  length: jax.Array,
  pools: Pools,
) -> Cache:
  """Returns the cache with a row that has these pages, and the text in them.

  By kind, `pages` are int32 [N], −1 where there is none, all −1 to take the
  row's pages away; `first` is by how many positions, whole pages, the row has
  turned. The pages hold `length` tokens of text.
  """
  kinds = {}
  for name, pool in pools:
    slot_M = jnp.arange(pool.row_slots, dtype=jnp.int32)
    position_M = paging.spread(slot_M, first[name], pool.pinned_slots)
    is_held_M = position_M < length
    kind = cache.kinds[name]
    kind = _set_text(kind, row, first[name], position_M, is_held_M)
    table_RN = kind.table_RN.at[row].set(pages[name])
    kinds[name] = kind._replace(table_RN=table_RN)
  return Cache(kinds, cache.length_R.at[row].set(length))


def _set_text(
  kind: Kind, row, first, position_M: jax.Array, is_held_M: jax.Array
) -> Kind:
  """Returns the kind with a row's slots as text, those that are held."""
  position_M = jnp.where(is_held_M, position_M, 0)
  limit_M = jnp.where(is_held_M, FOREVER, 0)
  return kind._replace(
    start_RM=kind.start_RM.at[row].set(position_M),
    limit_RM=kind.limit_RM.at[row].set(limit_M),
    position_RM=kind.position_RM.at[row].set(position_M),
    first_R=kind.first_R.at[row].set(first),
  )


def lend(
  cache: Cache,
  row: jax.Array,
  pages: dict[str, jax.Array],
  copies: dict[str, jax.Array],
  pools: Pools,
) -> Cache:
  """Copies pages (`copy_pages`), and gives a row's slots these, int32 [N]."""
  cache = copy_pages(cache, copies, pools)
  return cache._replace(
    kinds={
      name: kind._replace(table_RN=kind.table_RN.at[row].set(pages[name]))
      for name, kind in cache.kinds.items()
    }
  )


def copy_pages(
  cache: Cache, copies: dict[str, jax.Array], pools: Pools
) -> Cache:
  """Returns the cache with n pages of some kinds copied to others.

  `copies` are int32 [2, n] by kind, from and to, −1 for none.
  """
  kinds, pools = dict(cache.kinds), dict(pools)
  for name, pages in copies.items():
    kind = kinds[name]
    from_U, to_U = pages_of_heads(pages, pools[name].heads).reshape(2, -1)
    # A scatter drops what lies beyond the pool's end.
    to_U = jnp.where(to_U >= 0, to_U, kind.k[0].shape[0])

    def copied(pool, from_U=from_U, to_U=to_U):
      return pool.at[to_U].set(pool[from_U], mode='drop')

    kinds[name] = kind._replace(
      k=jax.tree.map(copied, kind.k), v=jax.tree.map(copied, kind.v)
    )
  return cache._replace(kinds=kinds)


def gather_pages(
  x_PSK: jax.Array, table_BN: jax.Array, pool: paging.Pool
) -> jax.Array:
  """Returns the rows' pages of all slots, [B·N, S, …], from all devices."""
  pages = collectives.gather_stripes(x_PSK[table_BN], pool.stripes, axis=2)
  return pages.reshape(-1, pool.page, *x_PSK.shape[2:])


def pages_of_heads(page_BN: jax.Array, heads: int) -> jax.Array:
  """Returns the pages [B·U, N] of the heads of rows; absent ones negative."""
  if heads == 1:
    return page_BN
  page_BN = kv_heads.repeat(page_BN, heads)
  head_B = jnp.arange(page_BN.shape[0], dtype=page_BN.dtype) % heads
  return page_BN * heads + head_B[:, None]


def write(
  cache: Cache,
  pools: dict[str, paging.Pool],
  row_B: jax.Array,
  visibility: visibility_lib.Visibility,
  slot: dict[str, jax.Array],
  made: dict[int, past.KeyValue],
) -> Cache:
  """Returns the cache with a call's keys and values in their slots.

  The slots get the ranges and positions of `visibility`. By kind, `slot` is
  each token's logical slot in its row of `row_B`, int32 [B, L], −1 for one that
  is not kept; `made` is from `Transformer.extend`.
  """
  kinds = {}
  for name, pool in pools.items():
    kind, slot_BL = cache.kinds[name], slot[name]
    page_BL = kind.table_RN[row_B[:, None], slot_BL // kind.page]
    place_BL = _places(page_BL, slot_BL, pool)
    at = row_B[:, None], jnp.where(slot_BL >= 0, slot_BL, pool.row_slots)
    keys_values = [made[owner] for owner in pool.owners]
    kinds[name] = kind._replace(
      k=tuple(_put(k, place_BL, x.k_BMK) for k, x in zip(kind.k, keys_values)),
      v=tuple(_put(v, place_BL, x.v_BMK) for v, x in zip(kind.v, keys_values)),
      start_RM=kind.start_RM.at[at].set(visibility.start_BM, mode='drop'),
      limit_RM=kind.limit_RM.at[at].set(visibility.limit_BM, mode='drop'),
      position_RM=kind.position_RM.at[at].set(
        visibility.position_BM, mode='drop'
      ),
    )
  return cache._replace(kinds=kinds)


def _places(page_BL, slot_BL, pool: paging.Pool) -> jax.Array:
  """Returns where this device's flat slots keep tokens, each head [B·U, L]."""
  page_BL = pages_of_heads(page_BL, pool.heads)
  slot_BL = kv_heads.repeat(slot_BL, pool.heads)
  is_kept_BL = (slot_BL >= 0) & (page_BL >= 0)
  own_BL = slot_BL % pool.page
  if pool.stripes > 1:
    own_BL -= collectives.stripe(pool.stripes) * pool.slots
    is_kept_BL &= (own_BL >= 0) & (own_BL < pool.slots)
  place_BL = page_BL * pool.slots + own_BL
  # A token without a page, or in another device's stripe, goes beyond the
  # pool's end, where a scatter drops it.
  return jnp.where(is_kept_BL, place_BL, pool.heads * pool.pages * pool.slots)


def _put(pool, place_BL, made):
  """Writes [B, L, …] to flat places of [P, S, …]."""
  if isinstance(pool, int8.Quantized):
    scales = pool.scales
    if scales is not None:
      scales = _put(scales, place_BL, made.scales)
    return int8.Quantized(_put(pool.codes, place_BL, made.codes), scales)
  flat = pool.reshape(-1, *pool.shape[2:])
  return flat.at[place_BL].set(made, mode='drop').reshape(pool.shape)


def rotate(
  cache: Cache,
  pools: dict[str, paging.Pool],
  row_B: jax.Array,
  end_B: jax.Array,
  rings: dict[str, jax.Array],
) -> Cache:
  """Returns the cache with room in the rings of `row_B` for text up to `end_B`.

  `end_B` is one past the last position that each row will hold. `rings` are the
  tables [R, N] of all rows with that room (`rows.Rows.rings`).
  """
  kinds = dict(cache.kinds)
  for name, table_RN in rings.items():
    kind, pool = kinds[name], pools[name]
    M = pool.row_slots
    added_B = pool.turns(kind.first_R[row_B], end_B) * kind.page
    from_BM = paging.spread(
      jnp.arange(M)[None], added_B[:, None], pool.pinned_slots
    )

    def turned(x_RM, from_BM=from_BM, M=M):
      x_BM = x_RM[row_B]
      moved_BM = jnp.take_along_axis(x_BM, jnp.minimum(from_BM, M - 1), axis=1)
      return x_RM.at[row_B].set(jnp.where(from_BM < M, moved_BM, 0))

    kinds[name] = kind._replace(
      table_RN=table_RN,
      start_RM=turned(kind.start_RM),
      limit_RM=turned(kind.limit_RM),
      position_RM=turned(kind.position_RM),
      first_R=kind.first_R.at[row_B].add(added_B),
    )
  return cache._replace(kinds=kinds)


def slots_of_text(
  cache: Cache,
  pools: dict[str, paging.Pool],
  row_B: jax.Array,
  position_BL: jax.Array,
  is_kept_BL: jax.Array,
) -> dict[str, jax.Array]:
  """Returns each position's logical slot by kind, −1 where it is not kept."""
  slots = {}
  for name, pool in pools.items():
    pinned = pool.pinned_slots
    slot_BL = position_BL - cache.kinds[name].first_R[row_B][:, None]
    is_there_BL = is_kept_BL & (slot_BL >= pinned)
    if pinned:
      is_pinned_BL = position_BL < pinned
      slot_BL = jnp.where(is_pinned_BL, position_BL, slot_BL)
      is_there_BL |= is_kept_BL & is_pinned_BL
    slots[name] = jnp.where(is_there_BL, slot_BL, -1)
  return slots


def reissue(
  cache: Cache, row: jax.Array, ranges: dict[str, tuple[jax.Array, ...]]
) -> Cache:
  """Returns the cache with a row's new (start, limit, position), int32 [M]."""
  kinds = {}
  for name, kind in cache.kinds.items():
    start_M, limit_M, position_M = ranges[name]
    kinds[name] = kind._replace(
      start_RM=kind.start_RM.at[row].set(start_M),
      limit_RM=kind.limit_RM.at[row].set(limit_M),
      position_RM=kind.position_RM.at[row].set(position_M),
    )
  return cache._replace(kinds=kinds)


def settle(
  cache: Cache,
  row: jax.Array,
  source: dict[str, jax.Array],
  first: dict[str, jax.Array],
  length: jax.Array,
  pools: Pools,
) -> Cache:
  """Returns the cache with a searched row's tokens as text again, in order.

  Each token that is not in its place moves there once. The others are not
  written, because other rows may read them. By kind, `source` is the slot whose
  token slot m gets, int32 [M], −1 for none; `first` is as for `give_pages`.
  Devices that share pages gather the row's, and each takes what it keeps.
  """
  kinds = {}
  for name, pool in pools:
    kind, heads = cache.kinds[name], pool.heads
    source_M = source[name]
    M = source_M.shape[0]
    slot_M = jnp.arange(M, dtype=jnp.int32)
    is_held_M = source_M >= 0
    table_BN = pages_of_heads(kind.table_RN[row][None], heads)
    page_BM = kind.table_RN[row][slot_M // pool.page][None]
    from_M = jnp.maximum(source_M, 0)
    # A slot without a page holds no token either.
    is_moved_M = is_held_M & (source_M != slot_M)
    to_M = jnp.where(is_moved_M, slot_M, -1)[None]
    to_BM = _places(page_BM, to_M, pool)

    def move(held, table_BN=table_BN, from_M=from_M, to_BM=to_BM, pool=pool):
      pages = gather_pages(held, table_BN, pool)
      slots_BM = pages.reshape(pool.heads, -1, *held.shape[2:])
      return _put(held, to_BM, slots_BM[:, from_M])

    position_M = paging.spread(slot_M, first[name], pool.pinned_slots)
    kind = _set_text(kind, row, first[name], position_M, is_held_M)
    kinds[name] = kind._replace(
      k=jax.tree.map(move, kind.k), v=jax.tree.map(move, kind.v)
    )
  return Cache(kinds, cache.length_R.at[row].set(length))

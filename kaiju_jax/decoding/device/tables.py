"""Makes page tables of a call, and what its layers see of the cache.

On a mesh a device sees its stripe of the rows' pages, or, where the devices
gather them, all slots of these pages, as a pool of its own.
"""

from collections.abc import Collection
import functools

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.kernels.paged_decode import api as paged_decode
from kaiju_jax.model import kv_heads
from kaiju_jax.model import paging
from kaiju_jax.model import past
from kaiju_jax.sharding import collectives


def make(
  cache: cache_lib.Cache,
  pools: dict[str, paging.Pool],
  row_B: jax.Array,
  visibility: visibility_lib.Visibility,
  reference_length: int | None = None,
  gathered: Collection[str] = (),
) -> dict[str, past.Tables]:
  """Returns the page tables of a call by kind.

  `row_B` is the cache's row for each row of the call, `visibility` its
  queries'; `reference_length` as in `extend.Network`; `gathered` are kinds of
  which the devices gather the rows' pages (`join_pasts`).
  """
  return {
    kind: _tables(
      cache.kinds[kind],
      pool,
      row_B,
      visibility,
      reference_length,
      kind in gathered,
    )
    for kind, pool in pools.items()
  }


def join_pasts(
  cache: cache_lib.Cache,
  pools: dict[str, paging.Pool],
  tables: dict[str, past.Tables],
) -> dict[int, past.Past]:
  """Returns what layers see of the cache, by the layer that owns it."""
  pasts = {}
  for name, pool in pools.items():
    kind, table = cache.kinds[name], tables[name]
    k, v = kind.k, kind.v
    if table.gathered_BN is not None:
      gather = functools.partial(
        cache_lib.gather_pages, table_BN=table.gathered_BN, pool=pool
      )
      k, v = jax.tree.map(gather, (k, v))
    for owner, *keys_values in zip(pool.owners, k, v):
      pasts[owner] = past.Past(*keys_values, table)
  return pasts


def _tables(
  kind: cache_lib.Kind,
  pool: paging.Pool,
  row_B,
  visibility,
  reference_length,
  is_gathered,
):
  heads = pool.heads
  table_BN = cache_lib.pages_of_heads(kind.table_RN[row_B], heads)
  start_BM, limit_BM, position_BM = (
    kv_heads.repeat(x[row_B], heads)
    for x in (kind.start_RM, kind.limit_RM, kind.position_RM)
  )
  visibility = kv_heads.repeat(visibility, heads)
  plan, pages, gathered_BN = None, heads * pool.pages, None
  if is_gathered:
    pages, gathered_BN = table_BN.size, table_BN
    place_BN = jnp.arange(pages, dtype=jnp.int32).reshape(table_BN.shape)
    table_BN = jnp.where(table_BN >= 0, place_BN, -1)
  else:
    start_BM, limit_BM, position_BM = (
      _own_stripe(x, pool) for x in (start_BM, limit_BM, position_BM)
    )
  if reference_length is None:
    plan = paged_decode.make_plan(
      table_BN,
      start_BM,
      limit_BM,
      visibility.coordinate_BL,
      visibility.position_BL,
      position_BM,
      pages=pages,
      window=pool.window,
      sinks=pool.sinks,
    )
  return past.Tables(
    table_BN,
    start_BM,
    limit_BM,
    position_BM,
    plan,
    reference_length,
    gathered_BN,
  )


def _own_stripe(x_BM: jax.Array, pool: paging.Pool) -> jax.Array:
  """Returns what rows' slots [B, M] have on this device, [B, M/W]."""
  if pool.stripes == 1:
    return x_BM
  parts = x_BM.reshape(len(x_BM), -1, pool.stripes, pool.slots)
  at = collectives.stripe(pool.stripes)
  own = lax.dynamic_index_in_dim(parts, at, axis=2, keepdims=False)
  return own.reshape(len(x_BM), -1)

"""Lists the pages that each row visits, once for all layers of a kind.

A row visits a page if some query of the row sees one of its slots. Pages that
every query sees whole come first: they need no mask, so kernels do not read
their ranges and positions. A layer therefore reads the codes and scales of
visited pages, and ranges only of those that are seen in part.

Making a plan reads twelve bytes per slot. Ranges and tables belong to a kind of
layer (local or global), so a decoding step makes one plan per kind for all its
layers. The plan tests each slot. Summaries of a page (least start, greatest
limit) would also admit pages whose ranges lie on both sides of a query.
"""

from typing import Any
from typing import NamedTuple

import jax.numpy as jnp

from kaiju_jax.kernels.visibility_attention import operands


class Plan(NamedTuple):
  """Visited pages of each row; all fields int32."""

  # The pages' places in the row's table: first pages seen whole, then the
  # others, each ascending. Places from `count_B` on repeat the last.
  logical_BN: Any
  page_BN: Any  # The pages' places in the pool, in the same order.
  full_B: Any  # The number of pages that every query sees whole.
  count_B: Any  # The number of visited pages.


class Call(NamedTuple):
  """What an implementation takes beside its arrays of numbers.

  The plan holds what the table and the ranges say of pages.
  """

  table_BN: Any
  plan: Plan
  window: int | None
  scale: float
  dtype: Any
  sizes: Any  # `blocks.Sizes`.


def make(table_BN, ranges, *, pages, window) -> Plan:
  """Returns the plan of a step.

  Args:
    table_BN: int32, the places of each row's N logical pages in the pool.
    ranges: the `Ranges` of queries and logical slots.
    pages: P, the number of the pool's pages.
    window: positions that a query looks back; None for all.
  """
  N = table_BN.shape[1]
  visible_BLM = operands.visible(ranges, window)
  visible_BLNS = visible_BLM.reshape(*visible_BLM.shape[:2], N, -1)
  present_BN = present(table_BN, pages)
  visited_BN = visible_BLNS.any(axis=(1, 3)) & present_BN
  full_BN = visible_BLNS.all(axis=(1, 3)) & present_BN
  count_B = visited_BN.sum(axis=1, dtype=jnp.int32)
  rank_BN = jnp.where(full_BN, 0, jnp.where(visited_BN, 1, 2))
  order_BN = jnp.argsort(rank_BN, axis=1, stable=True)
  place_BN = jnp.minimum(
    jnp.arange(N)[None], jnp.maximum(count_B - 1, 0)[:, None]
  )
  logical_BN = jnp.take_along_axis(order_BN, place_BN, axis=1)
  return Plan(
    logical_BN.astype(jnp.int32),
    # A row that visits nothing lists some page, which no kernel reads.
    jnp.clip(jnp.take_along_axis(table_BN, logical_BN, axis=1), 0, pages - 1),
    full_BN.sum(axis=1, dtype=jnp.int32),
    count_B,
  )


def present(table, pages):
  """Returns whether a table's entries are pages of the pool, not absent."""
  return (table >= 0) & (table < pages)

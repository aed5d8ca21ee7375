"""Several heads of keys and values, folded into the batch.

From the sources: one head of keys and values serves all H query heads
(multi-query attention). Other models have U of them, and query head h reads
head h // (H/U) (grouped-query attention, Ainslie et al. 2023; U = H is
multi-head attention). An ablation or an imported model may have several.

The kernels know one head of keys and values, so each head becomes a row, row
b·U + u of the batch, with the query heads that read it:

    queries, outputs     [B, L, H, K]    [B·U, L, H/U, K]
    keys, values         [B, M, U, K]    [B·U, M, K]
    their scales         [B, M, U]       [B·U, M]
    ranges, positions    [B, M]          [B·U, M]
    a cache's pages      P of a pool     page p of head u is page p·U + u

All heads share ranges and positions, which are therefore repeated. With U = 1
nothing is folded, and the program is the same as without this module.

The mesh axis `tensor` splits the query heads, while each device makes keys and
values of all U heads. `own` keeps the heads that the device's query heads read:
U / tensor of them, or one where several devices share a head.
`config.check_tensor` refuses all other widths.
"""

from typing import TypeVar

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.model import paging
from kaiju_jax.sharding import collectives

Tree = TypeVar('Tree')


def here(num_kv_heads: int) -> int:
  """Returns how many of the U heads this device's query heads read."""
  return max(num_kv_heads // collectives.width('tensor'), 1)


def stripes(num_kv_heads: int) -> int:
  """Returns over how many devices each page of this device's heads is split."""
  return paging.count_stripes(num_kv_heads, collectives.width('tensor'))


def own(x: Tree) -> Tree:
  """Returns those of the U heads [B, M, U, …] that this device reads.

  Args:
    x: keys or values of all U heads, an array or `Quantized`.
  """
  width = collectives.width('tensor')
  if width == 1:
    return x

  def part(x_BMU):
    count = x_BMU.shape[2]
    first = lax.axis_index('tensor') * count // width
    return lax.dynamic_slice_in_dim(x_BMU, first, here(count), axis=2)

  return jax.tree.map(part, x)


def gather(x: Tree, num_kv_heads: int) -> Tree:
  """Returns keys or values of all U heads [B·U, M, …] from each device's own.

  Args:
    x: those that `own` kept, as `fold_keys` returns them.
    num_kv_heads: U.
  """

  def whole(x):
    if x.ndim == 1:  # A scale per channel, which each device has.
      return x
    x_BU = x.reshape(-1, here(num_kv_heads), *x.shape[1:])
    count = collectives.width('tensor')
    x_BU = collectives.gather_stripes(x_BU, count, axis=1)
    x_BU = x_BU[:, :: stripes(num_kv_heads)]
    return x_BU.reshape(-1, *x.shape[1:])

  return jax.tree.map(whole, x)


def fold_keys(x: Tree) -> Tree:
  """Returns keys or values [B, M, U, …] as [B·U, M, …]."""

  def fold(x_BMU):
    x_BUM = jnp.swapaxes(x_BMU, 1, 2)
    return x_BUM.reshape(-1, *x_BUM.shape[2:])

  return jax.tree.map(fold, x)


def fold_queries(q_BLHK: jax.Array, heads: int) -> jax.Array:
  """Returns queries [B, L, H, K] as [B·U, L, H/U, K]; `heads` is U."""
  if heads == 1:
    return q_BLHK
  B, L, H, K = q_BLHK.shape
  groups = q_BLHK.reshape(B, L, heads, H // heads, K)
  return jnp.swapaxes(groups, 1, 2).reshape(B * heads, L, H // heads, K)


def unfold(out_BLHK: jax.Array, heads: int) -> jax.Array:
  """Returns outputs [B·U, L, H/U, K] as [B, L, H, K]; `heads` is U."""
  if heads == 1:
    return out_BLHK
  rows, L, H, K = out_BLHK.shape
  groups = out_BLHK.reshape(rows // heads, heads, L, H, K)
  return jnp.swapaxes(groups, 1, 2).reshape(-1, L, heads * H, K)


def repeat(rows: Tree, heads: int) -> Tree:
  """Returns arrays that the heads of a row share, [B, …], as [B·U, …]."""
  if heads == 1:
    return rows
  return jax.tree.map(lambda x: jnp.repeat(x, heads, axis=0), rows)

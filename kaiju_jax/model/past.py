"""Attention of a chunk to itself and to the earlier tokens in a paged cache.

A chunk is the run of tokens that one call adds to each row of the cache. Its
own keys and values stay outside the pool until the whole chunk has run, so
that no layer waits for a write. The queries attend to the pool's pages and to
the chunk separately, and the two results are merged by their log-sum-exp.

The reference mode gives the bits of the forward pass over the whole row. It
copies the pool's and the chunk's keys side by side in the order of their
positions and runs the forward pass's own attention over them: the same sums in
the same order have the same bits. It copies the cache at every call, so it
serves comparisons only.

On a mesh a device has a stripe of every page (`paging.py`), and the query heads
of its part of the weights. Queries are gathered over the devices that share
pages, each attends to its stripe, and outputs and log-sum-exps go back to the
device that owns the head, which merges them in the order of the devices. Where
that moves fewer bytes, as for a long chunk, and in the reference mode, the
row's pages are gathered instead (`tables.join_pasts`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import api as paged_decode
from kaiju_jax.kernels.paged_decode import partials
from kaiju_jax.kernels.paged_decode import plan as plan_lib
from kaiju_jax.kernels.visibility_attention import api as visibility_attention
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import collectives


class KeyValue(NamedTuple):
  """The keys and values that one owning layer made: floats or int8 codes."""

  k_BMK: jax.Array | int8.Quantized
  v_BMK: jax.Array | int8.Quantized


class Tables(NamedTuple):
  """The page tables of a call's rows, for one kind of layer."""

  # int32, each row's pages, of the pool or of those that the devices gather; −1
  # where there is none.
  table_BN: jax.Array
  # int32, first query coordinate that sees each logical slot of this device;
  # in the reference mode, of all devices.
  start_BM: jax.Array
  # int32, one past the last; equal to start for an empty slot.
  limit_BM: jax.Array
  position_BM: jax.Array  # int32, the position of each logical slot's token.
  # The pages that a call visits, from `paged_decode.make_plan`; None in the
  # reference mode.
  plan: plan_lib.Plan | None
  # Tokens of the whole row in the reference mode; None otherwise.
  length: int | None = None
  # The pool's pages that the devices gather; None where each has a stripe.
  gathered_BN: jax.Array | None = None


class Past(NamedTuple):
  """The cached keys and values of one owning layer."""

  # The pool's keys: floats, or codes with scales [P, S/W]. Scales per channel
  # are not here, because they are the layer's parameters.
  k_PSK: jax.Array | int8.Quantized
  v_PSK: jax.Array | int8.Quantized  # The pool's values, likewise.
  tables: Tables  # The tables of the layer's kind.


def attend(
  q_BLHK: jax.Array,
  key_value: KeyValue,
  past: Past,
  visibility: visibility_lib.Visibility,
  *,
  window: int | None,
  sinks: int,
  scale: float,
  qk: str,
  implementation: str | None,
  stripes: int = 1,
) -> tuple[jax.Array, jax.Array]:
  """Attends to the cache and to the chunk.

  Args:
    q_BLHK: the chunk's queries.
    key_value: the chunk's keys and values.
    past: the keys and values of the tokens before the chunk.
    visibility: the ranges of the chunk's keys and the coordinates of its
      queries.
    window: positions a query sees, itself included; None for all.
    sinks: the first positions, which a query sees beside its window.
    scale: multiplies the logits.
    qk: 'int8' for an s8 QKᵀ, 'none' to dequantize K first.
    implementation: the name of the kernel for the chunk's attention to itself;
      with None the platform chooses.
    stripes: W, the devices that share the pool's pages; no matter where these
      are gathered.

  Returns:
    out_BLHK in q's dtype and lse_BLH in float32.
  """
  if past.tables.plan is None:
    return _attend_in_order(
      q_BLHK,
      key_value,
      past,
      visibility,
      window=window,
      sinks=sinks,
      scale=scale,
      qk=qk,
      implementation=implementation,
    )
  q, scales, own, pooled = _operands(q_BLHK, key_value, past, qk)
  arguments = {'window': window, 'sinks': sinks, 'scale': scale}
  arguments['dtype'] = q_BLHK.dtype
  if past.tables.gathered_BN is not None:
    stripes = 1
  out_BLHK, lse_BLH = _attend_to_pages(
    q, scales, pooled, past.tables, visibility, arguments, stripes
  )
  k_BMK, v_BMK, own_scales = own
  own_out_BLHK, own_lse_BLH = visibility_attention.forward(
    q,
    k_BMK,
    v_BMK,
    *visibility,
    implementation=implementation,
    **scales,
    **arguments,
    **own_scales,
  )
  if stripes == 1:
    return paged_decode.merge(out_BLHK, lse_BLH, own_out_BLHK, own_lse_BLH)
  parts = collectives.exchange(
    out_BLHK, partials.mark(out_BLHK, lse_BLH), stripes
  )
  own = own_out_BLHK, partials.mark(own_out_BLHK, own_lse_BLH)
  out_XBLHK, lse_XBLH = (
    jnp.concatenate([x_XBLH, x_BLH[None]]) for x_XBLH, x_BLH in zip(parts, own)
  )
  out_BLHK, lse_BLH = partials.combine(out_XBLHK.astype(jnp.float32), lse_XBLH)
  return out_BLHK.astype(q_BLHK.dtype), lse_BLH


def _attend_to_pages(
  q, scales, pooled, tables: Tables, visibility, arguments, stripes: int
):
  """Attends to the cache alone; to a stripe, with the heads of all devices."""

  def gather(x):
    return collectives.gather_stripes(x, stripes, axis=2)

  k_PSK, v_PSK, pooled_scales = pooled
  return paged_decode.decode(
    gather(q),
    k_PSK,
    v_PSK,
    tables.table_BN,
    tables.start_BM,
    tables.limit_BM,
    visibility.coordinate_BL,
    visibility.position_BL,
    tables.position_BM,
    plan=tables.plan,
    **jax.tree.map(gather, scales),
    **arguments,
    **pooled_scales,
  )


def _operands(q_BLHK, key_value: KeyValue, past: Past, qk: str):
  """Returns q and its scales, and (k, v, scales) of the chunk and the pool."""
  own_k, own_v = key_value
  if not isinstance(own_k, int8.Quantized):
    return q_BLHK, {}, (own_k, own_v, {}), (past.k_PSK, past.v_PSK, {})
  pool_k, pool_v = (
    pooled._replace(scales=own.scales) if own.scales.ndim == 1 else pooled
    for pooled, own in ((past.k_PSK, own_k), (past.v_PSK, own_v))
  )
  q, q_scales = q_BLHK, {}
  if qk == 'int8':
    q, q_scale_BLH = qat.coded_queries(q_BLHK, own_k.scales)
    q_scales = {'q_scale_BLH': q_scale_BLH}

  def parts(k, v):
    k_scale = qat.remaining_scales(k) if qk == 'int8' else k.scales
    return k.codes, v.codes, {'k_scale': k_scale, 'v_scale': v.scales}

  return q, q_scales, parts(own_k, own_v), parts(pool_k, pool_v)


def _attend_in_order(
  q_BLHK,
  key_value: KeyValue,
  past: Past,
  visibility,
  *,
  implementation,
  **arguments,
) -> tuple[jax.Array, jax.Array]:
  """Attends with the bits of the forward pass over `length` tokens.

  A token's position is its place in the row, so trees are not supported.
  """
  tables = past.tables
  B = q_BLHK.shape[0]
  M = tables.length
  row_B1 = jnp.arange(B)[:, None]
  pooled_BM = _places(tables.start_BM, tables.limit_BM, tables.position_BM, M)
  own_BL = _places(
    visibility.start_BM, visibility.limit_BM, visibility.position_BM, M
  )

  def in_order(pooled, own):
    row = jnp.zeros((B, M, *own.shape[2:]), own.dtype)
    row = row.at[row_B1, pooled_BM].set(pooled, mode='drop')
    return row.at[row_B1, own_BL].set(own, mode='drop')

  def gathered(pool):
    return pool[tables.table_BN].reshape(B, -1, *pool.shape[2:])

  def merged(pool, own):
    if not isinstance(own, int8.Quantized):
      return in_order(gathered(pool), own)
    scales = own.scales
    if scales.ndim == 2:
      scales = in_order(gathered(pool.scales), scales)
    return int8.Quantized(in_order(gathered(pool.codes), own.codes), scales)

  return qat.attention(
    q_BLHK,
    merged(past.k_PSK, key_value.k_BMK),
    merged(past.v_PSK, key_value.v_BMK),
    visibility_lib.Visibility(
      in_order(tables.start_BM, visibility.start_BM),
      in_order(tables.limit_BM, visibility.limit_BM),
      visibility.coordinate_BL,
      visibility.position_BL,
      jnp.broadcast_to(jnp.arange(M, dtype=jnp.int32)[None], (B, M)),
    ),
    **arguments,
    # The whole row's forward pass would choose this one; the chunk might not.
    implementation=implementation
    or blocks.implementation(dispatch.platform(), M, M, q_BLHK.shape[-1]),
  )


def _places(start_BM, limit_BM, position_BM, length: int) -> jax.Array:
  """Returns each key's position; for a key that no query sees, `length`."""
  return jnp.where(start_BM < limit_BM, position_BM, length)

"""Blockwise visibility attention in plain XLA: memory linear in length.

Queries are cut into X blocks of I, keys into Y blocks of J. All query heads
share one KV head and are folded into the rows of a query block, R = I·H, so
that every product is a matrix product. A few integers summarize the ranges of a
block and tell, for each pair of blocks, whether a query of one may see a key of
the other.

A *march* is a loop in which Z blocks of one side (queries or keys) visit blocks
of the other side: in step n each visits the n-th block of its list. The Z
blocks may come from different rows of the batch. They have lists of about equal
length, because the march lasts as long as the longest list. The backward pass
recomputes the weights from lse and marches twice: queries over keys for dq,
then keys over queries for dk and dv. Nothing is scattered, so every sum has a
fixed order.

    P = exp(logits - lse),   dlogits = P · (dout · v - δ),
    δ = rowsum(dout · out) - dlse

The term dlse makes lse differentiable; the rest is FlashAttention's (Dao et al.
2022, arXiv:2205.14135).

U and W are the rows and columns of a product: R and J where queries march
(layout 'ZRJ'), J and R where keys march ('ZJR'). Marching blocks are the rows,
because XLA's CPU backend is twice as fast where no product transposes its left
side.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes

_LEAST = jnp.iinfo(jnp.int32).min
_MOST = jnp.iinfo(jnp.int32).max


class _Queries(NamedTuple):
  """All B·X blocks of queries, or Z of them."""

  q_ZRK: Any
  scale_ZR1: Any
  coordinate_ZI: Any
  position_ZI: Any


class _Keys(NamedTuple):
  """All B·Y blocks of keys, or Z of them.

  A scale is [Z, J, 1] per token, [Z, 1, K] per channel, and None for floats.
  """

  k_ZJK: Any
  v_ZJK: Any
  k_scale: Any
  v_scale: Any
  start_ZJ: Any
  limit_ZJ: Any
  position_ZJ: Any


class _Cotangents(NamedTuple):
  """The lse, δ and cotangents of blocks of queries, for the backward pass."""

  dout_ZRK: Any
  lse_ZR: Any
  delta_ZR: Any


def forward(q_BLHK, k_BMK, v_BMK, ranges, scales, *, window, scale, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  B, L, H, K = q_BLHK.shape
  sizes = blocks.sizes(L, k_BMK.shape[1], H, window)
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, scales.k)
  queries = _cut_queries(sizes, q_BLHK, scales, ranges)
  keys = _cut_keys(sizes, k_BMK, v_BMK, scales, ranges)

  def march(queries, visit):
    def step(carry, keys):
      peak_ZR, total_ZR, sum_ZRK = carry
      logits_ZRJ = _where_visible(
        _logits(queries, keys, scale, dtype, integer_dot, 'ZRJ'),
        *(-jnp.inf, queries, keys, window, 'ZRJ'),
      )
      new_peak_ZR = jnp.maximum(peak_ZR, logits_ZRJ.max(axis=-1))
      weights_ZRJ = jnp.exp(logits_ZRJ - new_peak_ZR[..., None])
      decay_ZR = jnp.exp(peak_ZR - new_peak_ZR)
      product_ZRK = jnp.einsum(
        'ZRJ,ZJK->ZRK',
        weights_ZRJ.astype(dtype),
        codes.apply_scale(keys.v_ZJK, keys.v_scale, dtype),
        preferred_element_type=jnp.float32,
      )
      return (
        new_peak_ZR,
        total_ZR * decay_ZR + weights_ZRJ.sum(axis=-1),
        sum_ZRK * decay_ZR[..., None] + product_ZRK,
      )

    zeros_ZRK = jnp.zeros_like(queries.q_ZRK, jnp.float32)
    zeros_ZR = zeros_ZRK[..., 0]
    peak_ZR, total_ZR, sum_ZRK = visit(
      step, (zeros_ZR + softmax.LOWEST, zeros_ZR, zeros_ZRK)
    )
    # `== 0`, not `> 0`: a NaN is not a blind query.
    blind_ZR = total_ZR == 0
    total_ZR = jnp.where(blind_ZR, 1.0, total_ZR)
    lse_ZR = jnp.where(blind_ZR, 0.0, peak_ZR + jnp.log(total_ZR))
    return (sum_ZRK / total_ZR[..., None]).astype(dtype), lse_ZR

  sees_BXY = _sees(queries, keys, B, window)
  out_ZRK, lse_ZR = _march(march, sees_BXY, queries, keys, sizes.Z)
  return _join(out_ZRK, (B, L, H, K)), _join(lse_ZR, (B, L, H))


def backward(
  q_BLHK, k_BMK, v_BMK, ranges, scales, cotangents, *, window, scale, dtype
):
  """Returns (dq_BLHK, dk_BMK, dv_BMK) of the dequantized values."""
  B, L, H, K = q_BLHK.shape
  M = k_BMK.shape[1]
  sizes = blocks.sizes(L, M, H, window)
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, scales.k)
  queries = _cut_queries(sizes, q_BLHK, scales, ranges)
  keys = _cut_keys(sizes, k_BMK, v_BMK, scales, ranges)
  # Padding queries are zeros, so that their weights e^(0 - lse) need an lse of
  # their own: with another query's they may be infinite.
  cotangents = _Cotangents(
    _cut_heads(cotangents.dout_BLHK.astype(dtype), sizes.I),
    _cut_heads(cotangents.lse_BLH, sizes.I),
    _cut_heads(cotangents.delta_BLH, sizes.I),
  )

  def weights_and_dlogits(queries, cotangents, keys, layout):
    logits_ZUW = _logits(queries, keys, scale, dtype, integer_dot, layout)
    # The mask comes last, so that an lse of NaN spoils visible weights only.
    weights_ZUW = _where_visible(
      jnp.exp(logits_ZUW - _align(cotangents.lse_ZR, 'ZR', layout)),
      *(0.0, queries, keys, window, layout),
    )
    dweights_ZUW = _product(
      cotangents.dout_ZRK,
      codes.apply_scale(keys.v_ZJK, keys.v_scale, dtype),
      layout,
    )
    dlogits_ZUW = weights_ZUW * (
      dweights_ZUW - _align(cotangents.delta_ZR, 'ZR', layout)
    )
    return weights_ZUW.astype(dtype), dlogits_ZUW.astype(dtype)

  def march_queries(block, visit):
    queries, cotangents = block

    def step(dq_ZRK, keys):
      _, dlogits_ZRJ = weights_and_dlogits(queries, cotangents, keys, 'ZRJ')
      return dq_ZRK + jnp.einsum(
        'ZRJ,ZJK->ZRK',
        dlogits_ZRJ,
        codes.apply_scale(keys.k_ZJK, keys.k_scale, dtype),
        preferred_element_type=jnp.float32,
      )

    zeros_ZRK = jnp.zeros_like(queries.q_ZRK, jnp.float32)
    return scale * visit(step, zeros_ZRK)

  def march_keys(keys, visit):
    def step(carry, block):
      dk_ZJK, dv_ZJK = carry
      queries, cotangents = block
      weights_ZJR, dlogits_ZJR = weights_and_dlogits(
        queries, cotangents, keys, 'ZJR'
      )
      dk_ZJK += jnp.einsum(
        'ZJR,ZRK->ZJK',
        dlogits_ZJR,
        codes.apply_scale(queries.q_ZRK, queries.scale_ZR1, dtype),
        preferred_element_type=jnp.float32,
      )
      dv_ZJK += jnp.einsum(
        'ZJR,ZRK->ZJK',
        weights_ZJR,
        cotangents.dout_ZRK,
        preferred_element_type=jnp.float32,
      )
      return dk_ZJK, dv_ZJK

    zeros_ZJK = jnp.zeros_like(keys.k_ZJK, jnp.float32)
    dk_ZJK, dv_ZJK = visit(step, (zeros_ZJK, zeros_ZJK))
    return scale * dk_ZJK, dv_ZJK

  sees_BXY = _sees(queries, keys, B, window)
  block = queries, cotangents
  dq_ZRK = _march(march_queries, sees_BXY, block, keys, sizes.Z)
  sees_BYX = sees_BXY.swapaxes(1, 2)
  dk_ZJK, dv_ZJK = _march(march_keys, sees_BYX, keys, block, sizes.Z)
  return (
    _join(dq_ZRK, (B, L, H, K)).astype(codes.float_dtype(q_BLHK, dtype)),
    _join(dk_ZJK, (B, M, K)).astype(codes.float_dtype(k_BMK, dtype)),
    _join(dv_ZJK, (B, M, K)).astype(codes.float_dtype(v_BMK, dtype)),
  )


def _march(march, sees_BXY, marching, visited, together):
  """Runs `march` on all blocks of one side, `together` of them at a time.

  Args:
    march: a function of Z marching blocks and `visit` that returns the blocks'
      results. visit(step, carry) folds carry = step(carry, Z visited blocks)
      over their lists.
    sees_BXY: which of a row's Y blocks each of its X blocks visits.
    marching: arrays whose first dimension is B·X.
    visited: arrays whose first dimension is B·Y.
    together: Z.

  Returns:
    The results of all B·X blocks.
  """
  B, X, Y = sees_BXY.shape
  together = min(together, B * X)
  order = jnp.argsort(sees_BXY.sum(axis=-1).reshape(-1), descending=True)
  # Spare places in the last march repeat a block; their results are dropped.
  places = jnp.pad(order, (0, -(B * X) % together), mode='edge')

  def march_together(block_Z):
    sees_ZY = sees_BXY.reshape(B * X, Y)[block_Z]
    # The blocks to visit come first, in order. A list that is shorter than the
    # longest continues with unseen blocks, to which the mask gives no weight.
    list_ZY = jnp.argsort(~sees_ZY, axis=-1, stable=True)
    offset_Z = block_Z // X * Y

    def visit(step, carry):
      def body(n, carry):
        at_Z = jax.lax.dynamic_index_in_dim(list_ZY, n, 1, keepdims=False)
        return step(carry, _take(visited, offset_Z + at_Z))

      return jax.lax.fori_loop(0, sees_ZY.sum(axis=-1).max(), body, carry)

    return march(_take(marching, block_Z), visit)

  results = jax.lax.map(march_together, places.reshape(-1, together))
  results = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
  return _take(results, jnp.argsort(order))


def _sees(queries, keys, batch, window):
  """Returns bool[B, X, Y]: whether a query block may see a key block."""
  filled_ZJ = keys.start_ZJ < keys.limit_ZJ

  def of_filled(reduce, x_ZJ, empty):
    bound_Z = reduce(jnp.where(filled_ZJ, x_ZJ, empty), axis=-1)
    return bound_Z.reshape(batch, 1, -1)

  start_B1Y = of_filled(jnp.min, keys.start_ZJ, _MOST)
  limit_B1Y = of_filled(jnp.max, keys.limit_ZJ, _LEAST)
  newest_B1Y = of_filled(jnp.max, keys.position_ZJ, _LEAST)
  first_BX1 = queries.coordinate_ZI.min(axis=-1).reshape(batch, -1, 1)
  last_BX1 = queries.coordinate_ZI.max(axis=-1).reshape(batch, -1, 1)
  oldest_BX1 = queries.position_ZI.min(axis=-1).reshape(batch, -1, 1)
  sees_BXY = (start_B1Y <= last_BX1) & (first_BX1 < limit_B1Y)
  if window is None:
    return sees_BXY
  return sees_BXY & (oldest_BX1 - window < newest_B1Y)


def _where_visible(x_ZUW, otherwise, queries, keys, window, layout):
  """Returns x where the query sees the key; all heads share the mask."""
  layout = layout.replace('R', 'IH')
  coordinate = _align(queries.coordinate_ZI, 'ZI', layout)
  visible = (_align(keys.start_ZJ, 'ZJ', layout) <= coordinate) & (
    coordinate < _align(keys.limit_ZJ, 'ZJ', layout)
  )
  if window is not None:
    position = _align(queries.position_ZI, 'ZI', layout)
    visible &= position - _align(keys.position_ZJ, 'ZJ', layout) < window
  Z, I = queries.coordinate_ZI.shape
  R, J = queries.q_ZRK.shape[1], keys.k_ZJK.shape[1]
  sizes = {'Z': Z, 'I': I, 'H': R // I, 'J': J}
  x = x_ZUW.reshape([sizes[letter] for letter in layout])
  return jnp.where(visible, x, otherwise).reshape(x_ZUW.shape)


def _logits(queries, keys, scale, dtype, integer_dot, layout):
  """Returns logits_ZUW in float32, of visible and of unseen pairs."""
  q_ZRK, k_ZJK = queries.q_ZRK, keys.k_ZJK
  if integer_dot:
    logits_ZUW = _product(q_ZRK, k_ZJK, layout).astype(jnp.float32)
    logits_ZUW *= _align(queries.scale_ZR1, 'ZR', layout)
    logits_ZUW *= _align(keys.k_scale, 'ZJ', layout)
  else:
    logits_ZUW = _product(
      codes.apply_scale(q_ZRK, queries.scale_ZR1, dtype),
      codes.apply_scale(k_ZJK, keys.k_scale, dtype),
      layout,
    )
  return scale * logits_ZUW


def _product(a_ZRK, b_ZJK, layout):
  """Returns q · k of all pairs: float32, or int32 where both are codes."""
  integers = a_ZRK.dtype == b_ZJK.dtype == jnp.int8
  dtype = jnp.int32 if integers else jnp.float32
  if layout == 'ZRJ':
    return jnp.einsum(
      'ZRK,ZJK->ZRJ', a_ZRK, b_ZJK, preferred_element_type=dtype
    )
  return jnp.einsum('ZJK,ZRK->ZJR', b_ZJK, a_ZRK, preferred_element_type=dtype)


def _align(x, letters, layout):
  """Reshapes x, named by `letters`, to broadcast against `layout`."""
  return x.reshape(
    [x.shape[letters.index(d)] if d in letters else 1 for d in layout]
  )


def _cut_queries(sizes, q_BLHK, scales, ranges):
  """Returns all query blocks; padding repeats the last to keep bounds tight."""
  q_scale_BLH = scales.q_BLH
  if q_scale_BLH is not None:
    q_scale_BLH = _cut_heads(q_scale_BLH, sizes.I)[..., None]
  return _Queries(
    _cut_heads(q_BLHK, sizes.I),
    q_scale_BLH,
    _cut(ranges.coordinate_BL, sizes.I, mode='edge'),
    _cut(ranges.position_BL, sizes.I, mode='edge'),
  )


def _cut_keys(sizes, k_BMK, v_BMK, scales, ranges):
  """Returns all key blocks; padding keys are empty slots, start = limit = 0."""
  count = k_BMK.shape[0] * -(-k_BMK.shape[1] // sizes.J)

  def cut_scale(scale):
    if scale is None:
      return None
    if scale.ndim == 2:
      return _cut(scale, sizes.J)[..., None]
    return jnp.broadcast_to(scale, (count, 1, *scale.shape))

  return _Keys(
    _cut(k_BMK, sizes.J),
    _cut(v_BMK, sizes.J),
    cut_scale(scales.k),
    cut_scale(scales.v),
    _cut(ranges.start_BM, sizes.J),
    _cut(ranges.limit_BM, sizes.J),
    _cut(ranges.position_BM, sizes.J),
  )


def _cut(x, size, mode='constant'):
  """Returns [B, L, …] as [B·X, size, …], padded at the end of each row."""
  spare = -x.shape[1] % size
  x = jnp.pad(x, [(0, 0), (0, spare)] + [(0, 0)] * (x.ndim - 2), mode=mode)
  return x.reshape(-1, size, *x.shape[2:])


def _cut_heads(x, size):
  """Returns [B, L, H, …] as [B·X, size·H, …], padded with zeros."""
  return _cut(x, size).reshape(-1, size * x.shape[2], *x.shape[3:])


def _join(x, shape):
  """Undoes `_cut` and `_cut_heads`: [B·X, …] -> [B, L, …] of `shape`."""
  return x.reshape(shape[0], -1, *shape[2:])[:, : shape[1]]


def _take(arrays, index_Z):
  return jax.tree.map(lambda x: x[index_Z], arrays)

"""Visibility attention in Pallas Triton, for GPUs with tensor cores.

    s = scale · log2 e · q · k,   p = 2^(s - peak),   peak = max s so far
    out = Σ p · v / Σ p,          lse = (peak + log2 Σ p) / log2 e

A program takes one tile of I rows of [B, L·H, K], which are all heads of a few
tokens. It visits the key blocks of its list (`plan`): first those that the
whole tile sees in full, which need no mask, then the others. The backward pass
recomputes p from lse twice: for dq over such lists, and for dk and dv over the
transposed lists:

    ds = p · (dout · v - δ),   δ = rowsum(dout · out) - dlse
    dq = scale Σ ds · k,       dk = scale Σ ds · q,      dv = Σ p · dout

There are no atomics: every sum has a fixed order, so two runs agree bit for
bit. The method is FlashAttention's (Dao 2023, arXiv:2307.08691); lists of full
and of partly seen blocks are FlexAttention's (Dong et al. 2024,
arXiv:2412.05496).

Where q and k are both codes with scales per token, s is an int8 product times
one factor per row and one per column. With few queries the forward pass reads v
as codes: scales per token multiply p's columns, scales per channel the result.
With many queries, and in the backward pass, every program would turn the same
codes into the same floats, so XLA converts them once, before the kernel.

Loads and stores mask the places of a tile beyond an array's end. Operands are
copied only where the head size is below 32 or no power of two, to pad them.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import plan

# A factor that is negligible but not zero, because 0 · -inf would be NaN.
_LEAST = 1e-30


class _Queries(NamedTuple):
  """Queries of all rows; `_Tile` is a program's part of them."""

  q_BRK: Any
  scale_BR: Any  # Given where q is multiplied with k as codes.
  coordinate_BL: Any
  position_BL: Any
  float_BRK: Any = None  # Given for the gradient of k where q is codes.


class _Keys(NamedTuple):
  """Keys, and values that are codes where v_scale is given."""

  k_BMK: Any
  v_BMK: Any
  k_scale_BM: Any  # Given where k is multiplied with q as codes.
  v_scale: Any  # [B, M] for tokens, [K] for channels.
  start_BM: Any
  limit_BM: Any
  position_BM: Any
  float_BMK: Any = None  # Given for the gradient of q where k is codes.


class _Cotangents(NamedTuple):
  """Each query's lse (in base 2), δ and cotangent for the backward pass."""

  dout_BRK: Any
  lse_BR: Any
  delta_BR: Any


class _Statics(NamedTuple):
  """The constants of a compiled kernel."""

  heads: int  # Rows per query.
  rows: int  # R, the rows of all queries.
  memory: int  # Keys.
  window: int | None  # None for all.
  scale: float  # Factor of the logits.
  integer_dot: bool  # Whether q and k are multiplied as codes.
  dtype: Any  # The dtype of the output and of dequantized values.
  tiles: Any = None  # Block sizes.
  shared: int = 1  # Query tiles that share a list.


class _Span(NamedTuple):
  """Part of a row: `size` places from `start`.

  Places from `end` on are beyond the array; None if all are within it.
  """

  b: Any
  start: Any
  size: int
  end: int | None


class _Tile(NamedTuple):
  """Queries of a program."""

  span: _Span  # Where they are.
  q_IK: Any  # Floats or codes.
  # The factor that turns `_logits` into s: a number, or factor_I where q is
  # codes. It is positive, so that it can be applied after a maximum.
  factor: Any


class _Block(NamedTuple):
  """Keys of a program."""

  span: _Span
  k_JK: Any
  k_scale_J: Any


def forward(q_BLHK, k_BMK, v_BMK, ranges, scales, *, window, scale, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  B, L, H, K = q_BLHK.shape
  if scales.v is not None and blocks.dequantize_first(L * H, window, K):
    v_BMK = codes.dequantize(v_BMK, scales.v, dtype)
    scales = scales._replace(v=None)
  queries, keys, statics = _prepare(
    q_BLHK, k_BMK, v_BMK, ranges, scales, window, scale, dtype
  )
  out_BRK, lse_BR = _call(
    'forward',
    _forward_kernel,
    ranges,
    (queries, keys),
    [
      jax.ShapeDtypeStruct(queries.q_BRK.shape, dtype),
      jax.ShapeDtypeStruct((B, L * H), jnp.float32),
    ],
    statics,
  )
  return out_BRK[..., :K].reshape(B, L, H, K), lse_BR.reshape(B, L, H)


def backward(
  q_BLHK, k_BMK, v_BMK, ranges, scales, cotangents, *, window, scale, dtype
):
  """Returns (dq_BLHK, dk_BMK, dv_BMK) of the dequantized values."""
  B, L, H, K = q_BLHK.shape
  v_float_BMK = codes.dequantize(v_BMK, scales.v, dtype)
  queries, keys, statics = _prepare(
    *(q_BLHK, k_BMK, v_float_BMK, ranges, scales._replace(v=None)),
    *(window, scale, dtype),
  )
  if statics.integer_dot:
    float_BLHK = codes.dequantize(q_BLHK, scales.q_BLH, dtype)
    float_BMK = codes.dequantize(k_BMK, scales.k, dtype)
    queries = queries._replace(float_BRK=_wide(float_BLHK.reshape(B, L * H, K)))
    keys = keys._replace(float_BMK=_wide(float_BMK))
  dout_BLHK = cotangents.dout_BLHK.astype(keys.v_BMK.dtype)
  arguments = (
    queries,
    keys,
    _Cotangents(
      _wide(dout_BLHK.reshape(B, L * H, K)),
      softmax.LOG2E * cotangents.lse_BLH.reshape(B, L * H),
      cotangents.delta_BLH.reshape(B, L * H),
    ),
  )
  q_dtype, k_dtype, v_dtype = (
    codes.float_dtype(x, dtype) for x in (q_BLHK, k_BMK, v_BMK)
  )
  (dq_BRK,) = _call(
    'dq',
    _dq_kernel,
    ranges,
    arguments,
    [jax.ShapeDtypeStruct(queries.q_BRK.shape, q_dtype)],
    statics,
  )
  dk_BMK, dv_BMK = _call(
    'dkv',
    _dkv_kernel,
    ranges,
    arguments,
    [
      jax.ShapeDtypeStruct(keys.k_BMK.shape, k_dtype),
      jax.ShapeDtypeStruct(keys.v_BMK.shape, v_dtype),
    ],
    statics,
  )
  return dq_BRK[..., :K].reshape(B, L, H, K), dk_BMK[..., :K], dv_BMK[..., :K]


def _prepare(q_BLHK, k_BMK, v_BMK, ranges, scales, window, scale, dtype):
  """Returns queries, keys, statics; dequantizes q, k without an integer dot."""
  q_scale_BLH, k_scale, v_scale = scales
  B, L, H, K = q_BLHK.shape
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, k_scale)
  if not integer_dot:
    q_BLHK = codes.dequantize(q_BLHK, q_scale_BLH, dtype)
    k_BMK = codes.dequantize(k_BMK, k_scale, dtype)
    common = jnp.promote_types(q_BLHK.dtype, k_BMK.dtype)
    q_BLHK, k_BMK = q_BLHK.astype(common), k_BMK.astype(common)
    q_scale_BLH = k_scale = None
  else:
    q_scale_BLH = q_scale_BLH.reshape(B, L * H)
  if v_BMK.dtype != jnp.int8:
    v_BMK = _at_least(v_BMK, dtype)
  if _per_channel(v_scale):
    v_scale = _wide(v_scale)
  statics = _Statics(
    heads=H,
    rows=L * H,
    memory=k_BMK.shape[1],
    window=window,
    scale=scale,
    integer_dot=integer_dot,
    dtype=jnp.dtype(dtype),
  )
  q_BRK = _wide(q_BLHK.reshape(B, L * H, K))
  return (
    _Queries(q_BRK, q_scale_BLH, ranges.coordinate_BL, ranges.position_BL),
    _Keys(
      _wide(k_BMK),
      _wide(v_BMK),
      k_scale,
      v_scale,
      ranges.start_BM,
      ranges.limit_BM,
      ranges.position_BM,
    ),
    statics,
  )


def _at_least(x, dtype):
  return x.astype(jnp.promote_types(x.dtype, dtype))


def _wide(x):
  """Pads the last dimension to a size that a program can hold and multiply."""
  spare = max(32, pl.next_power_of_2(x.shape[-1])) - x.shape[-1]
  return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, spare)]) if spare else x


def _call(kind, kernel, ranges, arguments, results, statics):
  """Runs a kernel over all query tiles, or all key blocks for dk and dv."""
  queries, keys, *_ = arguments
  tiles = blocks.gpu(
    kind,
    rows=statics.rows,
    memory=statics.memory,
    window=statics.window,
    head_dim=queries.q_BRK.shape[-1],
    itemsize=codes.float_dtype(keys.v_BMK, statics.dtype).itemsize,
    integer_dot=statics.integer_dot,
  )
  shared = blocks.plan_tiles(tiles.rows, statics.heads)
  sizes = statics.window, tiles.rows * shared, statics.heads, tiles.keys
  sees_BXY, full_BXY = plan.sees(ranges, *sizes), plan.full(ranges, *sizes)
  programs = -(-statics.rows // tiles.rows)
  if kind == 'dkv':
    sees_BXY, full_BXY = sees_BXY.swapaxes(1, 2), full_BXY.swapaxes(1, 2)
    programs = sees_BXY.shape[1]
  return pl.pallas_call(
    functools.partial(
      kernel, statics=statics._replace(tiles=tiles, shared=shared)
    ),
    grid=(programs, len(sees_BXY)),
    out_shape=results,
    compiler_params=plgpu.CompilerParams(
      num_warps=tiles.warps, num_stages=tiles.stages
    ),
    interpret=dispatch.interpreting(),
    name=f'visibility_attention_{kind}',
  )(plan.full_first(sees_BXY, full_BXY), *arguments)


def _forward_kernel(lists, queries, keys, out_BRK, lse_BR, *, statics):
  b, x = _last_first()
  tile = _take_queries(queries, b, x, statics)
  factor = tile.factor
  dtype = codes.float_dtype(keys.v_BMK, statics.dtype)

  def step(is_full, y, carry):
    peak_I, total_I, sum_IK = carry
    block = _take_keys(keys, b, y, is_full, statics)
    s_IJ = _logits(tile, block, 'IJ', statics)
    if not is_full:
      visible_IJ = _visible(queries, keys, tile, block, 'IJ', statics)
      s_IJ = jnp.where(visible_IJ, s_IJ, -jnp.inf)
    new_peak_I = jnp.maximum(peak_I, s_IJ.max(axis=1))
    p_IJ = _power(s_IJ, tile, factor * new_peak_I, 'IJ')
    decay_I = jnp.exp2(factor * (peak_I - new_peak_I))
    total_I = total_I * decay_I + p_IJ.sum(axis=1)
    if keys.v_scale is not None and not _per_channel(keys.v_scale):
      p_IJ = p_IJ * _load(keys.v_scale, block.span)[None]
    v_JK = _load(keys.v_BMK, block.span).astype(dtype)
    sum_IK = sum_IK * decay_I[:, None] + _dot(p_IJ.astype(dtype), v_JK)
    return new_peak_I, total_I, sum_IK

  zeros_I = jnp.zeros(statics.tiles.rows, jnp.float32)
  zeros_IK = jnp.zeros(tile.q_IK.shape, jnp.float32)
  peak_I, total_I, sum_IK = _visit(
    lists,
    b,
    x // statics.shared,
    1,
    step,
    (zeros_I + softmax.LOWEST, zeros_I, zeros_IK),
  )
  # `== 0`, not `> 0`: a NaN is not a blind query.
  blind_I = total_I == 0
  total_I = jnp.where(blind_I, 1.0, total_I)
  if _per_channel(keys.v_scale):
    sum_IK = sum_IK * keys.v_scale[:][None]
  lse_I = (factor * peak_I + jnp.log2(total_I)) / softmax.LOG2E
  _store(out_BRK, tile.span, sum_IK / total_I[:, None])
  _store(lse_BR, tile.span, jnp.where(blind_I, 0.0, lse_I))


def _dq_kernel(lists, queries, keys, cotangents, dq_BRK, *, statics):
  b, x = _last_first()
  tile = _take_queries(queries, b, x, statics)
  dout_IK, lse_I, delta_I = (_load(x, tile.span) for x in cotangents)

  def step(is_full, y, dq_IK):
    block = _take_keys(keys, b, y, is_full, statics)
    p_IJ = _weights(queries, keys, tile, block, lse_I, is_full, 'IJ', statics)
    dp_IJ = _dot_transposed(dout_IK, _load(keys.v_BMK, block.span))
    ds_IJ = p_IJ * (dp_IJ - delta_I[:, None])
    k_JK = block.k_JK
    if statics.integer_dot:
      k_JK = _load(keys.float_BMK, block.span)
    return dq_IK + _dot(ds_IJ.astype(k_JK.dtype), k_JK)

  zeros_IK = jnp.zeros(tile.q_IK.shape, jnp.float32)
  dq_IK = _visit(lists, b, x // statics.shared, 1, step, zeros_IK)
  _store(dq_BRK, tile.span, statics.scale * dq_IK)


def _dkv_kernel(lists, queries, keys, cotangents, dk_BMK, dv_BMK, *, statics):
  # The first key blocks of a causal row have most work, and they come first.
  y, b = pl.program_id(0), pl.program_id(1)
  block = _take_keys(keys, b, y, False, statics)
  v_JK = _load(keys.v_BMK, block.span)

  def step(is_full, x, carry):
    dk_JK, dv_JK = carry
    tile = _take_queries(queries, b, x, statics)
    dout_IK, lse_I, delta_I = (_load(x, tile.span) for x in cotangents)
    p_JI = _weights(queries, keys, tile, block, lse_I, is_full, 'JI', statics)
    dv_JK = dv_JK + _dot(p_JI.astype(dout_IK.dtype), dout_IK)
    ds_JI = p_JI * (_dot_transposed(v_JK, dout_IK) - delta_I[None])
    q_IK = tile.q_IK
    if statics.integer_dot:
      q_IK = _load(queries.float_BRK, tile.span)
    return dk_JK + _dot(ds_JI.astype(q_IK.dtype), q_IK), dv_JK

  zeros_JK = jnp.zeros(v_JK.shape, jnp.float32)
  dk_JK, dv_JK = _visit(lists, b, y, statics.shared, step, (zeros_JK, zeros_JK))
  _store(dk_BMK, block.span, statics.scale * dk_JK)
  _store(dv_BMK, block.span, dv_JK)


def _last_first():
  """Returns (b, x), the last tile first: in a causal row it has most work."""
  return pl.program_id(1), pl.num_programs(0) - 1 - pl.program_id(0)


def _visit(lists, b, x, shared, step, carry):
  """Folds carry = step(is_full, number, carry) over the list of x.

  Args:
    shared: how many blocks one number of the list stands for.
  """
  full = lists.full_BX[b, x] * shared
  count = lists.count_BX[b, x] * shared

  def number(n):
    if shared == 1:
      return lists.list_BXY[b, x, n]
    each = jax.lax.div(n, shared)
    return lists.list_BXY[b, x, each] * shared + jax.lax.rem(n, shared)

  carry = jax.lax.fori_loop(
    0, full, lambda n, carry: step(True, number(n), carry), carry
  )
  return jax.lax.fori_loop(
    full, count, lambda n, carry: step(False, number(n), carry), carry
  )


def _take_queries(queries, b, x, statics):
  size = statics.tiles.rows
  ragged = statics.rows % (size * statics.shared)
  span = _Span(b, x * size, size, statics.rows if ragged else None)
  if statics.integer_dot:
    factor_I = _load(queries.scale_BR, span) * (
      abs(statics.scale) * softmax.LOG2E
    )
    # A query of zeros may have a scale of zero.
    factor = jnp.maximum(factor_I, _LEAST)
  else:
    factor = statics.scale * softmax.LOG2E if statics.scale > 0 else 1.0
  return _Tile(span, _load(queries.q_BRK, span), factor)


def _take_keys(keys, b, y, is_full, statics):
  size, memory = statics.tiles.keys, statics.memory
  # A full block lies within the array. Where the only block does not, it is
  # never full, but the step for full blocks is traced all the same.
  ragged = memory % size and (memory < size or not is_full)
  span = _Span(b, y * size, size, memory if ragged else None)
  k_scale_J = None
  if statics.integer_dot:
    k_scale_J = _load(keys.k_scale_BM, span) * math.copysign(1, statics.scale)
  return _Block(span, _load(keys.k_BMK, span), k_scale_J)


def _weights(queries, keys, tile, block, lse_I, is_full, layout, statics):
  """Returns p, recomputed from lse."""
  p = _power(_logits(tile, block, layout, statics), tile, lse_I, layout)
  if is_full:
    return p
  visible = _visible(queries, keys, tile, block, layout, statics)
  return jnp.where(visible, p, 0.0)


def _logits(tile, block, layout, statics):
  """Returns s without the tile's factor, as 'IJ' or 'JI'."""
  operands = tile.q_IK, block.k_JK
  product = _dot_transposed(*operands[:: 1 if layout == 'IJ' else -1])
  if statics.integer_dot:
    return product.astype(jnp.float32) * _align(block.k_scale_J, 'J', layout)
  return (
    product if statics.scale > 0 else product * (statics.scale * softmax.LOG2E)
  )


def _visible(queries, keys, tile, block, layout, statics):
  """Returns the mask; keys beyond the array load start = limit = 0."""
  row_I = tile.span.start + jnp.arange(tile.span.size, dtype=jnp.int32)
  last = queries.coordinate_BL.shape[1] - 1
  token_I = jnp.minimum(jax.lax.div(row_I, statics.heads), last)
  coordinate = _align(queries.coordinate_BL[tile.span.b, token_I], 'I', layout)
  start_J, limit_J = (
    _load(x, block.span) for x in (keys.start_BM, keys.limit_BM)
  )
  visible = (_align(start_J, 'J', layout) <= coordinate) & (
    coordinate < _align(limit_J, 'J', layout)
  )
  if statics.window is None:
    return visible
  near_I = queries.position_BL[tile.span.b, token_I] - statics.window
  far = _align(_load(keys.position_BM, block.span), 'J', layout)
  return visible & (_align(near_I, 'I', layout) < far)


def _power(logits, tile, below_I, layout):
  """Returns 2^(factor · logits - below)."""
  below = _align(below_I, 'I', layout)
  factor = tile.factor
  if not isinstance(factor, float):
    factor = _align(factor, 'I', layout)
  if dispatch.interpreting():
    return jnp.exp2(logits * factor - below)
  # Written as one operation, because the compiler does not fuse the product and
  # the sum.
  shape = logits.shape
  operands = [logits, *(jnp.broadcast_to(x, shape) for x in (factor, -below))]
  (s,) = plgpu.elementwise_inline_asm(
    'fma.rn.f32 $0, $1, $2, $3;',
    args=[x.astype(jnp.float32) for x in operands],
    constraints='=f,f,f,f',
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(shape, jnp.float32)],
  )
  return jnp.exp2(s)


def _align(x, letter, layout):
  return x[:, None] if layout[0] == letter else x[None]


def _dot(a_IJ, b_JK):
  return jnp.dot(a_IJ, b_JK, preferred_element_type=jnp.float32)


def _dot_transposed(a_IK, b_JK):
  """Returns a · bᵀ in float32, or in int32 where both are codes."""
  dtype = jnp.int32 if a_IK.dtype == jnp.int8 else jnp.float32
  return jax.lax.dot_general(
    a_IK, b_JK, (((1,), (1,)), ((), ())), preferred_element_type=dtype
  )


def _load(ref, span):
  """Returns places of [B, R] or [B, R, K]; zeros beyond the array."""
  index, mask = _place(ref, span)
  if mask is None:
    return ref[index]
  return plgpu.load(ref.at[index], mask=mask, other=jnp.zeros((), ref.dtype))


def _store(ref, span, value):
  index, mask = _place(ref, span)
  plgpu.store(ref.at[index], value.astype(ref.dtype), mask=mask)


def _place(ref, span):
  index = span.b, pl.ds(span.start, span.size)
  mask = None
  if span.end is not None:
    mask = span.start + jnp.arange(span.size, dtype=jnp.int32) < span.end
  if ref.ndim == 2:
    return index, mask
  return (*index, slice(None)), None if mask is None else mask[:, None]


def _per_channel(scale) -> bool:
  return scale is not None and scale.ndim == 1

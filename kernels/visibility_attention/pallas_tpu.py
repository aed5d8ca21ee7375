"""Visibility attention on a TPU's matrix unit, in Pallas.

A row is a query head: all H heads of a token read the one K and V, so that
q_BLHK is L·H rows of K numbers, and a block of R rows fills the matrix unit
whatever H is. The plan lists the blocks of J keys that a block of rows visits,
and the march (tpu_march.py) fetches those and no others.

    forward     rows march over keys: out, lse
    backward    rows march over keys: dq
                keys march over rows: dk, dv

Nothing is scattered, so every sum has a fixed order. The mathematics is that of
chunked.py in base 2: the vector unit computes only 2^x, so that log2(e) is part
of the factor of the logits.

U and W are the rows and columns of a product: R and J where rows march, J and R
where keys march. E is a few numbers per row or column, the facts of
tpu_sides.py. Those of the visited side lie along lanes as they are fetched.
Those of the marching side are turned into columns once per step, each number in
all 128 lanes of a register's row: in the compiler's schedule
(`aot_report --kernels`) a broadcast along lanes at every visit costs more.
Pairs of blocks that are seen in full skip the mask.

QKᵀ multiplies codes where it can be an integer dot; otherwise codes become
floats in VMEM. float32 operands are multiplied in full precision.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import plan
from kaiju_jax.kernels.visibility_attention import tpu_march
from kaiju_jax.kernels.visibility_attention import tpu_sides

Row, Key = tpu_sides.Row, tpu_sides.Key

_LANES = 128


class _Static(NamedTuple):
  """The constants of the compiled kernels."""

  windowed: bool  # Whether there is a window.
  scale: float  # Factor of the logits.
  integer_dot: bool  # Whether QKᵀ is a product of codes.
  dtype: Any  # The operands' dtype in every other product.


def forward(q_BLHK, k_BMK, v_BMK, ranges, scales, *, window, scale, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  B, L, H, K = q_BLHK.shape
  tiles = _tiles(q_BLHK, k_BMK, window, dtype)
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, scales.k)
  static = _Static(window is not None, scale, integer_dot, dtype)
  rows = tpu_sides.cut_rows(
    tiles.rows,
    *_queries(static, q_BLHK, scales.q_BLH),
    ranges,
    window=window,
    factor=scale * softmax.LOG2E,
  )
  keys, channels = tpu_sides.cut_keys(tiles.keys, k_BMK, v_BMK, ranges, scales)
  sizes = window, tiles.rows, H, tiles.keys
  sees_BXY, full_BXY = plan.sees(ranges, *sizes), plan.full(ranges, *sizes)
  X, R = sees_BXY.shape[1], tiles.rows
  out_BXRK, lse_BX1R = tpu_march.march(
    functools.partial(_forward, static),
    tpu_march.orders(plan.plan_queries(sees_BXY), full_BXY),
    rows,
    keys,
    channels,
    outputs=(
      jax.ShapeDtypeStruct((B, X, R, K), dtype),
      jax.ShapeDtypeStruct((B, X, 1, R), jnp.float32),
    ),
    scratch=(
      pltpu.VMEM((Row.FACTOR + 1, R, _LANES), jnp.int32),
      pltpu.VMEM((R, _LANES), jnp.float32),
      pltpu.VMEM((R, _LANES), jnp.float32),
      pltpu.VMEM((R, K), jnp.float32),
    ),
    name='visibility_attention_forward',
  )
  lse_BXR = lse_BX1R[:, :, 0]
  return (
    tpu_sides.join(out_BXRK, (B, L, H, K)),
    tpu_sides.join(lse_BXR, (B, L, H)),
  )


def backward(
  q_BLHK, k_BMK, v_BMK, ranges, scales, cotangents, *, window, scale, dtype
):
  """Returns (dq_BLHK, dk_BMK, dv_BMK) of the dequantized values."""
  B, L, H, K = q_BLHK.shape
  M = k_BMK.shape[1]
  tiles = _tiles(q_BLHK, k_BMK, window, dtype)
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, scales.k)
  static = _Static(window is not None, scale, integer_dot, dtype)
  rows = tpu_sides.cut_rows(
    tiles.rows,
    *_queries(static, q_BLHK, scales.q_BLH),
    ranges,
    window=window,
    factor=scale * softmax.LOG2E,
    cotangents=cotangents._replace(
      dout_BLHK=cotangents.dout_BLHK.astype(dtype)
    ),
  )
  keys, channels = tpu_sides.cut_keys(tiles.keys, k_BMK, v_BMK, ranges, scales)
  sizes = window, tiles.rows, H, tiles.keys
  sees_BXY, full_BXY = plan.sees(ranges, *sizes), plan.full(ranges, *sizes)
  X, Y = sees_BXY.shape[1:]
  R, J = tiles
  q_dtype, k_dtype, v_dtype = (
    codes.float_dtype(x, dtype) for x in (q_BLHK, k_BMK, v_BMK)
  )
  dq_BXRK = tpu_march.march(
    functools.partial(_backward_rows, static),
    tpu_march.orders(plan.plan_queries(sees_BXY), full_BXY),
    rows,
    keys,
    channels,
    outputs=jax.ShapeDtypeStruct((B, X, R, K), q_dtype),
    scratch=(
      pltpu.VMEM((Row.DELTA + 1, R, _LANES), jnp.int32),
      pltpu.VMEM((R, K), jnp.float32),
    ),
    name='visibility_attention_dq',
  )
  dk_BYJK, dv_BYJK = tpu_march.march(
    functools.partial(_backward_keys, static),
    tpu_march.orders(plan.plan_keys(sees_BXY), full_BXY.swapaxes(1, 2)),
    keys,
    rows,
    channels,
    outputs=(
      jax.ShapeDtypeStruct((B, Y, J, K), k_dtype),
      jax.ShapeDtypeStruct((B, Y, J, K), v_dtype),
    ),
    scratch=(
      pltpu.VMEM((Key.K_SCALE + 1, J, _LANES), jnp.int32),
      pltpu.VMEM((J, K), jnp.int8 if integer_dot else k_dtype),
      pltpu.VMEM((J, K), v_dtype),
      pltpu.VMEM((J, K), jnp.float32),
      pltpu.VMEM((J, K), jnp.float32),
    ),
    name='visibility_attention_dkv',
  )
  return (
    tpu_sides.join(dq_BXRK, (B, L, H, K)),
    tpu_sides.join(dk_BYJK, (B, M, K)),
    tpu_sides.join(dv_BYJK, (B, M, K)),
  )


def _tiles(q_BLHK, k_BMK, window, dtype):
  _, L, H, K = q_BLHK.shape
  return blocks.tpu(
    length=L,
    memory=k_BMK.shape[1],
    heads=H,
    head_dim=K,
    itemsize=jnp.dtype(dtype).itemsize,
    window=window,
  )


def _queries(static, q_BLHK, q_scale_BLH):
  """Returns codes and scales, or floats and None if QKᵀ multiplies floats."""
  if static.integer_dot:
    return q_BLHK, q_scale_BLH
  return codes.dequantize(q_BLHK, q_scale_BLH, static.dtype), None


def _forward(static, visit, rows, channels, outputs, scratch):
  """Computes out and lse of one block of rows by an online softmax."""
  columns_ref, peak_ref, total_ref, sum_ref = scratch
  out_ref, lse_ref = outputs
  _set_columns(columns_ref, rows.facts_BXER)
  peak_ref[...] = jnp.full_like(peak_ref, softmax.LOWEST)
  total_ref[...] = jnp.zeros_like(total_ref)
  sum_ref[...] = jnp.zeros_like(sum_ref)

  def step(keys, masked):
    row, key = _column(columns_ref, keys), _lane(keys.facts_BYEJ)
    k_JK = _k_operand(static, keys, channels)
    logits_RJ = _logits(static, rows.q_BXRK[...], k_JK, row, key)
    if masked:
      visible_RJ = _visible(static, row, key)
      logits_RJ = jnp.where(visible_RJ, logits_RJ, -jnp.inf)
    old_RE = peak_ref[...]
    peak_RE = jnp.maximum(old_RE, logits_RJ.max(axis=-1, keepdims=True))
    peak_ref[...] = peak_RE
    weights_RJ = jnp.exp2(logits_RJ - _wide(peak_RE, logits_RJ.shape[1]))
    decay_RE = jnp.exp2(old_RE - peak_RE)
    total_ref[...] = total_ref[...] * decay_RE + _by_lane(weights_RJ)
    product_RK = _product(
      weights_RJ.astype(static.dtype), _v_values(static, keys, channels)
    )
    decay_RK = _wide(decay_RE, product_RK.shape[1])
    sum_ref[...] = sum_ref[...] * decay_RK + product_RK

  visit(step)
  total_R1 = total_ref[...].sum(axis=-1, keepdims=True)
  # `== 0`, not `> 0`: a NaN is not a blind query.
  inverse_R1 = 1 / jnp.where(total_R1 == 0, 1.0, total_R1)
  out_ref[...] = (sum_ref[...] * inverse_R1).astype(out_ref.dtype)
  first = jax.lax.broadcasted_iota(jnp.int32, peak_ref.shape, 1) == 0
  both_ER = jnp.where(first, peak_ref[...], total_R1).T
  peak_1R, total_1R = both_ER[:1], both_ER[1:2]
  lse_1R = (peak_1R + jnp.log2(total_1R)) / softmax.LOG2E
  lse_ref[...] = jnp.where(total_1R == 0, 0.0, lse_1R)


def _backward_rows(static, visit, rows, channels, dq_ref, scratch):
  """Computes dq of one block of rows."""
  columns_ref, sum_ref = scratch
  _set_columns(columns_ref, rows.facts_BXER)
  sum_ref[...] = jnp.zeros_like(sum_ref)

  def step(keys, masked):
    row, key = _column(columns_ref, keys), _lane(keys.facts_BYEJ)
    k_JK = _k_operand(static, keys, channels)
    logits_RJ = _logits(static, rows.q_BXRK[...], k_JK, row, key)
    weights_RJ = _weights(static, logits_RJ, row, key, masked)
    dweights_RJ = _product_transposed(
      rows.dout_BXRK[...], _v_values(static, keys, channels)
    )
    dlogits_RJ = weights_RJ * (dweights_RJ - row(Row.DELTA))
    sum_ref[...] += _product(
      dlogits_RJ.astype(static.dtype), _k_values(static, keys, channels)
    )

  visit(step)
  dq_ref[...] = (static.scale * sum_ref[...]).astype(dq_ref.dtype)


def _backward_keys(static, visit, keys, channels, outputs, scratch):
  """Computes dk and dv of one block of keys."""
  columns_ref, k_ref, v_ref, dk_sum_ref, dv_sum_ref = scratch
  dk_ref, dv_ref = outputs
  _set_columns(columns_ref, keys.facts_BYEJ)
  k_ref[...] = _k_operand(static, keys, channels)
  v_ref[...] = _v_values(static, keys, channels)
  dk_sum_ref[...] = jnp.zeros_like(dk_sum_ref)
  dv_sum_ref[...] = jnp.zeros_like(dv_sum_ref)

  def step(rows, masked):
    row, key = _lane(rows.facts_BXER), _column(columns_ref, rows)
    logits_JR = _logits(
      static, rows.q_BXRK[...], k_ref[...], row, key, keys_march=True
    )
    weights_JR = _weights(static, logits_JR, row, key, masked)
    dout_RK = rows.dout_BXRK[...]
    dv_sum_ref[...] += _product(weights_JR.astype(static.dtype), dout_RK)
    dweights_JR = _product_transposed(v_ref[...], dout_RK)
    dlogits_JR = weights_JR * (dweights_JR - row(Row.DELTA))
    q_RK = _values(rows.q_BXRK[...], rows.facts_BXER, Row.SCALE, None, static)
    dk_sum_ref[...] += _product(dlogits_JR.astype(static.dtype), q_RK)

  visit(step)
  dk_ref[...] = (static.scale * dk_sum_ref[...]).astype(dk_ref.dtype)
  dv_ref[...] = dv_sum_ref[...].astype(dv_ref.dtype)


def _logits(static, q_RK, k_JK, row, key, keys_march=False):
  """Returns logits_UW in base 2, of visible and of unseen pairs."""
  operands = (k_JK, q_RK) if keys_march else (q_RK, k_JK)
  logits_UW = _product_transposed(*operands)
  if static.integer_dot:
    logits_UW = logits_UW.astype(jnp.float32)
    return logits_UW * row(Row.FACTOR) * key(Key.K_SCALE)
  return logits_UW * (static.scale * softmax.LOG2E)


def _weights(static, logits_UW, row, key, masked):
  """Returns p from lse. An lse of NaN spoils visible weights only."""
  weights_UW = jnp.exp2(logits_UW - row(Row.LSE))
  if not masked:
    return weights_UW
  return jnp.where(_visible(static, row, key), weights_UW, 0.0)


def _visible(static, row, key):
  """Returns whether each row sees each key."""
  coordinate = row(Row.COORDINATE, jnp.int32)
  visible = (key(Key.START, jnp.int32) <= coordinate) & (
    coordinate < key(Key.LIMIT, jnp.int32)
  )
  if static.windowed:
    visible &= row(Row.HORIZON, jnp.int32) < key(Key.POSITION, jnp.int32)
  return visible


def _product(a_UW, b_WK):
  """Returns a · b in float32."""
  return _dot(a_UW, b_WK, 0)


def _product_transposed(a_UK, b_WK):
  """Returns a · bᵀ in float32, or in int32 where both are codes."""
  return _dot(a_UK, b_WK, 1)


def _dot(a, b, axis):
  dtype = jnp.promote_types(a.dtype, b.dtype)
  precise = dtype == jnp.float32
  return jax.lax.dot_general(
    a.astype(dtype),
    b.astype(dtype),
    (((1,), (axis,)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if precise else None,
    preferred_element_type=jnp.int32 if dtype == jnp.int8 else jnp.float32,
  )


def _k_operand(static, keys, channels):
  """Returns the keys as the logits need them: codes, or floats."""
  if static.integer_dot:
    return keys.k_BYJK[...]
  return _k_values(static, keys, channels)


def _k_values(static, keys, channels):
  return _values(
    keys.k_BYJK[...], keys.facts_BYEJ, Key.K_SCALE, channels.k_1K, static
  )


def _v_values(static, keys, channels):
  return _values(
    keys.v_BYJK[...], keys.facts_BYEJ, Key.V_SCALE, channels.v_1K, static
  )


def _values(x_UK, facts_EU, fact, channel_ref, static):
  """Returns floats unchanged, and codes times their scales."""
  if x_UK.dtype != jnp.int8:
    return x_UK
  if channel_ref is None:
    scale = _wide(_turn(facts_EU, fact), x_UK.shape[1])
    scale = jax.lax.bitcast_convert_type(scale, jnp.float32)
  else:
    scale = channel_ref[...]
  return codes.apply_scale(x_UK, scale, static.dtype)


def _set_columns(columns_ref, facts_ref):
  for fact in range(columns_ref.shape[0]):
    columns_ref[fact] = _turn(facts_ref, fact)


def _turn(facts_ref, fact):
  """Returns one fact of [8, U] as [U, 128], the same number in all lanes."""
  fact_1U = facts_ref[fact : fact + 1]
  return jnp.broadcast_to(fact_1U, (_LANES, fact_1U.shape[1])).T


def _column(columns_ref, visited):
  """Returns a function that returns a fact of the marching side as columns."""
  W = visited[-1].shape[-1]

  def get(fact, dtype=jnp.float32):
    return jax.lax.bitcast_convert_type(_wide(columns_ref[fact], W), dtype)

  return get


def _lane(facts_ref):
  """Returns a function that returns a fact of the visited side, [1, W]."""

  def get(fact, dtype=jnp.float32):
    return jax.lax.bitcast_convert_type(facts_ref[fact : fact + 1], dtype)

  return get


def _wide(x_UE, size):
  """Returns columns [U, 128] of equal lanes as [U, size]."""
  return jnp.tile(x_UE, (1, -(-size // _LANES)))[:, :size]


def _by_lane(x_UW):
  """Returns the sum of x's registers: [U, W] -> [U, 128]."""
  return sum(x_UW[:, n : n + _LANES] for n in range(0, x_UW.shape[1], _LANES))

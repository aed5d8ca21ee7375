"""Visibility attention on a TPU's matrix unit, in Pallas.

Rows are query heads: all H heads of a token read the one K and V, so that
q_BLHK is L·H rows of K numbers, and a block of R rows fills the matrix unit
whatever H is. The plan tells which blocks of J keys a block of rows visits,
and the march (tpu_march.py) brings those and no others.

    forward     rows march over keys: out, lse
    backward    rows march over keys: dq
                keys march over rows: dk, dv

Nothing is scattered, so every sum has a fixed order. The mathematics is
chunked.py's, in base 2: the vector unit has only 2^x, so log2(e) goes into the
factor of the logits.

U, W are the rows and columns of a product: R, J where rows march, J, R where
keys do. The small facts of a row or key (what it sees, scales, lse, δ) travel
as one int32 [8, W], floats by their bits: lanes of the visited side. Those of
the marching side are turned into columns once a step, each repeated over a
register's 128 lanes. A pair of blocks with nothing to hide skips the mask.

Codes meet in the matrix unit as they are; values of codes are made in VMEM.
float32 operands are multiplied in full precision.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import plan as plan_lib
from kaiju_jax.kernels.visibility_attention import tpu_march

_LANES = 128
# Rows of an int32 register, which the facts of a side fill or waste.
_FACTS = 8
_LOG2E = math.log2(math.e)
# Below any logit, and finite, so that 2^(-inf - _LOWEST) is 0 and not NaN.
_LOWEST = -1e30

# Facts of a row. _HORIZON is the newest position that its window leaves out,
# _FACTOR its scale with the logits' factor, _LSE in base 2.
_COORDINATE, _HORIZON, _FACTOR, _LSE, _DELTA, _Q_SCALE = range(6)
# Facts of a key.
_START, _LIMIT, _POSITION, _K_SCALE, _V_SCALE = range(5)


class _Rows(NamedTuple):
  """Blocks of rows."""

  q_BXRK: Any
  dout_BXRK: Any
  facts_BXER: Any


class _Keys(NamedTuple):
  """Blocks of keys."""

  k_BYJK: Any
  v_BYJK: Any
  facts_BYEJ: Any


class _Channels(NamedTuple):
  """Scales per channel, [1, K]; None where there are none."""

  k_1K: Any
  v_1K: Any


class _Static(NamedTuple):
  """What the kernels know when they are compiled.

  Attributes:
    windowed: whether there is a window.
    scale: factor of the logits.
    integer_dot: whether QKᵀ is one of codes.
    dtype: of what meets in every other product.
  """

  windowed: bool
  scale: float
  integer_dot: bool
  dtype: Any


def forward(
  q_BLHK,
  k_BMK,
  v_BMK,
  start_BM,
  limit_BM,
  coordinate_BL,
  position_BL,
  position_BM,
  *,
  window,
  scale,
  q_scale_BLH,
  k_scale,
  v_scale,
  dtype,
):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  B, L, H, K = q_BLHK.shape
  ranges = start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  sizes = blocks.tpu_sizes(L, k_BMK.shape[1], H, window)
  static, rows, keys, channels = _prepare(
    sizes,
    q_BLHK,
    k_BMK,
    v_BMK,
    ranges,
    window,
    scale,
    dtype,
    (q_scale_BLH, k_scale, v_scale),
    None,
    (),
  )
  sees_BXY = _sees(ranges, window, H, sizes)
  orders = tpu_march.orders(
    plan_lib.of_queries(sees_BXY), _whole(rows, keys, static)
  )
  R = sizes.R
  X = rows.q_BXRK.shape[1]
  out_BXRK, lse_BX1R = tpu_march.march(
    functools.partial(_forward, static),
    orders,
    rows,
    keys,
    channels,
    (
      jax.ShapeDtypeStruct((B, X, R, K), dtype),
      jax.ShapeDtypeStruct((B, X, 1, R), jnp.float32),
    ),
    (
      pltpu.VMEM((_FACTOR + 1, R, _LANES), jnp.int32),
      pltpu.VMEM((R, _LANES), jnp.float32),
      pltpu.VMEM((R, _LANES), jnp.float32),
      pltpu.VMEM((R, K), jnp.float32),
    ),
    name='visibility_attention_forward',
  )
  return _join(out_BXRK, (B, L, H, K)), _join(
    lse_BX1R.reshape(B, X, R), (B, L, H)
  )


def backward(
  q_BLHK,
  k_BMK,
  v_BMK,
  start_BM,
  limit_BM,
  coordinate_BL,
  position_BL,
  position_BM,
  out_BLHK,
  lse_BLH,
  dout_BLHK,
  dlse_BLH,
  *,
  window,
  scale,
  q_scale_BLH,
  k_scale,
  v_scale,
):
  """Returns (dq_BLHK, dk_BMK, dv_BMK) of the dequantized values."""
  B, L, H, K = q_BLHK.shape
  M = k_BMK.shape[1]
  dtype = out_BLHK.dtype
  ranges = start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  sizes = blocks.tpu_sizes(L, M, H, window)
  product_BLHK = dout_BLHK.astype(jnp.float32) * out_BLHK.astype(jnp.float32)
  delta_BLH = product_BLHK.sum(axis=-1) - dlse_BLH
  static, rows, keys, channels = _prepare(
    sizes,
    q_BLHK,
    k_BMK,
    v_BMK,
    ranges,
    window,
    scale,
    dtype,
    (q_scale_BLH, k_scale, v_scale),
    dout_BLHK,
    (lse_BLH, delta_BLH),
  )
  sees_BXY = _sees(ranges, window, H, sizes)
  whole_BXY = _whole(rows, keys, static)
  R, J = sizes.R, sizes.J
  X, Y = sees_BXY.shape[1:]
  dq_BXRK = tpu_march.march(
    functools.partial(_backward_rows, static),
    tpu_march.orders(plan_lib.of_queries(sees_BXY), whole_BXY),
    rows,
    keys,
    channels,
    jax.ShapeDtypeStruct((B, X, R, K), _float_dtype(q_BLHK, dtype)),
    (
      pltpu.VMEM((_DELTA + 1, R, _LANES), jnp.int32),
      pltpu.VMEM((R, K), jnp.float32),
    ),
    name='visibility_attention_dq',
  )
  dk_BYJK, dv_BYJK = tpu_march.march(
    functools.partial(_backward_keys, static),
    tpu_march.orders(plan_lib.of_keys(sees_BXY), whole_BXY.swapaxes(1, 2)),
    keys,
    rows,
    channels,
    (
      jax.ShapeDtypeStruct((B, Y, J, K), _float_dtype(k_BMK, dtype)),
      jax.ShapeDtypeStruct((B, Y, J, K), _float_dtype(v_BMK, dtype)),
    ),
    (
      pltpu.VMEM((_K_SCALE + 1, J, _LANES), jnp.int32),
      pltpu.VMEM((J, K), jnp.int8 if static.integer_dot else dtype),
      pltpu.VMEM((J, K), dtype),
      pltpu.VMEM((J, K), jnp.float32),
      pltpu.VMEM((J, K), jnp.float32),
    ),
    name='visibility_attention_dk_dv',
  )
  return (
    _join(dq_BXRK, (B, L, H, K)),
    _join(dk_BYJK, (B, M, K)),
    _join(dv_BYJK, (B, M, K)),
  )


def _forward(static, visit, rows, channels, outputs, scratch):
  """The online softmax of one block of rows."""
  columns_ref, peak_ref, total_ref, sum_ref = scratch
  out_ref, lse_ref = outputs
  _set_columns(columns_ref, rows.facts_BXER)
  peak_ref[...] = jnp.full_like(peak_ref, _LOWEST)
  total_ref[...] = jnp.zeros_like(total_ref)
  sum_ref[...] = jnp.zeros_like(sum_ref)

  def step(keys, masked):
    row, key = _column(columns_ref, keys), _lane(keys.facts_BYEJ)
    k_JK = _k_operand(static, keys, channels)
    logits_RJ = _logits(static, rows.q_BXRK[...], k_JK, row, key, masked)
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
  inverse_R1 = 1 / jnp.where(total_R1 > 0, total_R1, 1.0)
  out_ref[...] = (sum_ref[...] * inverse_R1).astype(out_ref.dtype)
  first = jax.lax.broadcasted_iota(jnp.int32, peak_ref.shape, 1) == 0
  both_ER = jnp.where(first, peak_ref[...], total_R1).T
  peak_1R, total_1R = both_ER[:1], both_ER[1:2]
  lse_1R = (peak_1R + jnp.log2(total_1R)) / _LOG2E
  lse_ref[...] = jnp.where(total_1R > 0, lse_1R, 0.0)


def _backward_rows(static, visit, rows, channels, dq_ref, scratch):
  """dq of one block of rows."""
  columns_ref, sum_ref = scratch
  _set_columns(columns_ref, rows.facts_BXER)
  sum_ref[...] = jnp.zeros_like(sum_ref)

  def step(keys, masked):
    row, key = _column(columns_ref, keys), _lane(keys.facts_BYEJ)
    k_JK = _k_operand(static, keys, channels)
    logits_RJ = _logits(static, rows.q_BXRK[...], k_JK, row, key, masked)
    weights_RJ = jnp.exp2(logits_RJ - row(_LSE))
    dweights_RJ = _product_transposed(
      rows.dout_BXRK[...], _v_values(static, keys, channels)
    )
    dlogits_RJ = weights_RJ * (dweights_RJ - row(_DELTA))
    sum_ref[...] += _product(
      dlogits_RJ.astype(static.dtype), _k_values(static, keys, channels)
    )

  visit(step)
  dq_ref[...] = (static.scale * sum_ref[...]).astype(dq_ref.dtype)


def _backward_keys(static, visit, keys, channels, outputs, scratch):
  """dk and dv of one block of keys."""
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
      static, rows.q_BXRK[...], k_ref[...], row, key, masked, keys_march=True
    )
    weights_JR = jnp.exp2(logits_JR - row(_LSE))
    dout_RK = rows.dout_BXRK[...]
    dv_sum_ref[...] += _product(weights_JR.astype(static.dtype), dout_RK)
    dweights_JR = _product_transposed(v_ref[...], dout_RK)
    dlogits_JR = weights_JR * (dweights_JR - row(_DELTA))
    q_RK = _values(rows.q_BXRK[...], rows.facts_BXER, _Q_SCALE, None, static)
    dk_sum_ref[...] += _product(dlogits_JR.astype(static.dtype), q_RK)

  visit(step)
  dk_ref[...] = (static.scale * dk_sum_ref[...]).astype(dk_ref.dtype)
  dv_ref[...] = dv_sum_ref[...].astype(dv_ref.dtype)


def _logits(static, q_RK, k_JK, row, key, masked, keys_march=False):
  """logits_UW in base 2, -inf where the row does not see the key."""
  operands = (k_JK, q_RK) if keys_march else (q_RK, k_JK)
  logits_UW = _product_transposed(*operands)
  if static.integer_dot:
    logits_UW = logits_UW.astype(jnp.float32)
    logits_UW = logits_UW * row(_FACTOR) * key(_K_SCALE)
  else:
    logits_UW = logits_UW * (static.scale * _LOG2E)
  if not masked:
    return logits_UW
  coordinate = row(_COORDINATE, jnp.int32)
  visible = (key(_START, jnp.int32) <= coordinate) & (
    coordinate < key(_LIMIT, jnp.int32)
  )
  if static.windowed:
    visible &= row(_HORIZON, jnp.int32) < key(_POSITION, jnp.int32)
  return jnp.where(visible, logits_UW, -jnp.inf)


def _product(a_UW, b_WK):
  """a · b in float32."""
  return _dot(a_UW, b_WK, 0)


def _product_transposed(a_UK, b_WK):
  """a · bᵀ in float32, or in int32 where both are codes."""
  return _dot(a_UK, b_WK, 1)


def _dot(a, b, axis):
  precise = a.dtype == jnp.float32
  return jax.lax.dot_general(
    a,
    b,
    (((1,), (axis,)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if precise else None,
    preferred_element_type=jnp.int32 if a.dtype == jnp.int8 else jnp.float32,
  )


def _k_operand(static, keys, channels):
  """What the logits are made of: codes, or values."""
  if static.integer_dot:
    return keys.k_BYJK[...]
  return _k_values(static, keys, channels)


def _k_values(static, keys, channels):
  return _values(
    keys.k_BYJK[...], keys.facts_BYEJ, _K_SCALE, channels.k_1K, static
  )


def _v_values(static, keys, channels):
  return _values(
    keys.v_BYJK[...], keys.facts_BYEJ, _V_SCALE, channels.v_1K, static
  )


def _values(x_UK, facts_EU, fact, channel_ref, static):
  """Floats as given; codes by their channel's scale, or else their token's."""
  if x_UK.dtype != jnp.int8:
    return x_UK
  if channel_ref is None:
    scale = _wide(_turned(facts_EU, fact), x_UK.shape[1])
    scale = jax.lax.bitcast_convert_type(scale, jnp.float32)
  else:
    scale = channel_ref[...]
  # By way of int32, for there is no conversion from int8 to float.
  return (x_UK.astype(jnp.int32).astype(jnp.float32) * scale).astype(
    static.dtype
  )


def _set_columns(columns_ref, facts_ref):
  for fact in range(columns_ref.shape[0]):
    columns_ref[fact] = _turned(facts_ref, fact)


def _turned(facts_ref, fact):
  """[8, U] -> [U, 128], the same number in all lanes."""
  fact_1U = facts_ref[fact : fact + 1]
  return jnp.broadcast_to(fact_1U, (_LANES, fact_1U.shape[1])).T


def _column(columns_ref, visited):
  """Gives facts of the marching side, for products with the visited one."""
  W = visited[-1].shape[-1]

  def get(fact, dtype=jnp.float32):
    return jax.lax.bitcast_convert_type(_wide(columns_ref[fact], W), dtype)

  return get


def _lane(facts_ref):
  """Gives facts of the visited side, [1, W]."""

  def get(fact, dtype=jnp.float32):
    return jax.lax.bitcast_convert_type(facts_ref[fact : fact + 1], dtype)

  return get


def _wide(x_UE, size):
  """Repeats what is the same in all 128 lanes over `size` of them."""
  return jnp.tile(x_UE, (1, -(-size // _LANES)))[:, :size]


def _by_lane(x_UW):
  """Sums over registers: [U, W] -> [U, 128]."""
  return sum(x_UW[:, n : n + _LANES] for n in range(0, x_UW.shape[1], _LANES))


def _prepare(
  sizes,
  q_BLHK,
  k_BMK,
  v_BMK,
  ranges,
  window,
  scale,
  dtype,
  scales,
  dout_BLHK,
  cotangents,
):
  """Cuts both sides into blocks.

  Padding rows repeat the last, so that no bound grows looser, and have no
  cotangent. Padding keys have start = limit = 0: empty slots.
  """
  q_scale_BLH, k_scale, v_scale = scales
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM = ranges
  B, L, H = q_BLHK.shape[:3]
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, k_scale)
  if not integer_dot:
    q_BLHK = codes.dequantize(q_BLHK, q_scale_BLH, dtype)
    q_scale_BLH = None

  def cut_rows(x_BLH, mode='edge'):
    return _cut(x_BLH.reshape(B, L * H, *x_BLH.shape[3:]), sizes.R, mode)

  def of_token(x_BL):
    return cut_rows(jnp.broadcast_to(x_BL[:, :, None], (B, L, H)))

  facts = {
    _COORDINATE: of_token(coordinate_BL),
    _HORIZON: of_token(position_BL - (window or 0)),
  }
  if integer_dot:
    facts[_FACTOR] = cut_rows(q_scale_BLH * (scale * _LOG2E))
    facts[_Q_SCALE] = cut_rows(q_scale_BLH)
  if cotangents:
    lse_BLH, delta_BLH = cotangents
    facts[_LSE] = cut_rows(lse_BLH * _LOG2E)
    facts[_DELTA] = cut_rows(delta_BLH, 'constant')
    dout_BLHK = cut_rows(dout_BLHK.astype(dtype), 'constant')
  rows = _Rows(cut_rows(q_BLHK), dout_BLHK, _facts(facts))
  facts = {
    _START: _cut(start_BM, sizes.J),
    _LIMIT: _cut(limit_BM, sizes.J),
    _POSITION: _cut(position_BM, sizes.J),
  }
  channels = []
  for fact, x in (_K_SCALE, k_scale), (_V_SCALE, v_scale):
    per_channel = x is not None and x.ndim == 1
    channels.append(x.astype(jnp.float32)[None] if per_channel else None)
    if x is not None and not per_channel:
      facts[fact] = _cut(x, sizes.J)
  keys = _Keys(_cut(k_BMK, sizes.J), _cut(v_BMK, sizes.J), _facts(facts))
  static = _Static(window is not None, scale, integer_dot, dtype)
  return static, rows, keys, _Channels(*channels)


def _facts(facts):
  """{fact: [B, X, R]} -> int32[B, X, 8, R]."""
  some = next(iter(facts.values()))
  rows = [
    jax.lax.bitcast_convert_type(
      x if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(jnp.float32),
      jnp.int32,
    )
    for x in (facts.get(n, jnp.zeros_like(some)) for n in range(_FACTS))
  ]
  return jnp.stack(rows, axis=2)


def _sees(ranges, window, heads, sizes):
  return plan_lib.sees(*ranges, window, sizes.R, heads, sizes.J)


def _whole(rows, keys, static):
  """bool[B, X, Y]: whether all rows of a block see all keys of another."""
  facts_BXER, facts_BYEJ = rows.facts_BXER, keys.facts_BYEJ

  def of_rows(reduce, fact):
    return reduce(facts_BXER[:, :, fact], axis=-1)[:, :, None]

  def of_keys(reduce, fact):
    return reduce(facts_BYEJ[:, :, fact], axis=-1)[:, None, :]

  whole_BXY = (of_keys(jnp.max, _START) <= of_rows(jnp.min, _COORDINATE)) & (
    of_rows(jnp.max, _COORDINATE) < of_keys(jnp.min, _LIMIT)
  )
  if not static.windowed:
    return whole_BXY
  return whole_BXY & (of_rows(jnp.max, _HORIZON) < of_keys(jnp.min, _POSITION))


def _cut(x, size, mode='constant'):
  """[B, L, …] -> [B, X, size, …], padded at the end of each row."""
  spare = -x.shape[1] % size
  x = jnp.pad(x, [(0, 0), (0, spare)] + [(0, 0)] * (x.ndim - 2), mode=mode)
  return x.reshape(x.shape[0], -1, size, *x.shape[2:])


def _join(x, shape):
  """Undoes `_cut`: [B, X, R, …] -> `shape`, without the padding."""
  B, X, size = x.shape[:3]
  x = x.reshape(B, X * size, *x.shape[3:])
  count = math.prod(shape[1:]) // math.prod(x.shape[2:])
  return x[:, :count].reshape(shape)


def _float_dtype(x, dtype):
  return dtype if x.dtype == jnp.int8 else x.dtype

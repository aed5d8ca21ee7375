"""Paged decode for GPUs, in Pallas Triton.

A program takes R rows (queries times heads) of one row of the batch, and visits
one split of that row's pages, J slots at a time. It reads an index per slot
from the plan and gathers the slots' keys and values by it, for any page size.
Tiles of pages seen whole come first, without a mask, then the others. Each
split writes a partial output and lse, which XLA merges.

Scales per channel are applied outside the kernel: k's to the queries, v's to
the output. In the kernel, k's scale per token multiplies the logits and v's the
weights. So the matrix unit multiplies codes: QKᵀ in int8 where q is codes, PV
with v's codes in `dtype`, which represents them exactly.
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
from kaiju_jax.kernels.paged_decode import partials
from kaiju_jax.kernels.paged_decode import rows as rows_lib

_LOG2_E = math.log2(math.e)


class _Operands(NamedTuple):
  """The kernel's operands; a scale is None where its operand is floats.

  T is the slots of the whole pool; B, M, L, N are as in `api.decode`.
  """

  q_BRK: Any
  q_scale_BR: Any
  k_TK: Any
  v_TK: Any
  k_scale_T: Any
  v_scale_T: Any
  start_BM: Any
  limit_BM: Any
  coordinate_BL: Any
  position_BL: Any
  position_BM: Any
  logical_BN: Any
  page_BN: Any
  full_B: Any
  count_B: Any


def decode(q_BLHK, k_PSK, v_PSK, ranges, scales, call):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  sizes, dtype = call.sizes, call.dtype
  B, L, H, K = q_BLHK.shape
  S = k_PSK.shape[1]
  rows, X = L * H, sizes.X
  q_BRK, q_scale_BR = rows_lib.pack(q_BLHK, k_PSK, scales, dtype)

  def flat(scale):
    scale_PS = rows_lib.per_token(scale)
    return None if scale_PS is None else scale_PS.reshape(-1)

  operands = _Operands(
    q_BRK,
    q_scale_BR,
    k_PSK.reshape(-1, K),
    v_PSK.reshape(-1, K),
    flat(scales.k),
    flat(scales.v),
    *ranges,
    *call.plan,
  )
  out_XBRK, lse_XBR = pl.pallas_call(
    functools.partial(
      _kernel,
      sizes=sizes,
      heads=H,
      slots=S,
      factor=call.scale * _LOG2_E,
      window=call.window,
      dtype=dtype,
    ),
    # Tiles of one row's queries run next to each other: they read the same
    # keys, which the cache then holds.
    grid=(-(-rows // sizes.R), X, B),
    out_shape=(
      jax.ShapeDtypeStruct((X, B, rows, K), jnp.float32),
      jax.ShapeDtypeStruct((X, B, rows), jnp.float32),
    ),
    compiler_params=plgpu.CompilerParams(
      num_warps=sizes.warps, num_stages=sizes.stages
    ),
    interpret=dispatch.interpreting(),
    name='paged_decode',
  )(operands)
  out_BRK, lse_BR = partials.combine(out_XBRK, lse_XBR)
  return rows_lib.unpack(out_BRK, lse_BR, scales.v, q_BLHK.shape, dtype)


def _kernel(
  refs, out_ref, lse_ref, *, sizes, heads, slots, factor, window, dtype
):
  """Attends from one tile of rows to one split; see the module."""
  tile, split, b = pl.program_id(0), pl.program_id(1), pl.program_id(2)
  rows = refs.q_BRK.shape[1]
  row_R = tile * sizes.R + jnp.arange(sizes.R, dtype=jnp.int32)
  # A partial tile repeats the last row, and does not store the repetitions.
  read_R = jnp.minimum(row_R, rows - 1)
  q_RK = refs.q_BRK[b, read_R, :]
  factor_R1 = factor
  if refs.q_scale_BR is not None:
    factor_R1 = (factor * refs.q_scale_BR[b, read_R])[:, None]
  visible = _visibility(refs, b, read_R, heads, window)

  def step(n, carry, masked):
    peak_R, total_R, sum_RK = carry
    place, slot = _where(n, sizes.J, slots)
    if masked:
      inside = place < count
      place = jnp.minimum(place, count - 1)
      logical = refs.logical_BN[b, place]
      visible_RJ = visible(logical * slots + slot)
      if place.ndim:
        visible_RJ &= inside[None]
    else:
      visible_RJ = None
    token_J = refs.page_BN[b, place] * slots + slot
    logits_RJ = _logits(refs, q_RK, token_J) * factor_R1
    if masked:
      logits_RJ = jnp.where(visible_RJ, logits_RJ, -jnp.inf)
    new_peak_R = jnp.maximum(peak_R, logits_RJ.max(axis=1))
    weights_RJ = _exp2(logits_RJ - new_peak_R[:, None])
    decay_R = _exp2(peak_R - new_peak_R)
    product_RK = _product(refs, weights_RJ, visible_RJ, token_J, dtype)
    return (
      new_peak_R,
      total_R * decay_R + weights_RJ.sum(axis=1),
      sum_RK * decay_R[:, None] + product_RK,
    )

  count = refs.count_B[b]
  tiles = pl.cdiv(count * slots, sizes.J)
  # The number of tiles that hold only pages seen whole.
  whole = jax.lax.div(refs.full_B[b] * slots, sizes.J)
  first = jax.lax.div(tiles * split, sizes.X)
  last = jax.lax.div(tiles * (split + 1), sizes.X)
  carry = (
    jnp.full((sizes.R,), softmax.LOWEST, jnp.float32),
    jnp.zeros((sizes.R,), jnp.float32),
    jnp.zeros(q_RK.shape, jnp.float32),
  )
  carry = jax.lax.fori_loop(
    first,
    jnp.minimum(last, whole),
    functools.partial(step, masked=False),
    carry,
  )
  peak_R, total_R, sum_RK = jax.lax.fori_loop(
    jnp.maximum(first, whole),
    last,
    functools.partial(step, masked=True),
    carry,
  )
  # `== 0`, not `> 0`: a NaN is not a blind query.
  blind_R = total_R == 0
  total_R = jnp.where(blind_R, 1.0, total_R)
  lse_R = jnp.where(blind_R, -jnp.inf, peak_R / _LOG2_E + jnp.log(total_R))
  out_RK = sum_RK / total_R[:, None]
  inside_R = row_R < rows
  column_K = jnp.arange(out_RK.shape[1], dtype=jnp.int32)
  plgpu.store(
    out_ref.at[split, b, row_R[:, None], column_K[None]],
    out_RK,
    mask=jnp.broadcast_to(inside_R[:, None], out_RK.shape),
  )
  plgpu.store(lse_ref.at[split, b, row_R], lse_R, mask=inside_R)


def _where(n, keys, slots):
  """Returns, for a tile's J keys, the page's place in the plan and the slot.

  A tile within one page has one place. It is a scalar, because the compiler
  counts loads of a tensor of addresses as stages of its pipeline.
  """
  if slots % keys:
    offset_J = n * keys + jnp.arange(keys, dtype=jnp.int32)
    return jax.lax.div(offset_J, slots), jax.lax.rem(offset_J, slots)
  tiles = slots // keys
  slot_J = jax.lax.rem(n, tiles) * keys + jnp.arange(keys, dtype=jnp.int32)
  return jax.lax.div(n, tiles), slot_J


def _visibility(refs, b, row_R, heads, window):
  """Returns a function: logical slots [J] -> bool[R, J], or [1, J] if L = 1."""
  queries = refs.coordinate_BL.shape[1]
  if queries == 1:
    query_R = jnp.zeros((1,), jnp.int32)
  else:
    query_R = jax.lax.div(row_R, heads)
  coordinate_R1 = refs.coordinate_BL[b, query_R][:, None]
  position_R1 = refs.position_BL[b, query_R][:, None]

  def visible(slot_J):
    start_J = refs.start_BM[b, slot_J]
    limit_J = refs.limit_BM[b, slot_J]
    visible_RJ = (start_J[None] <= coordinate_R1) & (
      coordinate_R1 < limit_J[None]
    )
    if window is None:
      return visible_RJ
    position_J = refs.position_BM[b, slot_J]
    return visible_RJ & (position_R1 - position_J[None] < window)

  return visible


def _logits(refs, q_RK, token_J):
  """Returns q · k of a tile in float32, without the scales of q."""
  k_JK = refs.k_TK[token_J, :]
  if refs.q_scale_BR is not None:
    logits_RJ = _dot(q_RK, k_JK, 1, jnp.int32).astype(jnp.float32)
  else:
    if k_JK.dtype == jnp.int8:
      k_JK = k_JK.astype(q_RK.dtype)
    both = jnp.promote_types(q_RK.dtype, k_JK.dtype)
    logits_RJ = _dot(q_RK.astype(both), k_JK.astype(both), 1, jnp.float32)
  if refs.k_scale_T is None:
    return logits_RJ
  return logits_RJ * refs.k_scale_T[token_J][None]


def _product(refs, weights_RJ, visible_RJ, token_J, dtype):
  """Returns weights · v of a tile, even if unseen slots hold NaN."""
  v_JK = refs.v_TK[token_J, :]
  if refs.v_scale_T is not None:
    weights_RJ *= refs.v_scale_T[token_J][None]
    if visible_RJ is not None:
      weights_RJ = jnp.where(visible_RJ, weights_RJ, 0.0)
  weights_RJ = weights_RJ.astype(dtype)
  if v_JK.dtype == jnp.int8:
    v_JK = v_JK.astype(dtype)
  elif visible_RJ is not None:
    seen_J = visible_RJ.astype(jnp.int32).max(axis=0) > 0
    v_JK = jnp.where(seen_J[:, None], v_JK, jnp.zeros_like(v_JK))
  both = jnp.promote_types(dtype, v_JK.dtype)
  return _dot(weights_RJ.astype(both), v_JK.astype(both), 0, jnp.float32)


def _exp2(x):
  """Returns 2^x by one instruction; results below the normal floats become 0.

  jnp.exp2 would keep such results, by four more instructions that scale x and
  the result.
  """
  if dispatch.interpreting():
    return jnp.exp2(x)
  return plgpu.elementwise_inline_asm(
    'ex2.approx.ftz.f32 $0, $1;',
    args=[x],
    constraints='=f,f',
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
  )[0]


def _dot(a, b, contracted, dtype):
  """Returns a · b over b's axis `contracted`, float32 in full precision."""
  return jax.lax.dot_general(
    a,
    b,
    (((1,), (contracted,)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
    preferred_element_type=dtype,
  )

"""Visibility attention's forward pass in Triton itself, called by jax-triton.

    s = scale · log2 e · q · k,   p = 2^(s - peak),   peak = max s so far
    out = Σ p · v / Σ p,          lse = (peak + log2 Σ p) / log2 e

It has the tiles and lists of `pallas_gpu`: a program takes I rows of [B, L·H,
K] and visits the key blocks of its list (`plan`), first those that the whole
tile sees in full, then the others under the mask. JAX 0.12 deprecates Pallas'
Triton backend in favour of jax-triton; the backward pass is still Pallas'.

While JAX traces a function, jax-triton makes Triton compile the kernel, for the
present GPU or, without one, for an H100. Under `dispatch.interpret()` Triton's
own interpreter runs the kernel (`triton_interpreter`).

float32 operands are multiplied in TF32, as everywhere in JAX on such a GPU.
"""

import os

import jax
import jax.numpy as jnp

try:
  import jax_triton
  import triton
  import triton.language as tl
except ImportError as error:
  raise ImportError(
    "implementation='triton_kernel' needs jax-triton and JAX's GPU plug-in:"
    " pip install 'kaiju_jax[triton,cuda]'."
  ) from error

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import softmax
from kaiju_jax.kernels import triton_interpreter
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import pallas_gpu
from kaiju_jax.kernels.visibility_attention import plan

backward = pallas_gpu.backward

# jax-triton gives PTX to JAX, which assembles it with CUDA's assembler. Triton
# has two assemblers of its own. For an H100 it writes PTX in the newer one's
# version, which an older CUDA refuses. This variable selects the older one.
os.environ.setdefault(
  'TRITON_PTXAS_BLACKWELL_PATH', triton.knobs.nvidia.ptxas.path
)

# A Triton kernel can read no globals except constexpr ones.
LOWEST = tl.constexpr(softmax.LOWEST)
LOG2E = tl.constexpr(softmax.LOG2E)


def forward(q_BLHK, k_BMK, v_BMK, ranges, scales, *, window, scale, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  B, L, H, K = q_BLHK.shape
  M = k_BMK.shape[1]
  q_scale_BLH, k_scale, v_scale = scales
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, k_scale)
  if not integer_dot:
    q_BLHK = codes.dequantize(q_BLHK, q_scale_BLH, dtype)
    k_BMK = codes.dequantize(k_BMK, k_scale, dtype)
    common = jnp.promote_types(q_BLHK.dtype, k_BMK.dtype)
    q_BLHK, k_BMK = q_BLHK.astype(common), k_BMK.astype(common)
  if v_scale is None:
    v_BMK = v_BMK.astype(jnp.promote_types(v_BMK.dtype, dtype))
  product_dtype = dtype if v_scale is not None else v_BMK.dtype
  wide = max(32, triton.next_power_of_2(K))
  tiles = blocks.gpu(
    blocks.TRITON,
    rows=L * H,
    memory=M,
    window=window,
    head_dim=wide,
    itemsize=jnp.dtype(product_dtype).itemsize,
    integer_dot=integer_dot,
  )
  shared = blocks.plan_tiles(tiles.rows, H)
  sizes = window, tiles.rows * shared, H, tiles.keys
  lists = plan.full_first(plan.sees(ranges, *sizes), plan.full(ranges, *sizes))
  none = lists.full_BX  # A placeholder for a pointer that the kernel ignores.
  out_BRK, lse_BR = _launch(
    visibility_attention_forward,
    [
      *lists,
      q_BLHK.reshape(B, L * H, K),
      q_scale_BLH.reshape(B, L * H) if integer_dot else none,
      ranges.coordinate_BL,
      ranges.position_BL,
      k_BMK,
      k_scale if integer_dot else none,
      v_BMK,
      none if v_scale is None else v_scale,
      ranges.start_BM,
      ranges.limit_BM,
      ranges.position_BM,
    ],
    [
      jax.ShapeDtypeStruct((B, L * H, K), dtype),
      jax.ShapeDtypeStruct((B, L * H), jnp.float32),
    ],
    (triton.cdiv(L * H, tiles.rows), B),
    tiles,
    {
      'R': L * H,
      'L': L,
      'M': M,
      'H': H,
      'K': K,
      'X': lists.list_BXY.shape[1],
      'Y': lists.list_BXY.shape[2],
      'I': tiles.rows,
      'J': tiles.keys,
      'WIDE': wide,
      'SHARED': shared,
      'WINDOW': window or 0,
      'SCALE': scale * softmax.LOG2E,
      'INTEGER_DOT': integer_dot,
      'V_SCALES': 0 if v_scale is None else v_scale.ndim,
    },
  )
  return out_BRK.reshape(B, L, H, K), lse_BR.reshape(B, L, H)


def _launch(kernel, operands, results, grid, tiles, constants):
  """Runs a Triton kernel on the GPU, or in its interpreter."""
  if dispatch.interpreting():
    return triton_interpreter.run(kernel, operands, results, grid, constants)
  return jax_triton.triton_call(
    *operands,
    kernel=kernel,
    out_shape=results,
    grid=grid,
    num_warps=tiles.warps,
    num_stages=tiles.stages,
    # Without a GPU, Triton compiles for an H100.
    compute_capability=None if jax.default_backend() == 'gpu' else 90,
    **constants,
  )


@triton.jit
def visibility_attention_forward(
  full_BX,
  count_BX,
  list_BXY,
  q_BRK,
  q_scale_BR,
  coordinate_BL,
  position_BL,
  k_BMK,
  k_scale_BM,
  v_BMK,
  v_scale,
  start_BM,
  limit_BM,
  position_BM,
  out_BRK,
  lse_BR,
  R: tl.constexpr,
  L: tl.constexpr,
  M: tl.constexpr,
  H: tl.constexpr,
  K: tl.constexpr,
  X: tl.constexpr,
  Y: tl.constexpr,
  I: tl.constexpr,
  J: tl.constexpr,
  WIDE: tl.constexpr,
  SHARED: tl.constexpr,
  WINDOW: tl.constexpr,
  SCALE: tl.constexpr,
  INTEGER_DOT: tl.constexpr,
  V_SCALES: tl.constexpr,
):
  # The last tile goes first, because it has most work in a causal row.
  x = tl.num_programs(0) - 1 - tl.program_id(0)
  # A batch may hold more than 2^31 numbers; a row of it does not.
  b = tl.program_id(1).to(tl.int64)
  row_I = x * I + tl.arange(0, I)
  there_I = row_I < R
  column_K = tl.arange(0, WIDE)
  place_IK = row_I[:, None] * K + column_K[None, :]
  there_IK = there_I[:, None] & (column_K[None, :] < K)
  q_IK = tl.load(q_BRK + b * (R * K) + place_IK, mask=there_IK, other=0)
  token_I = tl.minimum(row_I // H, L - 1)
  coordinate_I = tl.load(coordinate_BL + b * L + token_I)
  # Without a window the kernel does not read near_I.
  near_I = coordinate_I
  if WINDOW > 0:
    near_I = tl.load(position_BL + b * L + token_I)
  factor_I = tl.full([I], SCALE, tl.float32)
  if INTEGER_DOT:
    factor_I *= tl.load(q_scale_BR + b * R + row_I, mask=there_I, other=0)

  full = tl.load(full_BX + b * X + x // SHARED)
  count = tl.load(count_BX + b * X + x // SHARED)
  peak_I = tl.full([I], LOWEST, tl.float32)
  total_I = tl.zeros([I], tl.float32)
  sum_IK = tl.zeros([I, WIDE], tl.float32)
  for is_partial in tl.static_range(2):
    peak_I, total_I, sum_IK = _march(
      peak_I,
      total_I,
      sum_IK,
      full * is_partial,
      full + (count - full) * is_partial,
      list_BXY + (b * X + x // SHARED) * Y,
      q_IK,
      factor_I,
      coordinate_I,
      near_I,
      k_BMK + b * (M * K),
      k_scale_BM + b * M * INTEGER_DOT,
      v_BMK + b * (M * K),
      v_scale + b * M * (V_SCALES == 2),
      start_BM + b * M,
      limit_BM + b * M,
      position_BM + b * M,
      M,
      K,
      J,
      WIDE,
      WINDOW,
      SCALE,
      INTEGER_DOT,
      V_SCALES,
      out_BRK.dtype.element_ty,
      is_partial,
    )

  # `== 0`, not `> 0`: a NaN is not a blind query.
  blind_I = total_I == 0
  total_I = tl.where(blind_I, 1.0, total_I)
  if V_SCALES == 1:
    v_scale_K = tl.load(v_scale + column_K, mask=column_K < K, other=0)
    sum_IK *= v_scale_K[None, :]
  out_IK = (sum_IK / total_I[:, None]).to(out_BRK.dtype.element_ty)
  tl.store(out_BRK + b * (R * K) + place_IK, out_IK, mask=there_IK)
  lse_I = (_to_base_2(SCALE, INTEGER_DOT) * peak_I + tl.log2(total_I)) / LOG2E
  lse_I = tl.where(blind_I, 0.0, lse_I)
  tl.store(lse_BR + b * R + row_I, lse_I, mask=there_I)


@triton.jit
def _march(
  peak_I,
  total_I,
  sum_IK,
  first,
  end,
  list_Y,
  q_IK,
  factor_I,
  coordinate_I,
  near_I,
  k_MK,
  k_scale_M,
  v_MK,
  v_scale_M,
  start_M,
  limit_M,
  position_M,
  M: tl.constexpr,
  K: tl.constexpr,
  J: tl.constexpr,
  WIDE: tl.constexpr,
  WINDOW: tl.constexpr,
  SCALE: tl.constexpr,
  INTEGER_DOT: tl.constexpr,
  V_SCALES: tl.constexpr,
  DTYPE: tl.constexpr,
  IS_PARTIAL: tl.constexpr,
):
  """Folds the key blocks first … end - 1 of the list into the softmax."""
  factor: tl.constexpr = _to_base_2(SCALE, INTEGER_DOT)
  column_K = tl.arange(0, WIDE)
  for n in tl.range(first, end):
    key_J = tl.load(list_Y + n) * J + tl.arange(0, J)
    place_JK = key_J[:, None] * K + column_K[None, :]
    there_J = key_J < M
    there_JK = there_J[:, None] & (column_K[None, :] < K)
    # A block that is seen in full lies within the array.
    k_JK = _load(k_MK + place_JK, there_JK, IS_PARTIAL or WIDE != K)
    if INTEGER_DOT:
      k_scale_J = _load(k_scale_M + key_J, there_J, IS_PARTIAL)
      product_IJ = tl.dot(q_IK, tl.trans(k_JK), out_dtype=tl.int32)
      s_IJ = product_IJ.to(tl.float32) * factor_I[:, None] * k_scale_J[None, :]
    else:
      s_IJ = tl.dot(q_IK, tl.trans(k_JK))
      if SCALE <= 0:
        s_IJ *= SCALE
    if IS_PARTIAL:
      # A key beyond the array has start = limit = 0.
      start_J = tl.load(start_M + key_J, mask=there_J, other=0)
      limit_J = tl.load(limit_M + key_J, mask=there_J, other=0)
      visible_IJ = (start_J[None, :] <= coordinate_I[:, None]) & (
        coordinate_I[:, None] < limit_J[None, :]
      )
      if WINDOW > 0:
        far_J = tl.load(position_M + key_J, mask=there_J, other=0)
        visible_IJ &= near_I[:, None] - far_J[None, :] < WINDOW
      s_IJ = tl.where(visible_IJ, s_IJ, float('-inf'))
    new_peak_I = tl.maximum(peak_I, tl.max(s_IJ, axis=1))
    p_IJ = tl.exp2(factor * s_IJ - (factor * new_peak_I)[:, None])
    decay_I = tl.exp2(factor * (peak_I - new_peak_I))
    total_I = total_I * decay_I + tl.sum(p_IJ, axis=1)
    v_JK = _load(v_MK + place_JK, there_JK, IS_PARTIAL or WIDE != K)
    if V_SCALES == 2:
      p_IJ *= _load(v_scale_M + key_J, there_J, IS_PARTIAL)[None, :]
    if V_SCALES > 0:
      v_JK = v_JK.to(DTYPE)
    sum_IK = tl.dot(p_IJ.to(v_JK.dtype), v_JK, sum_IK * decay_I[:, None])
    peak_I = new_peak_I
  return peak_I, total_I, sum_IK


@triton.jit
def _load(pointers, there, MASKED: tl.constexpr):
  if MASKED:
    return tl.load(pointers, mask=there, other=0)
  else:
    return tl.load(pointers)


@triton.constexpr_function
def _to_base_2(scale, integer_dot):
  """Returns the factor that turns `_march`'s logits into base 2; positive.

  It is 1 where the logits contain all factors already.
  """
  return 1.0 if integer_dot or scale <= 0 else scale

"""Packs queries into rows of a matrix: all heads of all queries, R = L·H.

Row r is head r % H of query r // H. `pack` and `unpack` apply scales per
channel, outside the kernel: q · (k ∘ c) = (q ∘ c) · k.
"""

from kaiju_jax.kernels.visibility_attention import codes


def pack(q_BLHK, k_PSK, scales, dtype):
  """Returns q_BRK, and q_scale_BR, which is None unless QKᵀ is an integer dot.

  Args:
    q_BLHK: queries, floats or codes.
    k_PSK: the pool's keys, floats or codes.
    scales: the codes' scales.
    dtype: the dtype of queries that are codes but must become floats.
  """
  q_scale_BLH, k_scale, _ = scales
  B, L, H, K = q_BLHK.shape
  q_BRK = q_BLHK.reshape(B, L * H, K)
  if codes.integer_dot(q_BLHK, k_PSK, k_scale):
    return q_BRK, q_scale_BLH.reshape(B, L * H)
  if q_scale_BLH is not None:
    q_scale_BLH = q_scale_BLH.reshape(B, L * H)
  q_BRK = codes.dequantize(q_BRK, q_scale_BLH, dtype)
  if k_scale is not None and k_scale.ndim == 1:
    q_BRK = codes.apply_scale(q_BRK, k_scale.reshape(1, 1, K), q_BRK.dtype)
  return q_BRK, None


def unpack(out_BRK, lse_BR, v_scale, shape, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH) of q's shape [B, L, H, K]."""
  if v_scale is not None and v_scale.ndim == 1:
    out_BRK = out_BRK * v_scale[None, None]
  return out_BRK.astype(dtype).reshape(shape), lse_BR.reshape(shape[:-1])


def per_token(scale):
  """Returns the scale if it is one per token [P, S], otherwise None."""
  return scale if scale is not None and scale.ndim == 2 else None

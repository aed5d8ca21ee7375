"""The definition of visibility attention, with the whole mask in memory.

    logits[q, h, k] = scale · q[q, h] · k[k]      where q sees k, else -inf
    lse = log Σ exp(logits),   out = Σ exp(logits - lse) · v

One KV head serves all query heads. int8 queries and keys meet in an integer
dot (half-int8 attention: document 003); int8 values are dequantized, for
their product with the float weights. A query that sees nothing gets zeros.
"""

import jax
import jax.numpy as jnp

from kaiju_jax.kernels.visibility_attention import codes


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
  if codes.integer_dot(q_BLHK, k_BMK, k_scale):
    logits_BLHM = jnp.einsum(
      'BLHK,BMK->BLHM', q_BLHK, k_BMK, preferred_element_type=jnp.int32
    ).astype(jnp.float32)
    logits_BLHM *= q_scale_BLH[..., None] * k_scale[:, None, None, :]
  else:
    logits_BLHM = jnp.einsum(
      'BLHK,BMK->BLHM',
      codes.dequantize(q_BLHK, q_scale_BLH, dtype),
      codes.dequantize(k_BMK, k_scale, dtype),
      preferred_element_type=jnp.float32,
    )
  visible_BLM = visible(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM, window
  )
  v_BMK = codes.dequantize(v_BMK, v_scale, dtype)
  return _softmax_product(scale * logits_BLHM, visible_BLM, v_BMK, dtype)


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
  del lse_BLH
  dtype = out_BLHK.dtype
  visible_BLM = visible(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM, window
  )

  def attend(q_BLHK, k_BMK, v_BMK):
    logits_BLHM = scale * jnp.einsum(
      'BLHK,BMK->BLHM', q_BLHK, k_BMK, preferred_element_type=jnp.float32
    )
    return _softmax_product(logits_BLHM, visible_BLM, v_BMK, dtype)

  _, pull = jax.vjp(
    attend,
    codes.dequantize(q_BLHK, q_scale_BLH, dtype),
    codes.dequantize(k_BMK, k_scale, dtype),
    codes.dequantize(v_BMK, v_scale, dtype),
  )
  return pull((dout_BLHK.astype(dtype), dlse_BLH))


def visible(
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM, window
):
  """Returns bool[B, L, M]: which query sees which key."""
  visible_BLM = (start_BM[:, None, :] <= coordinate_BL[:, :, None]) & (
    coordinate_BL[:, :, None] < limit_BM[:, None, :]
  )
  if window is None:
    return visible_BLM
  return visible_BLM & (
    position_BL[:, :, None] - position_BM[:, None, :] < window
  )


def _softmax_product(logits_BLHM, visible_BLM, v_BMK, dtype):
  """Softmax over the visible keys times v, and the log of its sum."""
  visible_BLHM = visible_BLM[:, :, None, :]
  sees_BLH = visible_BLM.any(axis=-1)[:, :, None]
  # Masked by a finite value: a query that sees nothing has no inf - inf.
  logits_BLHM = jnp.where(visible_BLHM, logits_BLHM, -1e30)
  peak_BLH = jax.lax.stop_gradient(logits_BLHM.max(axis=-1))
  weights_BLHM = jnp.where(
    visible_BLHM, jnp.exp(logits_BLHM - peak_BLH[..., None]), 0.0
  )
  total_BLH = jnp.where(sees_BLH, weights_BLHM.sum(axis=-1), 1.0)
  lse_BLH = jnp.where(sees_BLH, peak_BLH + jnp.log(total_BLH), 0.0)
  out_BLHK = jnp.einsum(
    'BLHM,BMK->BLHK',
    (weights_BLHM / total_BLH[..., None]).astype(dtype),
    v_BMK,
    preferred_element_type=jnp.float32,
  )
  return out_BLHK.astype(dtype), lse_BLH

"""The definition of visibility attention, with the whole mask in memory.

    logits[q, h, k] = scale · q[q, h] · k[k]      where q sees k, else -inf
    lse = log Σ exp(logits),   out = Σ exp(logits - lse) · v

One KV head serves all query heads. int8 queries and keys are multiplied in an
integer dot where `codes.integer_dot` allows it (half-int8 attention: document
003). int8 values are dequantized before their product with the float weights. A
query that sees nothing gets zeros.
"""

import jax
import jax.numpy as jnp

from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import operands


def forward(q_BLHK, k_BMK, v_BMK, ranges, scales, *, window, scale, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  if codes.integer_dot(q_BLHK, k_BMK, scales.k):
    logits_BLHM = jnp.einsum(
      'BLHK,BMK->BLHM', q_BLHK, k_BMK, preferred_element_type=jnp.int32
    ).astype(jnp.float32)
    logits_BLHM *= scales.q_BLH[..., None] * scales.k[:, None, None, :]
  else:
    logits_BLHM = jnp.einsum(
      'BLHK,BMK->BLHM',
      codes.dequantize(q_BLHK, scales.q_BLH, dtype),
      codes.dequantize(k_BMK, scales.k, dtype),
      preferred_element_type=jnp.float32,
    )
  visible_BLM = operands.visible(ranges, window)
  v_BMK = codes.dequantize(v_BMK, scales.v, dtype)
  return _softmax_product(scale * logits_BLHM, visible_BLM, v_BMK, dtype)


def backward(
  q_BLHK, k_BMK, v_BMK, ranges, scales, cotangents, *, window, scale, dtype
):
  """Returns (dq_BLHK, dk_BMK, dv_BMK) of the dequantized values."""
  visible_BLM = operands.visible(ranges, window)

  def attend(q_BLHK, k_BMK, v_BMK):
    logits_BLHM = scale * jnp.einsum(
      'BLHK,BMK->BLHM', q_BLHK, k_BMK, preferred_element_type=jnp.float32
    )
    return _softmax_product(logits_BLHM, visible_BLM, v_BMK, dtype)

  _, pull = jax.vjp(
    attend,
    codes.dequantize(q_BLHK, scales.q_BLH, dtype),
    codes.dequantize(k_BMK, scales.k, dtype),
    codes.dequantize(v_BMK, scales.v, dtype),
  )
  dq_BLHK, dk_BMK, dv_BMK = pull(
    (cotangents.dout_BLHK.astype(dtype), cotangents.dlse_BLH)
  )
  # A query whose lse is NaN makes the gradients of all keys that it sees NaN.
  sees_BL1 = visible_BLM.any(axis=-1)[..., None]
  spoilt_BLH = jnp.isnan(cotangents.lse_BLH) & sees_BL1
  seen_BM = (visible_BLM & spoilt_BLH.any(axis=-1)[:, :, None]).any(axis=1)
  return (
    jnp.where(spoilt_BLH[..., None], jnp.nan, dq_BLHK),
    jnp.where(seen_BM[..., None], jnp.nan, dk_BMK),
    jnp.where(seen_BM[..., None], jnp.nan, dv_BMK),
  )


def _softmax_product(logits_BLHM, visible_BLM, v_BMK, dtype):
  """Returns the softmax over the visible keys times v, and lse."""
  visible_BLHM = visible_BLM[:, :, None, :]
  sees_BLH = visible_BLM.any(axis=-1)[:, :, None]
  # A finite mask value, so that a query that sees nothing has no inf - inf.
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

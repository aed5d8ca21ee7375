"""Attention over int8 keys and values.

From the sources: QKᵀ in int8, PV in bf16 ("half-int8 attention"). The gradients
of keys and values leave through their carriers.
"""

import functools

import jax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.quantization import int8

Quantized = int8.Quantized


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3, 4))
def int8_attention(
  window: int | None,
  sinks: int,
  scale: float,
  qk: str,
  implementation: str | None,
  q_BLHK: jax.Array,
  k_BMK: Quantized,
  v_BMK: Quantized,
  visibility: visibility_lib.Visibility,
) -> tuple[jax.Array, jax.Array]:
  """Attends to int8 keys and values; differentiable in q and the carriers.

  Args:
    window: positions a query sees, itself included; None for all.
    sinks: the first positions, which a query sees beside its window.
    scale: multiplies the logits.
    qk: 'int8' quantizes q (a scale per token and head) for an s8 QKᵀ; 'none'
      dequantizes K.
    implementation: the name of the attention kernel's implementation; with None
      the platform chooses.
    q_BLHK: queries, in the model's dtype.
    k_BMK: codes of the keys, scales [B, M] or [K].
    v_BMK: codes of the values; dequantized before PV.
    visibility: the queries that see each key.

  Returns:
    out_BLHK in q's dtype and lse_BLH in f32, both differentiable.
  """
  return _int8_attention_forward(
    window, sinks, scale, qk, implementation, q_BLHK, k_BMK, v_BMK, visibility
  )[0]


def coded_queries(
  q_BLHK: jax.Array, k_scale: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns codes of the queries, and their scales [B, L, H], for an int8 QKᵀ.

  If the keys have a scale per channel, these scales are folded into q, so that
  QKᵀ stays an integer dot; `remaining_scales` then returns ones.
  """
  if k_scale.ndim == 1:
    q_BLHK = q_BLHK * k_scale[None, None, None].astype(q_BLHK.dtype)
  codes_BLHK, scale_BLH1 = int8.quantize(q_BLHK, (-1,))
  return codes_BLHK, scale_BLH1[..., 0]


def remaining_scales(k_BMK: Quantized) -> jax.Array:
  """Returns the keys' scales [B, M] that `coded_queries` did not fold in."""
  if k_BMK.scales.ndim == 1:
    return jnp.ones(k_BMK.shape[:2], jnp.float32)
  return k_BMK.scales


def _kernel_arguments(qk, q_BLHK, k_BMK, v_BMK, visibility):
  q, q_scale_BLH, k_scale = q_BLHK, None, k_BMK.scales
  if qk == 'int8':
    q, q_scale_BLH = coded_queries(q_BLHK, k_scale)
    k_scale = remaining_scales(k_BMK)
  arrays = (q, k_BMK.codes, v_BMK.codes, *visibility)
  scales = {
    'q_scale_BLH': q_scale_BLH,
    'k_scale': k_scale,
    'v_scale': v_BMK.scales,
  }
  return arrays, scales


def _int8_attention_forward(
  window, sinks, scale, qk, implementation, q_BLHK, k_BMK, v_BMK, visibility
):
  arrays, scales = _kernel_arguments(qk, q_BLHK, k_BMK, v_BMK, visibility)
  out_BLHK, lse_BLH = api.forward(
    *arrays,
    window=window,
    sinks=sinks,
    scale=scale,
    dtype=q_BLHK.dtype,
    implementation=implementation,
    **scales,
  )
  folded_K = k_BMK.scales if qk == 'int8' and k_BMK.scales.ndim == 1 else None
  dtype_of_q = jnp.zeros((0,), q_BLHK.dtype)
  residuals = (arrays, scales, folded_K, out_BLHK, lse_BLH, dtype_of_q)
  return (out_BLHK, lse_BLH), residuals


def _int8_attention_backward(
  window, sinks, scale, qk, implementation, residuals, cotangents
):
  arrays, scales, folded_K, out_BLHK, lse_BLH, dtype_of_q = residuals
  dout_BLHK, dlse_BLH = cotangents
  dq_BLHK, dk_BMK, dv_BMK = api.backward(
    *arrays,
    out_BLHK,
    lse_BLH,
    dout_BLHK,
    dlse_BLH,
    window=window,
    sinks=sinks,
    scale=scale,
    implementation=implementation,
    **scales,
  )
  dtype = dtype_of_q.dtype
  if folded_K is not None:
    dq_BLHK = dq_BLHK * folded_K[None, None, None]
    dk_BMK = dk_BMK / folded_K[None, None]
  return (
    dq_BLHK.astype(dtype),
    Quantized(None, None, dk_BMK.astype(dtype)),
    Quantized(None, None, dv_BMK.astype(dtype)),
    None,
  )


int8_attention.defvjp(_int8_attention_forward, _int8_attention_backward)


def attention(
  q_BLHK: jax.Array,
  k_BMK: jax.Array | Quantized,
  v_BMK: jax.Array | Quantized,
  visibility: visibility_lib.Visibility,
  *,
  window: int | None,
  sinks: int = 0,
  scale: float,
  qk: str = 'none',
  implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Attends to codes by `int8_attention`, or to floats by the float kernel.

  Arguments and results are those of `int8_attention`.
  """
  if isinstance(k_BMK, Quantized):
    return int8_attention(
      window, sinks, scale, qk, implementation, q_BLHK, k_BMK, v_BMK, visibility
    )
  return api.attention(
    q_BLHK,
    k_BMK,
    v_BMK,
    *visibility,
    window=window,
    sinks=sinks,
    scale=scale,
    implementation=implementation,
  )

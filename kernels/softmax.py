"""Holds constants that all online softmaxes here share; adds a sink logit.

    peak'  = max(peak, max s)
    total' = total · 2^(peak - peak') + Σ 2^(s - peak')

The first peak is LOWEST. Most kernels compute in base 2, the base of the
hardware's exponential: s = LOG2E · logit, lse = (peak + log2 total) / LOG2E.
"""

import math

import jax
import jax.numpy as jnp

# Below any logit, and finite. A row that sees nothing thus computes 2^(-inf -
# LOWEST), which is 0, and never -inf + inf, which is NaN.
LOWEST = -1e30
LOG2E = math.log2(math.e)


def add_logit(out_BLHK, lse_BLH, logit_H):
  """Returns attention whose softmax sums one more logit, that of no value.

      lse' = log(exp lse + exp logit),   out' = out · exp(lse - lse')

  It is gpt-oss's sink. Call it once, on results over all keys: parts of the
  keys are merged first. It is differentiable in all arguments.

  Args:
    out_BLHK: attention's output.
    lse_BLH: float32, its log-sum-exp.
    logit_H: float32, [H] or [B, H]; each head's logit.

  Returns:
    out in its dtype, and lse, whose sum holds the logit. A query that sees
    nothing keeps its zeros.
  """
  logit_BLH = jnp.reshape(logit_H, (-1, 1, lse_BLH.shape[-1]))
  blind_BLH = (lse_BLH == 0) & (out_BLHK == 0).all(axis=-1)
  weight_BLH = jax.nn.sigmoid(lse_BLH - logit_BLH)
  out = (out_BLHK * weight_BLH[..., None]).astype(out_BLHK.dtype)
  return out, jnp.where(blind_BLH, 0.0, jnp.logaddexp(lse_BLH, logit_BLH))

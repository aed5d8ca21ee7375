"""Paged decode in plain XLA: gathers a few visited pages of each row per step.

The loop ends with the row that visits most pages, so that its cost depends on
the visited pages and not on the table's length. In the first steps all rows
have pages that all of their queries see whole; these steps need no ranges.
"""

import functools

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.paged_decode import rows
from kaiju_jax.kernels.visibility_attention import operands


def decode(q_BLHK, k_PSK, v_PSK, ranges, scales, call):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  plan, scale, dtype = call.plan, call.scale, call.dtype
  B, _, H, _ = q_BLHK.shape
  S = k_PSK.shape[1]
  N = plan.page_BN.shape[1]
  G = call.sizes.J // S
  q_BRK, q_scale_BR = rows.pack(q_BLHK, k_PSK, scales, dtype)
  k_scale_PS, v_scale_PS = map(rows.per_token, (scales.k, scales.v))

  def gather(pool, page_BG):
    """Returns the pages of [P, S, …] as [B, J, …]."""
    # With a page as one line, the gather has one index per page, not per slot.
    lines = pool.reshape(len(pool), -1)
    # A plan lists only pages of the pool.
    taken = lines.at[page_BG.reshape(-1)].get(mode='promise_in_bounds')
    return taken.reshape(B, G * S, *pool.shape[2:])

  def take(x_BM, logical_BG):
    x_BNS = x_BM.reshape(B, N, S)
    x_BGS = jnp.take_along_axis(x_BNS, logical_BG[..., None], axis=1)
    return x_BGS.reshape(B, G * S)

  def visible_of(place_G, logical_BG):
    # No query sees a place beyond the row's count.
    inside_BG = place_G[None] < plan.count_B[:, None]
    taken = {
      name: take(getattr(ranges, name), logical_BG)
      for name in ('start_BM', 'limit_BM', 'position_BM')
    }
    visible_BLJ = operands.visible(ranges._replace(**taken), call.window)
    return visible_BLJ & jnp.repeat(inside_BG, S, axis=1)[:, None]

  def step(is_whole, n, carry):
    peak_BR, total_BR, sum_BRK = carry
    place_G = n * G + jnp.arange(G)
    within_G = jnp.minimum(place_G, N - 1)
    page_BG = plan.page_BN[:, within_G]
    k_BJK, v_BJK = gather(k_PSK, page_BG), gather(v_PSK, page_BG)
    if q_scale_BR is None:
      k_BJK = _floats(k_BJK, q_BRK.dtype)
      logits_BRJ = scale * _product(q_BRK, k_BJK, jnp.float32)
    else:
      logits_BRJ = _product(q_BRK, k_BJK, jnp.int32).astype(jnp.float32)
      logits_BRJ *= (scale * q_scale_BR)[..., None]
    if k_scale_PS is not None:
      logits_BRJ *= gather(k_scale_PS, page_BG)[:, None]
    v_scale_BJ = None if v_scale_PS is None else gather(v_scale_PS, page_BG)
    if not is_whole:
      visible_BLJ = visible_of(place_G, plan.logical_BN[:, within_G])
      visible_BRJ = jnp.repeat(visible_BLJ, H, axis=1)
      logits_BRJ = jnp.where(visible_BRJ, logits_BRJ, -jnp.inf)
      # Unseen values may be NaN; in codes the scale per token may be.
      seen_BJ = visible_BLJ.any(axis=1)
      if v_scale_BJ is not None:
        v_scale_BJ = jnp.where(seen_BJ, v_scale_BJ, 0.0)
      elif scales.v is None:
        v_BJK = jnp.where(seen_BJ[..., None], v_BJK, jnp.zeros_like(v_BJK))
    new_peak_BR = jnp.maximum(peak_BR, logits_BRJ.max(axis=-1))
    weights_BRJ = jnp.exp(logits_BRJ - new_peak_BR[..., None])
    decay_BR = jnp.exp(peak_BR - new_peak_BR)
    total_BR = total_BR * decay_BR + weights_BRJ.sum(axis=-1)
    if v_scale_BJ is not None:
      weights_BRJ *= v_scale_BJ[:, None]
    product_BRK = jnp.einsum(
      'BRJ,BJK->BRK',
      weights_BRJ.astype(dtype),
      _floats(v_BJK, dtype),
      preferred_element_type=jnp.float32,
    )
    return new_peak_BR, total_BR, sum_BRK * decay_BR[..., None] + product_BRK

  zeros_BRK = jnp.zeros_like(q_BRK, jnp.float32)
  zeros_BR = zeros_BRK[..., 0]
  carry = zeros_BR + softmax.LOWEST, zeros_BR, zeros_BRK
  whole, end = plan.full_B.min() // G, (plan.count_B.max() + G - 1) // G
  carry = jax.lax.fori_loop(0, whole, functools.partial(step, True), carry)
  carry = jax.lax.fori_loop(whole, end, functools.partial(step, False), carry)
  peak_BR, total_BR, sum_BRK = carry
  # `== 0` and not `> 0`, which is false for NaN as well.
  blind_BR = total_BR == 0
  total_BR = jnp.where(blind_BR, 1.0, total_BR)
  lse_BR = jnp.where(blind_BR, 0.0, peak_BR + jnp.log(total_BR))
  out_BRK = sum_BRK / total_BR[..., None]
  return rows.unpack(out_BRK, lse_BR, scales.v, q_BLHK.shape, dtype)


def _floats(x, dtype):
  """Returns codes as floats of `dtype`, and floats unchanged."""
  return x.astype(dtype) if x.dtype == jnp.int8 else x


def _product(q_BRK, k_BJK, dtype):
  return jnp.einsum('BRK,BJK->BRJ', q_BRK, k_BJK, preferred_element_type=dtype)

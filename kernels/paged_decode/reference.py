"""Defines paged decode: gathers each row's pages, then attends to them.

    k[b, n·S + s] = k_pool[table[b, n], s]

No query sees the slots of an absent page. Unseen slots may hold anything, even
NaN, so zeros replace them before a weight of 0 multiplies them.
"""

import jax.numpy as jnp

from kaiju_jax.kernels.paged_decode import plan as plan_lib
from kaiju_jax.kernels.visibility_attention import operands
from kaiju_jax.kernels.visibility_attention import reference


def decode(q_BLHK, k_PSK, v_PSK, ranges, scales, call):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  P, S, _ = k_PSK.shape
  present_BM = jnp.repeat(plan_lib.present(call.table_BN, P), S, axis=1)
  limit_BM = jnp.where(present_BM, ranges.limit_BM, ranges.start_BM)
  ranges = ranges._replace(limit_BM=limit_BM)
  seen_BM = operands.visible(ranges, call.window).any(axis=1)

  def gather(pool):
    """Returns [P, S, …] as [B, M, …], zeros where no query sees the slot."""
    x = pool[jnp.clip(call.table_BN, 0, P - 1)]
    x = x.reshape(seen_BM.shape + pool.shape[2:])
    seen = seen_BM.reshape(seen_BM.shape + (1,) * (x.ndim - 2))
    return jnp.where(seen, x, jnp.zeros_like(x))

  def gather_scale(scale):
    return gather(scale) if scale is not None and scale.ndim == 2 else scale

  return reference.forward(
    q_BLHK,
    gather(k_PSK),
    gather(v_PSK),
    ranges,
    scales._replace(k=gather_scale(scales.k), v=gather_scale(scales.v)),
    window=call.window,
    scale=call.scale,
    dtype=call.dtype,
  )

"""Merges attention over parts of the keys into attention over all of them.

    lse = log Σ exp(lse_x),   out = Σ exp(lse_x - lse) · out_x

The sum runs over the parts in their order, in float32, so that its result is
deterministic. A part in which the query saw nothing has no weight.
"""

import jax.numpy as jnp


def combine(out_XBRK, lse_XBR):
  """Returns (out_BRK, lse_BR) over all parts; zeros where no key was seen.

  Args:
    out_XBRK: float32, output of each part.
    lse_XBR: float32, -inf where a row saw nothing of a part.
  """
  peak_BR = lse_XBR.max(axis=0)
  # Not `> -inf`: a NaN is not a blind query.
  blind_BR = peak_BR == -jnp.inf
  peak_BR = jnp.where(blind_BR, 0.0, peak_BR)
  weights_XBR = jnp.exp(lse_XBR - peak_BR[None])
  total_BR = weights_XBR.sum(axis=0)
  sum_BRK = (weights_XBR[..., None] * out_XBRK).sum(axis=0)
  total_BR = jnp.where(blind_BR, 1.0, total_BR)
  lse_BR = jnp.where(blind_BR, 0.0, peak_BR + jnp.log(total_BR))
  return sum_BRK / total_BR[..., None], lse_BR


def mark(out, lse):
  """Returns lse, -inf where out = 0 and lse = 0 mark a query that saw nothing.

  Args:
    out: [..., K], as for `merge`.
    lse: [...], float32.
  """
  blind = (lse == 0) & (out == 0).all(axis=-1)
  return jnp.where(blind, -jnp.inf, lse)


def merge(out_a, lse_a, out_b, lse_b):
  """Returns attention over the keys of `a` and `b`, which are disjoint.

  out = 0 and lse = 0 mark a part in which the query saw nothing; it has no
  weight. (A part with a single key of logit 0 whose value is all zeros returns
  the same two and is wrongly ignored: it would add 1 to the sum under the
  logarithm.)

  Args:
    out_a: [..., K], output over one part of the keys.
    lse_a: [...], float32, its log-sum-exp.
    out_b: [..., K], as out_a.
    lse_b: [...], as lse_a.

  Returns:
    out in out_a's dtype, lse in float32; zeros where no key was seen.
  """

  def part(out, lse):
    return out.astype(jnp.float32), mark(out, lse)

  # Written out, because `combine` takes more steps for two parts.
  (a, lse_a), (b, lse_b) = part(out_a, lse_a), part(out_b, lse_b)
  peak = jnp.maximum(lse_a, lse_b)
  peak = jnp.where(peak == -jnp.inf, 0.0, peak)
  weight_a, weight_b = jnp.exp(lse_a - peak), jnp.exp(lse_b - peak)
  total = weight_a + weight_b
  blind = total == 0
  total = jnp.where(blind, 1.0, total)
  out = (weight_a / total)[..., None] * a + (weight_b / total)[..., None] * b
  return out.astype(out_a.dtype), jnp.where(blind, 0.0, peak + jnp.log(total))

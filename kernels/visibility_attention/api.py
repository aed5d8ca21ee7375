"""Attention in which every key carries the range of queries that see it.

    visible(q, k) = start[k] <= coordinate[q] < limit[k]
                    and (window is None or position[q] - position[k] < window
                         or position[k] < sinks)
    lse[q] = log Σ exp(scale · q · k)  over the visible keys
    out[q] = Σ exp(scale · q · k - lse[q]) · v

One KV head serves all H query heads (multi-query attention, as the sources
have it everywhere). q, k and v are floats, or int8 codes with scales: q has one
scale per token and head [B, L, H]; k and v have one per token [B, M] or per
channel [K]. Where q and k are both codes with scales per token, QKᵀ is an int8
dot with an int32 sum, and PV runs in `dtype` on dequantized values: half-int8
attention, which the sources shipped. The softmax is in float32.

A query that sees nothing gets out = 0, lse = 0 and no gradient. A query that
sees a key with NaN or inf in its k or v gets out = lse = NaN. A key that a
query does not see never changes that query's results, even if the key holds NaN
(`nonfinite`).
"""

import functools

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import nonfinite
from kaiju_jax.kernels.visibility_attention import operands

RUNS_ON = {
  'reference': dispatch.ANYWHERE,
  'chunked': dispatch.ANYWHERE,
  'pallas_gpu': ('gpu',),
  'pallas_tpu': ('tpu',),
  # Never the default, because they have not been timed on a GPU.
  'mosaic_gpu': ('gpu',),
  'triton_kernel': ('gpu',),
}


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
  sinks=0,
  scale,
  q_scale_BLH=None,
  k_scale=None,
  v_scale=None,
  dtype=None,
  implementation=None,
):
  """Returns the output and lse, the log-sum-exp of each query's logits.

  Args:
    q_BLHK: queries, float or int8.
    k_BMK: keys, float or int8.
    v_BMK: values, float or int8.
    start_BM: int32, first query coordinate that sees each key.
    limit_BM: int32, one past the last; equal to start for an empty slot.
    coordinate_BL: int32, the coordinate of each query.
    position_BL: int32, the position of each query.
    position_BM: int32, the position of each key.
    window: positions that a query looks back, itself included; None for all.
    sinks: the first positions, whose keys a query sees beside its window.
    scale: factor of the logits, a Python number.
    q_scale_BLH: float32, given exactly where q is int8.
    k_scale: float32 [B, M] or [K], given exactly where k is int8.
    v_scale: float32 [B, M] or [K], given exactly where v is int8.
    dtype: the dtype of the output and of PV. The default is v's dtype, or q's
      where v is codes, or bfloat16 where both are codes.
    implementation: a key of `RUNS_ON`. With None the platform and the shape
      choose, but never 'mosaic_gpu' or 'triton_kernel', which are not timed.

  Returns:
    out_BLHK in `dtype`, and lse_BLH in float32.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  scales = {'q_scale_BLH': q_scale_BLH, 'k_scale': k_scale, 'v_scale': v_scale}
  ranges = operands.Ranges(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  )
  arrays = {'q_BLHK': q_BLHK, 'k_BMK': k_BMK, 'v_BMK': v_BMK}
  arrays |= ranges._asdict()
  _check(arrays, scales, window, sinks, scale)
  dtype = operands.output_dtype(dtype, q_BLHK, v_BMK)
  module = _choose(implementation, q_BLHK, k_BMK)
  k_BMK, v_BMK, scales = nonfinite.contain_keys(
    k_BMK, v_BMK, operands.Scales(q_scale_BLH, k_scale, v_scale), dtype
  )
  return module.forward(
    *(q_BLHK, k_BMK, v_BMK, ranges.exempt(sinks), scales),
    window=window,
    scale=scale,
    dtype=dtype,
  )


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
  sinks=0,
  scale,
  q_scale_BLH=None,
  k_scale=None,
  v_scale=None,
  implementation=None,
):
  """Returns `forward`'s gradients with respect to its dequantized operands.

  Args:
    q_BLHK … position_BM, window … implementation: as for `forward`.
    out_BLHK: what `forward` returned.
    lse_BLH: what `forward` returned.
    dout_BLHK: cotangent of out.
    dlse_BLH: float32, cotangent of lse.

  Returns:
    dq_BLHK, dk_BMK, dv_BMK, each in its operand's dtype, or in out's where
    the operand is codes.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  scales = {'q_scale_BLH': q_scale_BLH, 'k_scale': k_scale, 'v_scale': v_scale}
  ranges = operands.Ranges(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  )
  arrays = {
    'q_BLHK': q_BLHK,
    'k_BMK': k_BMK,
    'v_BMK': v_BMK,
    **ranges._asdict(),
    'out_BLHK': out_BLHK,
    'lse_BLH': lse_BLH,
    'dout_BLHK': dout_BLHK,
    'dlse_BLH': dlse_BLH,
  }
  _check(arrays, scales, window, sinks, scale)
  module = _choose(implementation, q_BLHK, k_BMK)
  product_BLHK = dout_BLHK.astype(jnp.float32) * out_BLHK.astype(jnp.float32)
  delta_BLH = product_BLHK.sum(axis=-1) - dlse_BLH
  contained = nonfinite.contain_all(
    *(q_BLHK, k_BMK, v_BMK),
    operands.Scales(q_scale_BLH, k_scale, v_scale),
    operands.Cotangents(lse_BLH, dout_BLHK, dlse_BLH, delta_BLH),
  )
  q_BLHK, k_BMK, v_BMK, scales, cotangents = contained
  return module.backward(
    *(q_BLHK, k_BMK, v_BMK, ranges.exempt(sinks), scales, cotangents),
    window=window,
    scale=scale,
    dtype=out_BLHK.dtype,
  )


def attention(
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
  sinks=0,
  scale,
  implementation=None,
):
  """Returns `forward` of floats, differentiable through out and lse.

  `backward` computes its gradient.

  Args:
    q_BLHK: queries, float.
    k_BMK: keys, float.
    v_BMK: values, float.
    start_BM: int32, first query coordinate that sees each key.
    limit_BM: int32, one past the last; equal to start for an empty slot.
    coordinate_BL: int32, the coordinate of each query.
    position_BL: int32, the position of each query.
    position_BM: int32, the position of each key.
    window: positions that a query looks back, itself included; None for all.
    sinks: the first positions, whose keys a query sees beside its window.
    scale: factor of the logits, a Python number.
    implementation: a key of `RUNS_ON`. With None the platform and the shape
      choose, but never 'mosaic_gpu' or 'triton_kernel', which are not timed.

  Returns:
    out_BLHK in v's dtype, and lse_BLH in float32.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right;
      TypeError for int8 codes too, which carry no gradient.
  """
  for name, x in ('q_BLHK', q_BLHK), ('k_BMK', k_BMK), ('v_BMK', v_BMK):
    if x.dtype == jnp.int8:
      raise TypeError(
        f'{name} is int8: codes carry no gradient, so attention takes floats'
        ' only. Use forward, or give their gradient a rule of its own.'
      )
  ranges = operands.Ranges(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  )
  return _attention(
    window, sinks, scale, implementation, q_BLHK, k_BMK, v_BMK, ranges
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _attention(
  window, sinks, scale, implementation, q_BLHK, k_BMK, v_BMK, ranges
):
  return forward(
    q_BLHK,
    k_BMK,
    v_BMK,
    *ranges,
    window=window,
    sinks=sinks,
    scale=scale,
    implementation=implementation,
  )


def _attention_forward(window, sinks, scale, implementation, *operands):
  results = _attention(window, sinks, scale, implementation, *operands)
  return results, (operands, results)


def _attention_backward(
  window, sinks, scale, implementation, saved, cotangents
):
  (q_BLHK, k_BMK, v_BMK, ranges), results = saved
  gradients = backward(
    q_BLHK,
    k_BMK,
    v_BMK,
    *ranges,
    *results,
    *cotangents,
    window=window,
    sinks=sinks,
    scale=scale,
    implementation=implementation,
  )
  return *gradients, None


_attention.defvjp(_attention_forward, _attention_backward)


def _choose(implementation, q_BLHK, k_BMK):
  if implementation is None:
    _, L, _, K = q_BLHK.shape
    implementation = blocks.implementation(
      dispatch.platform(), L, k_BMK.shape[1], K
    )
  return dispatch.choose(__package__, implementation, RUNS_ON)


def _check(arrays, scales, window, sinks, scale) -> None:
  """Refuses arguments that do not fit together, before anything is traced."""
  q_BLHK, k_BMK = arrays['q_BLHK'], arrays['k_BMK']
  for name, x in ('q_BLHK', q_BLHK), ('k_BMK', k_BMK):
    rank = len(name) - len('q_')
    if x.ndim != rank:
      raise ValueError(f'{name} has shape {x.shape}: expected {rank} dims.')
  if 0 in k_BMK.shape[1:]:
    raise ValueError(
      f'k_BMK has shape {k_BMK.shape}: expected at least one key, and K not 0.'
    )
  sizes = dict(zip('BLHK', q_BLHK.shape)) | {'M': k_BMK.shape[1]}
  for name, x in arrays.items():
    letters = name.split('_')[-1]
    expected = tuple(sizes[letter] for letter in letters)
    if x.shape != expected:
      raise ValueError(f'{name} has shape {x.shape}: expected {expected}.')
  operands.check_dtypes(arrays)
  operands.check_scales(arrays, scales)
  operands.check_options(window, sinks, scale)

"""Quantization-aware training: every custom_vjp between floats and int8.

From the sources: forward weights and KV are int8 and matmuls are int8×int8;
activations and local gradients bf16; master weights and their accumulation
f32; QKᵀ in int8 and PV in bf16 ("half-int8"). Our guess: weights have a scale
an output channel, activations a scale a token, and gradients go straight
through with the quantized operands:

    y  = (Σ x_codes · w_codes) · s_x · s_w      s8×s8→s32, one f32 multiply
    dx = dy · s_w · w_codes                     in the model's dtype,
    dw = x_codes · s_x · dy                     accumulated in f32

A reader of `Quantized` never sees a float weight: the gradient leaves through
the carrier (see `int8.py`).
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import murmur3
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.quantization import by_kernel
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules

Quantized = int8.Quantized


def _align(array: jax.Array, letters: str, to: str) -> jax.Array:
  """Reshapes `array` so that it broadcasts against a tensor of letters `to`."""
  sizes = dict(zip(letters, array.shape))
  return array.reshape([sizes.get(letter, 1) for letter in to])


def _letters(spec: str) -> by_kernel.Letters:
  """Splits 'BLD,DF->BLF' into ('BLD', 'DF', 'BLF', 'D')."""
  operands, out = spec.split('->')
  x, w = operands.split(',')
  contracted = ''.join(letter for letter in w if letter in x)
  return by_kernel.Letters(x, w, out, contracted)


def _axes(letters: str, contracted: str) -> tuple[int, ...]:
  return tuple(letters.index(letter) for letter in contracted)


# Weights, and activations that cross to other devices.


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def quantize(x: jax.Array, axes: tuple[int, ...], dtype) -> Quantized:
  """Returns x as codes, whose gradient goes straight through.

  Args:
    x: a float32 master weight (a scale an output channel), or activations (a
      scale a token).
    axes: those that share a scale: the contracted ones.
    dtype: of the gradient that comes back through the carrier.
  """
  codes, scales = int8.quantize(x, axes)
  return Quantized(codes, scales, jnp.zeros(x.shape, dtype))


def _quantize_forward(x, axes, dtype):
  # An empty array remembers the dtype.
  return quantize(x, axes, dtype), jnp.zeros((0,), x.dtype)


def _quantize_backward(axes, dtype, like_x, cotangent):
  return (cotangent.carrier.astype(like_x.dtype),)


quantize.defvjp(_quantize_forward, _quantize_backward)


# Projections.


def einsum(
  spec: str,
  x: jax.Array | Quantized,
  w: jax.Array | Quantized,
  *,
  limit: jax.Array | None = None,
  nonnegative: bool = False,
  input_gradient: str = 'bf16',
  implementation: str = '',
  dtype=None,
) -> jax.Array:
  """Projects activations: `int8_einsum` for codes, plain for a float weight.

  Both accumulate in f32 and return `dtype`, by default x's; x may be codes
  (`quantize`) where the weight is.
  """
  floats = x.carrier if isinstance(x, Quantized) else x
  options = Options(
    nonnegative,
    input_gradient,
    implementation,
    jnp.dtype(dtype or floats.dtype),
  )
  if isinstance(w, Quantized):
    return int8_einsum(spec, options, x, w, limit)
  y = _product(_letters(spec), x, w, jnp.float32)
  return y.astype(options.dtype)


def enter(x: jax.Array | Quantized) -> jax.Array | Quantized:
  """Returns whole rows [B, L, …], where each device has its part of L.

  Of codes, these and the scales cross; the gradient's parts come back through
  the carrier.
  """
  if not isinstance(x, Quantized):
    return collectives.enter(x)
  codes, scales, carrier, _ = x
  if scales.ndim > 1:  # Else one for each channel, the same on all devices.
    scales = collectives.enter(lax.stop_gradient(scales))
  return Quantized(
    collectives.enter(lax.stop_gradient(codes)),
    scales,
    collectives.enter(carrier),
  )


class Options(NamedTuple):
  """How `int8_einsum` computes.

  Attributes:
    nonnegative: x ≥ 0 and is coded on all 256 levels.
    input_gradient: 'bf16' for dx in x's dtype, 'int8' for an s8×s8→s32 dot of
      dy rounded stochastically.
    implementation: of the kernel `int8_matmul`; '' for XLA's dots, as they are
      written here.
    dtype: of the result.
  """

  nonnegative: bool
  input_gradient: str
  implementation: str
  dtype: jnp.dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def int8_einsum(
  spec: str,
  options: Options,
  x: jax.Array | Quantized,
  w: Quantized,
  limit: jax.Array | None,
) -> jax.Array:
  """Returns einsum(spec, x̂, ŵ) by one s8×s8→s32 dot, in `dtype`.

  Where a contracted letter is split over devices, each returns its part of the
  sum; the scales are those of the whole rows.

  Args:
    spec: as 'BLD,DHK->BLHK'; x's kept letters lead the output, w's follow.
    options: see `Options`.
    x: activations; quantized here, with a scale a token, unless they are.
    w: weight; scales keep the contracted axes with size 1.
    limit: a scalar that takes the largest code instead of each token's
      largest value; values beyond it must have been cut (`clamp.clip`).
  """
  return _project(spec, options, x, w, limit, keep_codes=False)[0]


def _project(spec, options, x, w, limit, keep_codes):
  """Returns y, and the codes and scales of x."""
  letters = _letters(spec)
  if options.implementation:
    return by_kernel.forward(
      letters,
      x,
      w,
      limit,
      nonnegative=options.nonnegative,
      dtype=options.dtype,
      keep_codes=keep_codes,
      implementation=options.implementation,
    )
  x_letters, w_letters, out_letters, contracted = letters
  x_axes = _axes(x_letters, contracted)
  w_axes = _axes(w_letters, contracted)
  if isinstance(x, Quantized):
    x_codes, x_scales = x.codes, x.scales
  else:
    largest_code = 255 if options.nonnegative else int8.MAX_CODE
    if limit is None:
      limit = collectives.largest(int8.largest(x, x_axes), contracted)
    else:
      limit = limit.reshape((1,) * x.ndim)
    x_scales = int8.scale_of(limit, largest_code)
    encode = int8.encode_nonnegative if options.nonnegative else int8.encode
    x_codes = encode(x, x_scales)
  sums = _product(letters, x_codes, w.codes, jnp.int32)
  if options.nonnegative:
    columns = w.columns if w.columns is not None else columns_of(w, w_axes)
    sums = sums + 128 * _align(columns, w_letters, out_letters)
  scales = _align(x_scales, x_letters, out_letters) * _align(
    w.scales, w_letters, out_letters
  )
  y = (sums.astype(jnp.float32) * scales).astype(options.dtype)
  return y, x_codes, x_scales


def columns_of(w: Quantized, axes: tuple[int, ...]) -> jax.Array:
  """Returns the sums of a weight's codes over its contracted axes, kept."""
  return jnp.sum(w.codes.astype(jnp.int32), axis=axes, keepdims=True)


def _product(letters: by_kernel.Letters, x, w, dtype) -> jax.Array:
  """Returns the einsum in `dtype`, summed over one dimension.

  Over two, H and K, XLA copies the whole weight on a CPU before it reads it.
  Both lie last and next to each other in x and w, so that they are one.
  """
  x_letters, w_letters, out_letters, contracted = letters
  if len(contracted) > 1:
    x = x.reshape(*x.shape[: -len(contracted)], -1)
    w = w.reshape(*w.shape[: -len(contracted)], -1)
    x_letters = x_letters.removesuffix(contracted) + contracted[0]
    w_letters = w_letters.removesuffix(contracted) + contracted[0]
  spec = f'{x_letters},{w_letters}->{out_letters}'
  if _is_slow_alone(x):
    doubled = jnp.concatenate([x, x])
    return jnp.einsum(spec, doubled, w, preferred_element_type=dtype)[:1]
  return jnp.einsum(spec, x, w, preferred_element_type=dtype)


def _is_slow_alone(x: jax.Array) -> bool:
  """Whether x is one row of codes on a CPU.

  XLA takes two to six times as long for one as for two.
  """
  is_one_row = x.dtype == jnp.int8 and x.size == x.shape[-1]
  return is_one_row and dispatch.platform() == 'cpu'


def _int8_einsum_forward(spec, options, x, w, limit):
  y, x_codes, x_scales = _project(spec, options, x, w, limit, keep_codes=True)
  # Empty arrays remember dtypes: residuals hold arrays only, and the carrier
  # itself would be kept for nothing.
  if isinstance(x, Quantized):
    like_x = Quantized(None, None, jnp.zeros((0,), x.carrier.dtype))
  else:
    like_x = jnp.zeros((0,), x.dtype)
  carrier = None if w.carrier is None else jnp.zeros((0,), w.carrier.dtype)
  w = w._replace(carrier=carrier, columns=None)
  return y, (x_codes, x_scales, w, like_x)


def _int8_einsum_backward(spec, options, residuals, dy):
  like_x = residuals[-1]
  is_coded = isinstance(like_x, Quantized)
  dtype = like_x.carrier.dtype if is_coded else like_x.dtype
  pull = _pull_by_kernel if options.implementation else _pull
  dx, dw = pull(_letters(spec), options, residuals[:-1], dy, dtype)
  if is_coded:
    dx = Quantized(None, None, dx)
  return dx, Quantized(None, None, dw), None


def _pull(letters, options, residuals, dy, dtype):
  """Returns the gradients of x and w, the first in `dtype`."""
  x_letters, w_letters, out_letters, _ = letters
  x_codes, x_scales, w = residuals
  dy = dy.astype(jnp.float32)

  dy_w = dy * _align(w.scales, w_letters, out_letters)
  dx_spec = f'{out_letters},{w_letters}->{x_letters}'
  if options.input_gradient == 'int8':
    dx = _int8_input_gradient(dx_spec, dy_w, w.codes)
  else:
    dx = jnp.einsum(
      dx_spec,
      dy_w.astype(dtype),
      w.codes.astype(dtype),
      preferred_element_type=jnp.float32,
    )

  # Codes up to 255 are exact in bf16's eight bits.
  x_levels = x_codes.astype(dtype)
  if options.nonnegative:
    x_levels = x_levels + jnp.asarray(128, dtype)
  dy_x = dy * _align(x_scales, x_letters, out_letters)
  dw = jnp.einsum(
    f'{x_letters},{out_letters}->{w_letters}',
    x_levels,
    dy_x.astype(dtype),
    preferred_element_type=jnp.float32,
  )
  return dx.astype(dtype), dw.astype(_dtype_of_gradient(w, dtype))


def _pull_by_kernel(letters, options, residuals, dy, dtype):
  """`_pull` by the kernel."""
  x_codes, x_scales, w = residuals
  int8_gradient = options.input_gradient == 'int8'
  dx = by_kernel.input_gradient(
    letters,
    dy,
    w,
    rounding='stochastic' if int8_gradient else 'nearest',
    dtype=dtype,
    implementation=options.implementation,
  )
  dw = by_kernel.weight_gradient(
    letters,
    x_codes,
    x_scales,
    dy,
    w,
    nonnegative=options.nonnegative,
    dtype=dtype,
    out_dtype=_dtype_of_gradient(w, dtype),
    implementation=options.implementation,
  )
  return dx, dw


def _dtype_of_gradient(w: Quantized, dtype):
  return dtype if w.carrier is None else w.carrier.dtype


int8_einsum.defvjp(_int8_einsum_forward, _int8_einsum_backward)


def _int8_input_gradient(spec: str, dy: jax.Array, w_codes: jax.Array):
  """Returns einsum(spec, dy, w_codes) by an s8 dot, dy rounded stochastically.

  Rounding up with the probability of the remainder keeps the gradient's
  expectation, where nearest rounding would lose all that is small in its row.
  The noise depends on the mesh: a place is one on this device.
  """
  dy_letters, _, dx_letters, contracted = _letters(spec)
  axes = _axes(dy_letters, contracted)
  limit = collectives.largest(int8.largest(dy, axes), contracted)
  scales = int8.scale_of(limit)
  codes = jnp.floor(dy / scales + murmur3.uniform(dy))
  codes = jnp.clip(codes, -int8.MAX_CODE, int8.MAX_CODE).astype(jnp.int8)
  sums = jnp.einsum(spec, codes, w_codes, preferred_element_type=jnp.int32)
  return sums.astype(jnp.float32) * _align(scales, dy_letters, dx_letters)


# Embedding.


@jax.custom_vjp
def lookup(table_DV: jax.Array | Quantized, index_BL: jax.Array) -> jax.Array:
  """Returns the table's entries [B, L, D] in float32, zeros for those outside.

  The gradient of an entry is summed in float32: in bfloat16 a sum over the
  places of a frequent token stops growing at 256 of them.

  Args:
    table_DV: this device's vocabulary entries.
    index_BL: into them; negative, or V and more, for those of other devices.
  """
  table = table_DV.codes if isinstance(table_DV, Quantized) else table_DV
  x_BLD = _columns(table, index_BL).astype(jnp.float32)
  if isinstance(table_DV, Quantized):
    scale_V = table_DV.scales[0]
    x_BLD = x_BLD * jnp.take(scale_V, index_BL, mode='clip')[..., None]
  inside_BL = (index_BL >= 0) & (index_BL < table.shape[1])
  return jnp.where(inside_BL[..., None], x_BLD, 0)


def _columns(table_DV: jax.Array, index_BL: jax.Array) -> jax.Array:
  """Returns columns of a matrix as rows [B, L, D].

  Of many, from its transpose, whose rows are read at once; of a few, as a
  decoding step wants, one by one, for a transpose reads and writes it whole.
  """
  if index_BL.size * 64 > table_DV.shape[1]:
    return jnp.take(table_DV.T, index_BL, axis=0, mode='clip')
  x_DBL = jnp.take(table_DV, index_BL, axis=1, mode='clip')
  return jnp.moveaxis(x_DBL, 0, -1)


def _lookup_forward(table_DV, index_BL):
  # An empty array remembers the dtype and V.
  if isinstance(table_DV, Quantized):
    like = Quantized(None, None, table_DV.carrier[:0])
  else:
    like = table_DV[:0]
  return lookup(table_DV, index_BL), (like, index_BL)


def _lookup_backward(residuals, dx_BLD):
  like, index_BL = residuals
  empty_DV = like.carrier if isinstance(like, Quantized) else like
  size = empty_DV.shape[1]
  # What lies outside is dropped; a negative index would count from the end.
  index_BL = jnp.where(index_BL < 0, size, index_BL)
  gradient_VD = jnp.zeros((size, dx_BLD.shape[-1]), jnp.float32)
  gradient_VD = gradient_VD.at[index_BL].add(dx_BLD, mode='drop')
  gradient_DV = gradient_VD.T.astype(empty_DV.dtype)
  if isinstance(like, Quantized):
    return like._replace(carrier=gradient_DV), None
  return gradient_DV, None


lookup.defvjp(_lookup_forward, _lookup_backward)


# Keys, values and attention.


@jax.custom_vjp
def quantize_kv(x_BMK: jax.Array, limit_K: jax.Array | None) -> Quantized:
  """Returns the int8 keys or values that a cache would hold.

  Args:
    x_BMK: keys (after the rotary embedding) or values.
    limit_K: running limit of each channel's magnitude, which takes code 127
      (`scales` [K] then), or None for a scale a token (`scales` [B, M]). Its
      virtual gradient is limit − largest |x| seen: whoever follows it down
      (`optimizer.follow_sign`) keeps the limit where the values are.
  """
  if limit_K is None:
    codes_BMK, scales_BM1 = int8.quantize(x_BMK, (-1,))
    scales = scales_BM1[..., 0]
  else:
    scales = int8.scale_of(limit_K)
    codes_BMK = int8.encode(x_BMK, scales[None, None])
  return Quantized(codes_BMK, scales, jnp.zeros_like(x_BMK))


def _quantize_kv_forward(x_BMK, limit_K):
  excess_K = None
  if limit_K is not None:
    seen_K = int8.largest(x_BMK, (0, 1))[0, 0]
    seen_K = collectives.largest(seen_K, 'BL', rules.ROWS)
    # Every device holds the limit, and their gradients are summed.
    excess_K = (limit_K - seen_K) / collectives.devices()
  return quantize_kv(x_BMK, limit_K), excess_K


def _quantize_kv_backward(excess_K, cotangent):
  return cotangent.carrier, excess_K


quantize_kv.defvjp(_quantize_kv_forward, _quantize_kv_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def int8_attention(
  window: int | None,
  scale: float,
  qk: str,
  implementation: str | None,
  q_BLHK: jax.Array,
  k_BMK: Quantized,
  v_BMK: Quantized,
  visibility: visibility_lib.Visibility,
) -> tuple[jax.Array, jax.Array]:
  """Attention over int8 keys and values, differentiable in q and the carriers.

  Args:
    window: positions a query sees, itself included; None for all.
    scale: multiplies the logits.
    qk: 'int8' quantizes q (a scale a token and head) for an s8 QKᵀ; 'none'
      dequantizes K.
    implementation: of the kernel; None chooses.
    q_BLHK: queries, in the model's dtype.
    k_BMK: codes of the keys, scales [B, M] or [K].
    v_BMK: codes of the values; dequantized before PV.
    visibility: which queries each key is seen by.

  Returns:
    out_BLHK in q's dtype and lse_BLH in f32, both differentiable.
  """
  return _int8_attention_forward(
    window, scale, qk, implementation, q_BLHK, k_BMK, v_BMK, visibility
  )[0]


def coded_queries(
  q_BLHK: jax.Array, k_scale: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns codes of the queries, and their scales [B, L, H], for an int8 QKᵀ.

  A scale a channel of K folds into q, so that QKᵀ stays an integer dot; the
  keys' scales are one then (`folded`).
  """
  if k_scale.ndim == 1:
    q_BLHK = q_BLHK * k_scale[None, None, None].astype(q_BLHK.dtype)
  codes_BLHK, scale_BLH1 = int8.quantize(q_BLHK, (-1,))
  return codes_BLHK, scale_BLH1[..., 0]


def folded(k_BMK: Quantized) -> jax.Array:
  """Returns the scales a token that `coded_queries` leaves to the keys."""
  if k_BMK.scales.ndim == 1:
    return jnp.ones(k_BMK.shape[:2], jnp.float32)
  return k_BMK.scales


def _kernel_arguments(qk, q_BLHK, k_BMK, v_BMK, visibility):
  q, q_scale_BLH, k_scale = q_BLHK, None, k_BMK.scales
  if qk == 'int8':
    q, q_scale_BLH = coded_queries(q_BLHK, k_scale)
    k_scale = folded(k_BMK)
  arrays = (q, k_BMK.codes, v_BMK.codes, *visibility)
  scales = {
    'q_scale_BLH': q_scale_BLH,
    'k_scale': k_scale,
    'v_scale': v_BMK.scales,
  }
  return arrays, scales


def _int8_attention_forward(
  window, scale, qk, implementation, q_BLHK, k_BMK, v_BMK, visibility
):
  arrays, scales = _kernel_arguments(qk, q_BLHK, k_BMK, v_BMK, visibility)
  out_BLHK, lse_BLH = api.forward(
    *arrays,
    window=window,
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
  window, scale, qk, implementation, residuals, cotangents
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
  scale: float,
  qk: str = 'none',
  implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
  """`int8_attention` for codes, the kernel itself for float keys and values."""
  if isinstance(k_BMK, Quantized):
    return int8_attention(
      window, scale, qk, implementation, q_BLHK, k_BMK, v_BMK, visibility
    )
  return api.attention(
    q_BLHK,
    k_BMK,
    v_BMK,
    *visibility,
    window=window,
    scale=scale,
    implementation=implementation,
  )

"""Multiplies with XLA's own s8×s8→s32 dot; XLA fuses the operations around it.

It is the default on every platform, because no measurement on real hardware has
shown a kernel of ours to be faster. An s8 dot must request int32: an s8 result
takes a path that is 100 times slower on a GPU (openxla/xla#7117). XLA widens
u8×s8 to s32, therefore a non-negative x has the s8 codes q − 128.

On a GPU, cuBLAS's s8 matmul takes the contracted dimension last in memory, so
XLA first makes a transposed copy of a weight [C, O].
"""

from jax import lax
import jax.numpy as jnp

from kaiju_jax.kernels.int8_matmul import reference

quantize = reference.quantize
quantize_stochastic = reference.quantize_stochastic


def multiply(
  codes_RC, scale_R, w, scale_O, *, contract, nonnegative, relu2, cut_R, dtype
):
  """Returns y_RO in `dtype`."""
  axis = 0 if contract == 'first' else 1
  return finish(
    _dot(codes_RC, w, 1, axis, jnp.int32),
    scale_R,
    w,
    scale_O,
    axis=axis,
    nonnegative=nonnegative,
    relu2=relu2,
    cut_R=cut_R,
    dtype=dtype,
  )


def finish(
  sums_RO, scale_R, w, scale_O, *, axis, nonnegative, relu2, cut_R, dtype
):
  """Returns y_RO of the codes' sums, of a weight contracted over `axis`."""
  if nonnegative:
    column_O = jnp.sum(w.astype(jnp.int32), axis=axis)
    sums_RO = sums_RO + 128 * column_O[None]
  scale_RO = scale_R[:, None] * scale_O[None]
  y_RO = (sums_RO.astype(jnp.float32) * scale_RO).astype(dtype)
  if relu2:
    y_RO = jnp.square(jnp.maximum(y_RO, 0))
  if cut_R is not None:
    cut_R1 = cut_R.astype(dtype)[:, None]
    y_RO = jnp.clip(y_RO, -cut_R1, cut_R1)
  return y_RO


def input_gradient(dy_RO, w, scale_O, *, contract, dtype):
  """Returns dx_RC in `dtype`, multiplied in `dtype`."""
  dy_RO = (dy_RO.astype(jnp.float32) * scale_O[None]).astype(dtype)
  axis = 1 if contract == 'first' else 0
  return _dot(dy_RO, w.astype(dtype), 1, axis, jnp.float32).astype(dtype)


def weight_gradient(
  codes_RC, scale_R, dy_RO, *, contract, nonnegative, dtype, out_dtype
):
  """Returns dw in `out_dtype`, with the weight's axes."""
  levels_RC = codes_RC.astype(dtype)
  if nonnegative:
    levels_RC = levels_RC + jnp.asarray(128, dtype)
  dy_RO = (dy_RO.astype(jnp.float32) * scale_R[:, None]).astype(dtype)
  operands = (levels_RC, dy_RO)
  if contract == 'last':
    operands = operands[::-1]
  return _dot(*operands, 0, 0, jnp.float32).astype(out_dtype)


def _dot(a, b, a_axis, b_axis, dtype):
  return lax.dot_general(
    a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=dtype
  )

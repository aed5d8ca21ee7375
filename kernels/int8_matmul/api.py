"""Multiplies int8 codes: quantizes rows, multiplies, applies the scales.

    y[r, o] = act((Σ_c code(x)[r, c] · w[c, o]) · (scale[r] · scale[o]))

R is rows (tokens), C contracted, O outputs. There is one scale per row of x and
one per output of w. `quantize` defines a row's codes. Weights are stored D
first, so that their contracted dimension is the first (w_in [D, F]) or the last
(w_out [D, F] and w_o [D, HK]). `contract` says which, and no implementation
copies the weight in another order (XLA itself may: `xla.py`).

These functions have no derivatives of their own. Training differentiates
straight through the rounding, by the rule of `quantization/qat/project.py`,
whose two products are `input_gradient` and `weight_gradient`. `reference.py` is
the definition. Every implementation gives the same codes, and the same y to the
last bit (its sum is an integer), on a device that divides float32 as IEEE
defines it. The gradients' products sum floats, each implementation in its own
order. `matmul` calls an implementation's `quantize` and `multiply`; a module
with a `matmul` of its own, `pallas_tpu`, does both in one kernel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks

RUNS_ON = {
  'reference': dispatch.ANYWHERE,
  'xla': dispatch.ANYWHERE,
  'numba_cpu': ('cpu',),
  'pallas_gpu': ('gpu',),
  'pallas_tpu': ('tpu',),
}
CONTRACT = ('first', 'last')
ROUNDING = ('nearest', 'stochastic')


class Product(NamedTuple):
  """The results of a matmul."""

  y_RO: jax.Array  # The product.
  # int8, the codes of x; None if x was float and `keep_codes` False.
  codes_RC: jax.Array | None
  scale_R: jax.Array  # float32, the scales of x's rows.


def quantize(
  x_RC, *, cut=None, limit=None, nonnegative=False, implementation=None
):
  """Quantizes rows; returns (codes_RC int8, scale_R float32).

  Args:
    x_RC: a float array.
    cut: float32, a scalar or [R]; x is first clipped to ±cut, in x's dtype.
    limit: float32, a scalar or [R]: the value of the largest code. With None it
      is each row's largest magnitude after the cut.
    nonnegative: whether to code x, which is ≥ 0, on 256 levels q, as q − 128.
    implementation: a key of `RUNS_ON`; with None the platform chooses.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  _check_floats('x_RC', x_RC)
  rows, columns = x_RC.shape
  _check_sizes(rows, columns)
  return _choose(implementation).quantize(
    x_RC,
    cut_R=_of_rows('cut', cut, rows),
    limit_R=_limit_of_rows(limit, x_RC),
    nonnegative=nonnegative,
  )


def matmul(
  x_RC,
  w,
  scale_O,
  *,
  contract,
  scale_R=None,
  cut=None,
  limit=None,
  nonnegative=False,
  relu2=False,
  out_cut=None,
  dtype=None,
  keep_codes=False,
  implementation=None,
) -> Product:
  """Returns the product of x and a weight, both as int8 codes.

  Args:
    x_RC: floats, which it quantizes, or int8 codes.
    w: int8 codes −127…127, [C, O] or [O, C].
    scale_O: float32, the scales of the weight's outputs.
    contract: 'first' or 'last', the dimension of w that is summed over.
    scale_R: float32, given exactly where x is codes.
    cut: see `quantize`; not with codes.
    limit: see `quantize`; not with codes.
    nonnegative: see `quantize`; with codes, whether they were made so.
    relu2: whether y becomes relu(y)², in `dtype`.
    out_cut: float32, a scalar or [R]; y is clipped to ±out_cut last.
    dtype: the dtype of y. The default is x's, or float32 where x is codes.
    keep_codes: whether to return the codes of x, for the backward pass.
    implementation: a key of `RUNS_ON`; with None the platform chooses.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  contracted, outputs = _check_weight(w, scale_O, contract)
  _check_columns('x_RC', x_RC, contracted, contract)
  # A sum must fit an int32.
  largest = 255 if nonnegative else 128
  most = (2**31 - 1) // (largest * 127)
  if contracted > most:
    raise ValueError(
      f'w contracts {contracted}: a sum of more than {most} products may'
      ' overflow an int32; cut the contraction into parts.'
    )
  rows = x_RC.shape[0]
  _check_sizes(rows, contracted, outputs)
  chosen = _choose(implementation)
  options = {'contract': contract, 'nonnegative': nonnegative, 'relu2': relu2}
  out_cut_R = _of_rows('out_cut', out_cut, rows)
  if x_RC.dtype == jnp.int8:
    for name, value in ('cut', cut), ('limit', limit):
      if value is not None:
        raise ValueError(
          f'{name} is given, but x_RC is int8: codes have been cut and scaled.'
        )
    _check_scale('scale_R', scale_R, rows)
    dtype = _float(dtype=dtype or jnp.float32)
    y_RO = chosen.multiply(
      x_RC, scale_R, w, scale_O, cut_R=out_cut_R, dtype=dtype, **options
    )
    return Product(y_RO, x_RC, scale_R)
  _check_floats('x_RC', x_RC)
  if scale_R is not None:
    raise ValueError(
      f'scale_R is given, but x_RC is {x_RC.dtype}: only int8 codes have'
      ' scales. The value that takes the largest code is `limit`.'
    )
  dtype = _float(dtype=dtype or x_RC.dtype)
  limits = {
    'cut_R': _of_rows('cut', cut, rows),
    'limit_R': _limit_of_rows(limit, x_RC),
  }
  if hasattr(chosen, 'matmul'):  # It quantizes and multiplies in one kernel.
    options |= {'out_cut_R': out_cut_R, 'dtype': dtype, **limits}
    return Product(
      *chosen.matmul(x_RC, w, scale_O, keep_codes=keep_codes, **options)
    )
  codes_RC, scale_R = chosen.quantize(x_RC, nonnegative=nonnegative, **limits)
  y_RO = chosen.multiply(
    codes_RC, scale_R, w, scale_O, cut_R=out_cut_R, dtype=dtype, **options
  )
  return Product(y_RO, codes_RC if keep_codes else None, scale_R)


def input_gradient(
  dy_RO,
  w,
  scale_O,
  *,
  contract,
  rounding='nearest',
  limit=None,
  dtype=None,
  implementation=None,
):
  """Returns dx_RC = (dy · scale) · wᵀ, the gradient with respect to x.

  Args:
    dy_RO: float, the cotangent of y.
    w: as for `matmul`.
    scale_O: as for `matmul`.
    contract: as for `matmul`.
    rounding: 'nearest' multiplies in `dtype`. 'stochastic' codes each row of
      dy · scale as int8, rounds up with the remainder as its probability, and
      multiplies codes; the noise is hashed from the value's bits and place.
    limit: float32, a scalar or [R]: the value of dy · scale at code 127. With
      None it is each row's largest magnitude. Only with 'stochastic'.
    dtype: the dtype of dx, and of the operands; by default dy's.
    implementation: a key of `RUNS_ON`; with None the platform chooses.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  contracted, outputs = _check_weight(w, scale_O, contract)
  _check_columns('dy_RO', dy_RO, outputs, contract, 'outputs')
  _check_floats('dy_RO', dy_RO)
  rows = dy_RO.shape[0]
  _check_sizes(rows, contracted, outputs)
  if rounding not in ROUNDING:
    raise ValueError(
      f'rounding={rounding!r}: must be one of {", ".join(map(repr, ROUNDING))}.'
    )
  dtype = _float(dtype=dtype or dy_RO.dtype)
  chosen = _choose(implementation)
  if rounding == 'nearest':
    if limit is not None:
      raise ValueError(
        "limit is given, but rounding='nearest' codes nothing: it goes with"
        " 'stochastic'."
      )
    return chosen.input_gradient(
      dy_RO, w, scale_O, contract=contract, dtype=dtype
    )
  codes_RO, scale_R = chosen.quantize_stochastic(
    dy_RO, scale_O, limit_R=_limit_of_rows(limit, dy_RO)
  )
  return chosen.multiply(
    codes_RO,
    scale_R,
    w,
    jnp.ones(contracted, jnp.float32),
    contract='last' if contract == 'first' else 'first',
    nonnegative=False,
    relu2=False,
    cut_R=None,
    dtype=dtype,
  )


def weight_gradient(
  codes_RC,
  scale_R,
  dy_RO,
  *,
  contract,
  nonnegative=False,
  dtype=None,
  out_dtype=None,
  implementation=None,
):
  """Returns dw = codesᵀ · (scale · dy), [C, O] or [O, C] like the weight.

  Args:
    codes_RC: int8, the codes of x, as `matmul` returned or took them.
    scale_R: float32, the scales of x's rows.
    dy_RO: float, the cotangent of y.
    contract: as for `matmul`.
    nonnegative: as for `matmul`.
    dtype: the operands' dtype, by default dy's; the sum is in float32.
    out_dtype: the dtype of dw, by default `dtype`.
    implementation: a key of `RUNS_ON`; with None the platform chooses.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  _check_contract(contract)
  if codes_RC.ndim != 2 or codes_RC.dtype != jnp.int8:
    raise TypeError(
      f'codes_RC is {codes_RC.dtype}{codes_RC.shape}: expected int8[R, C].'
    )
  rows = codes_RC.shape[0]
  _check_scale('scale_R', scale_R, rows)
  _check_floats('dy_RO', dy_RO)
  if dy_RO.shape[0] != rows:
    raise ValueError(
      f'dy_RO has {dy_RO.shape[0]} rows: expected {rows}, as codes_RC has.'
    )
  _check_sizes(rows, codes_RC.shape[1], dy_RO.shape[1])
  dtype = _float(dtype=dtype or dy_RO.dtype)
  return _choose(implementation).weight_gradient(
    codes_RC,
    scale_R,
    dy_RO,
    contract=contract,
    nonnegative=nonnegative,
    dtype=dtype,
    out_dtype=_float(out_dtype=out_dtype or dtype),
  )


def _choose(implementation):
  implementation = implementation or blocks.implementation()
  return dispatch.choose(__package__, implementation, RUNS_ON)


def _float(**named):
  """Returns the one argument's dtype, and refuses any but a float's."""
  ((name, dtype),) = named.items()
  dtype = jnp.dtype(dtype)
  if not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(f'{name}={dtype}: expected a float.')
  return dtype


def _of_rows(name, value, rows):
  """Returns a scalar or [R] as float32[R], and None unchanged."""
  if value is None:
    return None
  value = jnp.asarray(value)
  if value.shape not in ((), (rows,)):
    raise ValueError(
      f'{name} has shape {value.shape}: expected () or ({rows},), one per row.'
    )
  if not jnp.issubdtype(value.dtype, jnp.floating):
    raise TypeError(f'{name} is {value.dtype}: expected a float.')
  return jnp.broadcast_to(value.astype(jnp.float32), (rows,))


def _limit_of_rows(limit, x):
  """Returns a given limit as float32[R], and NaN for rows of x that hold NaN.

  A NaN has no code, so the row's scale becomes NaN, as it does without a limit.
  """
  limit_R = _of_rows('limit', limit, x.shape[0])
  if limit_R is None:
    return None
  return jnp.where(jnp.any(jnp.isnan(x), axis=1), jnp.nan, limit_R)


def _check_contract(contract) -> None:
  if contract not in CONTRACT:
    raise ValueError(
      f"contract={contract!r}: 'first' for a weight [C, O], 'last' for one"
      ' [O, C].'
    )


def _check_weight(w, scale_O, contract) -> tuple[int, int]:
  """Returns (C, O); refuses a weight or scales that do not fit."""
  _check_contract(contract)
  if w.ndim != 2:
    raise ValueError(f'w has shape {w.shape}: expected two dims.')
  if w.dtype != jnp.int8:
    raise TypeError(f'w is {w.dtype}: expected int8 codes.')
  contracted, outputs = w.shape if contract == 'first' else w.shape[::-1]
  _check_scale('scale_O', scale_O, outputs)
  return contracted, outputs


def _check_scale(name, scale, size) -> None:
  if scale is None:
    raise ValueError(f'{name} is missing: int8 codes need float32[{size}].')
  if scale.shape != (size,):
    raise ValueError(f'{name} has shape {scale.shape}: expected ({size},).')
  if scale.dtype != jnp.float32:
    raise TypeError(f'{name} is {scale.dtype}: expected float32.')


def _check_columns(name, x, size, contract, what='contracted') -> None:
  if x.ndim != 2 or x.shape[1] != size:
    raise ValueError(
      f'{name} has shape {x.shape}: expected (rows, {size}), as w has {size}'
      f' {what} with contract={contract!r}.'
    )


def _check_floats(name, x) -> None:
  if x.ndim != 2:
    raise ValueError(f'{name} has shape {x.shape}: expected two dims.')
  if x.dtype not in (jnp.bfloat16, jnp.float32):
    raise TypeError(f'{name} is {x.dtype}: expected bfloat16 or float32.')


def _check_sizes(rows, contracted, outputs=1) -> None:
  """Refuses empty dimensions, and arrays whose indices overflow an int32."""
  sizes = {'R': rows, 'C': contracted, 'O': outputs}
  for name, size in sizes.items():
    if size < 1:
      raise ValueError(f'{name} = {size}: no dimension may be empty.')
  for one, other in ('RC', 'RO', 'CO'):
    if sizes[one] * sizes[other] >= 2**31:
      raise ValueError(
        f'{one} × {other} = {sizes[one]} × {sizes[other]}: a kernel counts to'
        ' 2³¹ elements; cut the rows into parts.'
      )

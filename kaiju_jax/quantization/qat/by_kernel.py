"""The three products of `project.int8_einsum`, by the `int8_matmul` kernels.

A kernel takes rows, contracted columns and outputs. Here B and L become rows,
and H and K one dimension, without moving a byte. A weight keeps its order in
memory and is contracted on its first dimension or its last.

If devices split a contracted letter, a row's largest value lies on one of them.
The devices then agree on the limit first, and the kernel takes it as an
argument.
"""

import math

import jax
import jax.numpy as jnp

from kaiju_jax.kernels.int8_matmul import api
from kaiju_jax.quantization import int8
from kaiju_jax.quantization.qat import letters as letters_lib
from kaiju_jax.sharding import collectives


def forward(
  letters: letters_lib.Letters,
  x: jax.Array | int8.Quantized,
  w: int8.Quantized,
  limit: jax.Array | None,
  *,
  nonnegative: bool,
  dtype,
  keep_codes: bool,
  implementation: str,
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
  """Returns y, and the codes (None unless kept) and scales of x.

  Args:
    letters: the einsum's letters.
    x: activations, or their codes.
    w: the weight.
    limit: a scalar that gets the largest code; None for each row's largest
      magnitude.
    nonnegative: whether x ≥ 0.
    dtype: the dtype of y.
    keep_codes: whether the backward pass needs the codes.
  """
  shape = x.shape
  outer = shape[: len(shape) - len(letters.contracted)]
  operands = {}
  if isinstance(x, int8.Quantized):
    x, operands['scale_R'] = x.codes, x.scales.reshape(-1)
  elif limit is not None:
    operands['limit'] = limit.reshape(())
  elif collectives.axes_of(letters.contracted):
    limit = int8.largest(x, range(len(outer), len(shape)))
    limit = collectives.largest(limit, letters.contracted)
    operands['limit'] = limit.reshape(-1)
  product = api.matmul(
    _rows(x, letters.contracted),
    _matrix(w.codes, letters),
    w.scales.reshape(-1),
    contract=letters.contract,
    nonnegative=nonnegative,
    dtype=dtype,
    keep_codes=keep_codes,
    implementation=implementation,
    **operands,
  )
  kept = [size for size, name in zip(w.shape, letters.w) if name in letters.out]
  codes = product.codes_RC
  return (
    product.y_RO.reshape(*outer, *kept),
    None if codes is None else codes.reshape(shape),
    product.scale_R.reshape(*outer, *[1] * len(letters.contracted)),
  )


def input_gradient(
  letters: letters_lib.Letters,
  dy: jax.Array,
  w: int8.Quantized,
  *,
  rounding: str,
  dtype,
  implementation: str,
) -> jax.Array:
  """Returns dx in `dtype`; `rounding` is 'nearest' or 'stochastic'."""
  outputs = ''.join(name for name in letters.w if name in letters.out)
  dy_RO = _rows(dy, outputs)
  scale_O = w.scales.reshape(-1)
  limit = None
  if rounding == 'stochastic' and collectives.axes_of(outputs):
    largest_R1 = int8.largest(dy_RO.astype(jnp.float32) * scale_O[None], (1,))
    limit = collectives.largest(largest_R1, outputs)[:, 0]
  dx_RC = api.input_gradient(
    dy_RO,
    _matrix(w.codes, letters),
    scale_O,
    contract=letters.contract,
    rounding=rounding,
    limit=limit,
    dtype=dtype,
    implementation=implementation,
  )
  outer = dy.shape[: len(dy.shape) - len(outputs)]
  inner = [
    size for size, name in zip(w.shape, letters.w) if name in letters.contracted
  ]
  return dx_RC.reshape(*outer, *inner)


def weight_gradient(
  letters: letters_lib.Letters,
  codes: jax.Array,
  scales: jax.Array,
  dy: jax.Array,
  w: int8.Quantized,
  *,
  nonnegative: bool,
  dtype,
  out_dtype,
  implementation: str,
) -> jax.Array:
  """Returns dw in `out_dtype`, from the codes and scales of x."""
  outputs = ''.join(name for name in letters.w if name in letters.out)
  return api.weight_gradient(
    _rows(codes, letters.contracted),
    scales.reshape(-1),
    _rows(dy, outputs),
    contract=letters.contract,
    nonnegative=nonnegative,
    dtype=dtype,
    out_dtype=out_dtype,
    implementation=implementation,
  ).reshape(w.shape)


def _rows(x: jax.Array, columns: str) -> jax.Array:
  """Returns x as a matrix whose columns are its last letters."""
  inner = math.prod(x.shape[x.ndim - len(columns) :])
  return x.reshape(-1, inner)


def _matrix(codes: jax.Array, letters: letters_lib.Letters) -> jax.Array:
  """Returns a weight as a matrix of the same bytes."""
  contracted = math.prod(
    size
    for size, name in zip(codes.shape, letters.w)
    if name in letters.contracted
  )
  if letters.contract == 'first':
    return codes.reshape(contracted, -1)
  return codes.reshape(-1, contracted)

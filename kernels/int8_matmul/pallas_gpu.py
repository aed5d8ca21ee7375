"""The int8 matmul in Pallas Triton, for the H100.

A product takes two kernels. The first (`gpu_rows.py`) reads the rows of x once
from memory and writes codes, which the backward pass needs anyway. The second
(`gpu_tiles.py`) multiplies codes and applies the scales in registers. If the
second quantized as well, it would repeat that for each block of outputs: about
twenty vector operations per element, at 128 per clock, for 128 columns of
tensor-core work at 4,096 per clock. That would take five times as long as the
product. The first kernel reads 2·R·C bytes and writes R·C.
"""

import jax.numpy as jnp

from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.kernels.int8_matmul import coding
from kaiju_jax.kernels.int8_matmul import gpu_rows
from kaiju_jax.kernels.int8_matmul import gpu_tiles

quantize = gpu_rows.quantize
quantize_stochastic = gpu_rows.quantize_stochastic


def multiply(
  codes_RC, scale_R, w, scale_O, *, contract, nonnegative, relu2, cut_R, dtype
):
  """Returns y_RO in `dtype`."""
  rows, contracted = codes_RC.shape
  sizes = blocks.gpu(
    rows, contracted, scale_O.shape[0], contract, dtype.itemsize
  )
  axis = 0 if contract == 'first' else 1
  vectors = [scale_R, scale_O]
  if nonnegative:
    vectors.append(128 * jnp.sum(w.astype(jnp.int32), axis=axis))
  if cut_R is not None:
    vectors.append(cut_R)

  def finish(sums_IJ, tile, refs):
    if nonnegative:
      sums_IJ += gpu_tiles.vector(refs[2], tile.column, sizes.O)[None]
    scale_I = gpu_tiles.vector(refs[0], tile.row, sizes.R)
    scale_J = gpu_tiles.vector(refs[1], tile.column, sizes.O)
    at_I1 = None
    if cut_R is not None:
      at_I = gpu_tiles.vector(refs[-1], tile.row, sizes.R)
      at_I1 = coding.rounded_to(at_I, dtype)[:, None]
    return coding.finish(
      sums_IJ,
      scale_I[:, None] * scale_J[None],
      at_I1,
      relu2=relu2,
      dtype=dtype,
    )

  return gpu_tiles.product(
    gpu_tiles.Operand(codes_RC, 1),
    gpu_tiles.Operand(w, axis),
    vectors,
    sizes,
    finish=finish,
    sums=jnp.int32,
    dtype=dtype,
    name='int8_matmul',
  )


def input_gradient(dy_RO, w, scale_O, *, contract, dtype):
  """Returns dx_RC in `dtype`, of operands in `dtype`."""
  rows, outputs = dy_RO.shape
  axis = 1 if contract == 'first' else 0
  sizes = blocks.gpu_float(rows, outputs, w.shape[1 - axis], dtype.itemsize)

  def scaled(dy_IJ, start, refs):
    scale_J = gpu_tiles.vector(refs[0], start, sizes.C)
    return (dy_IJ.astype(jnp.float32) * scale_J[None]).astype(dtype)

  return gpu_tiles.product(
    gpu_tiles.Operand(dy_RO, 1, scaled),
    gpu_tiles.Operand(w, axis, lambda w, start, refs: w.astype(dtype)),
    [scale_O],
    sizes,
    finish=lambda sums_IJ, tile, refs: sums_IJ,
    sums=jnp.float32,
    dtype=dtype,
    name='int8_matmul_dx',
  )


def weight_gradient(
  codes_RC, scale_R, dy_RO, *, contract, nonnegative, dtype, out_dtype
):
  """Returns dw, laid out as the weight, in `out_dtype`."""
  rows, contracted = codes_RC.shape
  free = contracted, dy_RO.shape[1]
  if contract == 'last':
    free = free[::-1]
  sizes = blocks.gpu_float(free[0], rows, free[1], dtype.itemsize)

  def levels(codes_JI, start, refs):
    codes_JI = codes_JI.astype(jnp.float32)
    return (codes_JI + 128.0 if nonnegative else codes_JI).astype(dtype)

  def scaled(dy_JI, start, refs):
    scale_J = gpu_tiles.vector(refs[0], start, sizes.C)
    return (dy_JI.astype(jnp.float32) * scale_J[:, None]).astype(dtype)

  operands = [
    gpu_tiles.Operand(codes_RC, 0, levels),
    gpu_tiles.Operand(dy_RO, 0, scaled),
  ]
  if contract == 'last':
    operands.reverse()
  return gpu_tiles.product(
    *operands,
    [scale_R],
    sizes,
    finish=lambda sums_IJ, tile, refs: sums_IJ,
    sums=jnp.float32,
    dtype=out_dtype,
    name='int8_matmul_dw',
  )

"""Quantizes rows to int8 codes in Pallas Triton: one read from memory.

A program quantizes a few rows. Without a limit it reads them twice, first for
the largest magnitude. The second read comes from the cache: with rows of 51,200
bf16 the programs of an H100 read 26 MB at once, and its cache has 50 MB.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.kernels.int8_matmul import coding
from kaiju_jax.kernels.int8_matmul import gpu_tiles


class _Kind(NamedTuple):
  nonnegative: bool
  has_cut: bool
  has_limit: bool


def quantize(x_RC, *, cut_R, limit_R, nonnegative):
  """Returns (codes_RC, scale_R)."""
  kind = _Kind(nonnegative, cut_R is not None, limit_R is not None)
  return _call(_nearest, kind, x_RC, (cut_R, limit_R), 'int8_quantize')


def quantize_stochastic(dy_RO, scale_O, *, limit_R):
  """Returns (codes_RO, scale_R) of dy · scale, rounded stochastically."""
  kind = _Kind(False, False, limit_R is not None)
  return _call(
    _stochastic, kind, dy_RO, (scale_O, limit_R), 'int8_quantize_stochastic'
  )


def _call(kernel, kind, x_RC, vectors, name):
  rows, columns = x_RC.shape
  sizes = blocks.gpu_rows(rows, columns)
  return pl.pallas_call(
    functools.partial(kernel, kind=kind, sizes=sizes),
    grid=(pl.cdiv(rows, sizes.R),),
    out_shape=(
      jax.ShapeDtypeStruct(x_RC.shape, jnp.int8),
      jax.ShapeDtypeStruct((rows,), jnp.float32),
    ),
    compiler_params=plgpu.CompilerParams(
      num_warps=sizes.warps, num_stages=sizes.stages
    ),
    interpret=dispatch.interpreting(),
    name=name,
  )(x_RC, *(vector for vector in vectors if vector is not None))


def _nearest(x_ref, *refs, kind, sizes):
  """Quantizes rows to the nearest code."""
  *vector_refs, codes_ref, scale_ref = refs
  row = pl.program_id(0) * sizes.R
  vectors_I1 = [
    gpu_tiles.vector(ref, row, sizes.R)[:, None] for ref in vector_refs
  ]

  def values(start):
    x_IJ = gpu_tiles.load(x_ref, (row, start), (sizes.R, sizes.C))
    x_IJ = x_IJ.astype(jnp.float32)
    if not kind.has_cut:
      return x_IJ
    return coding.cut(x_IJ, coding.rounded_to(vectors_I1[0], x_ref.dtype))

  if kind.has_limit:
    limit_I1 = vectors_I1[-1]
  else:
    limit_I1 = _largest(values, sizes, x_ref.shape[1])
  largest_code = 255.0 if kind.nonnegative else 127.0
  scale_I1 = coding.scale_of(limit_I1, largest_code, _divide)

  def encode(x_IJ, start):
    del start
    return coding.encode(_divide(x_IJ, scale_I1), kind.nonnegative)

  _store(codes_ref, scale_ref, row, sizes, values, encode, scale_I1)


def _stochastic(dy_ref, scale_O_ref, *refs, kind, sizes):
  """Quantizes rows of dy · scale by stochastic rounding."""
  *limit_refs, codes_ref, scale_ref = refs
  row = pl.program_id(0) * sizes.R
  columns = dy_ref.shape[1]

  def values(start):
    dy_IJ = gpu_tiles.load(dy_ref, (row, start), (sizes.R, sizes.C))
    scale_J = gpu_tiles.vector(scale_O_ref, start, sizes.C)
    return dy_IJ.astype(jnp.float32) * scale_J[None]

  if kind.has_limit:
    limit_I1 = gpu_tiles.vector(limit_refs[0], row, sizes.R)[:, None]
  else:
    limit_I1 = _largest(values, sizes, columns)
  scale_I1 = coding.scale_of(limit_I1, 127.0, _divide)

  def encode(dy_IJ, start):
    i_IJ, j_IJ = (
      lax.broadcasted_iota(jnp.int32, dy_IJ.shape, axis) for axis in (0, 1)
    )
    place_IJ = (row + i_IJ) * columns + start + j_IJ
    return coding.encode_stochastic(
      _divide(dy_IJ, scale_I1), coding.uniform(dy_IJ, place_IJ)
    )

  _store(codes_ref, scale_ref, row, sizes, values, encode, scale_I1)


def _largest(values, sizes, columns):
  """Returns the rows' largest magnitudes; NaN where a row holds one."""

  def larger(n, bits_IJ):
    return jnp.maximum(bits_IJ, coding.magnitude_bits(values(n * sizes.C)))

  bits_IJ = lax.fori_loop(
    0,
    pl.cdiv(columns, sizes.C),
    larger,
    jnp.zeros((sizes.R, sizes.C), jnp.int32),
  )
  return coding.from_bits(jnp.max(bits_IJ, axis=1))[:, None]


def _store(codes_ref, scale_ref, row, sizes, values, encode, scale_I1):
  def code(n, _):
    start = n * sizes.C
    gpu_tiles.store(codes_ref, (row, start), encode(values(start), start))
    return _

  lax.fori_loop(0, pl.cdiv(codes_ref.shape[1], sizes.C), code, None)
  gpu_tiles.store(scale_ref, (row,), scale_I1.reshape(sizes.R))


def _divide(x, y):
  """Returns x / y as IEEE defines it, unlike Triton's own division.

  Args:
    x: float32.
    y: float32 that broadcasts against x, or a number.
  """
  if dispatch.interpreting():
    return x / y
  if isinstance(y, float):
    bits = int(np.float32(y).view(np.uint32))
    operands, divisor, constraints = (x,), f'0f{bits:08X}', '=f,f'
  else:
    y = jnp.broadcast_to(y, x.shape)
    operands, divisor, constraints = (x, y), '$2', '=f,f,f'
  (quotient,) = plgpu.elementwise_inline_asm(
    f'div.rn.f32 $0, $1, {divisor};',
    args=operands,
    constraints=constraints,
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, jnp.float32)],
  )
  return quotient

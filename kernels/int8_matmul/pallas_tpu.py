"""The int8 matmul in Pallas for the TPU: one kernel, each row read once.

The grid is blocks of rows, then blocks of outputs, then blocks of the
contracted dimension. The kernel loads a block of whole rows into VMEM and
quantizes it there before its first product; all blocks of outputs use these
codes. So it reads x from memory once, and writes codes only where the backward
pass needs them. Bytes: 2·R·C for x, R·C for codes if kept, C·O for the weight
per block of rows, and R·O results.

The backward pass's product with the weight is the same kernel: its rows are dy
times the weight's scales, in bf16 or as stochastically rounded codes. The MXU
takes a weight's block in either order.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.kernels.int8_matmul import coding


class _Coding(NamedTuple):
  """The way that rows become the left operand of the dot."""

  # 'nearest', 'nonnegative' or 'stochastic' codes of x; 'scaled' for x times
  # the columns' scales in `dtype`; 'codes' for x unchanged.
  kind: str
  has_cut: bool = False  # Whether each row has a cut.
  has_limit: bool = False  # Whether each row has a limit.
  dtype: jnp.dtype = jnp.dtype(jnp.int8)  # The operand's dtype.

  @property
  def makes_codes(self) -> bool:
    return self.kind in ('nearest', 'nonnegative', 'stochastic')

  @property
  def has_columns(self) -> bool:
    return self.kind in ('stochastic', 'scaled')


class _Finish(NamedTuple):
  """The way that a sum becomes the result."""

  dtype: jnp.dtype  # The result's dtype.
  # Whether rows have scales, because x was given as codes.
  has_row_scale: bool = False
  has_scale: bool = False  # Whether outputs have scales.
  has_offset: bool = False  # Whether an int32 per output is added to the sum.
  has_cut: bool = False  # Whether each row has a cut.
  relu2: bool = False  # Whether the result is relu(y)².


def quantize(x_RC, *, cut_R, limit_R, nonnegative):
  """Returns (codes_RC, scale_R)."""
  kind = _Coding(
    'nonnegative' if nonnegative else 'nearest',
    cut_R is not None,
    limit_R is not None,
  )
  return _quantize(kind, x_RC, _columns(cut_R, limit_R))


def quantize_stochastic(dy_RO, scale_O, *, limit_R):
  """Returns (codes_RO, scale_R) of dy · scale, rounded stochastically."""
  kind = _Coding('stochastic', has_limit=limit_R is not None)
  return _quantize(kind, dy_RO, [*_columns(limit_R), scale_O[None]])


def multiply(
  codes_RC, scale_R, w, scale_O, *, contract, nonnegative, relu2, cut_R, dtype
):
  """Returns y_RO in `dtype`."""
  finish = _Finish(dtype, True, True, nonnegative, cut_R is not None, relu2)
  y_RO, _, _ = _product(
    codes_RC,
    w,
    _Coding('codes'),
    finish,
    [
      *_columns(scale_R, cut_R),
      scale_O[None],
      *_offsets(w, contract, nonnegative),
    ],
    0 if contract == 'first' else 1,
  )
  return y_RO


def matmul(
  x_RC,
  w,
  scale_O,
  *,
  cut_R,
  limit_R,
  nonnegative,
  contract,
  relu2,
  out_cut_R,
  dtype,
  keep_codes,
):
  """Returns (y_RO, codes_RC or None, scale_R)."""
  kind = _Coding(
    'nonnegative' if nonnegative else 'nearest',
    cut_R is not None,
    limit_R is not None,
  )
  finish = _Finish(
    dtype, False, True, nonnegative, out_cut_R is not None, relu2
  )
  return _product(
    x_RC,
    w,
    kind,
    finish,
    [
      *_columns(cut_R, limit_R, out_cut_R),
      scale_O[None],
      *_offsets(w, contract, nonnegative),
    ],
    0 if contract == 'first' else 1,
    keep_codes,
  )


def input_gradient(dy_RO, w, scale_O, *, contract, dtype):
  """Returns dx_RC in `dtype`, of operands in `dtype`."""
  y_RC, _, _ = _product(
    dy_RO,
    w,
    _Coding('scaled', dtype=dtype),
    _Finish(dtype),
    [scale_O[None]],
    1 if contract == 'first' else 0,
  )
  return y_RC


def weight_gradient(
  codes_RC, scale_R, dy_RO, *, contract, nonnegative, dtype, out_dtype
):
  """Returns dw, laid out as the weight, in `out_dtype`."""
  rows, contracted = codes_RC.shape
  outputs = dy_RO.shape[1]
  sizes = blocks.tpu_weight(rows, contracted, outputs)
  grid = tuple(
    pl.cdiv(size, block)
    for size, block in zip((contracted, outputs, rows), sizes)
  )
  swapped = contract == 'last'

  def out_block(i, j, k):
    del k
    return (j, i) if swapped else (i, j)

  shape, block = (contracted, outputs), (sizes.C, sizes.O)
  if swapped:
    shape, block = shape[::-1], block[::-1]
  return pl.pallas_call(
    functools.partial(
      _weight_kernel,
      rows=rows,
      nonnegative=nonnegative,
      dtype=dtype,
      swapped=swapped,
    ),
    grid=grid,
    in_specs=[
      pl.BlockSpec((sizes.R, sizes.C), lambda i, j, k: (k, i)),
      pl.BlockSpec((sizes.R, 1), lambda i, j, k: (k, 0)),
      pl.BlockSpec((sizes.R, sizes.O), lambda i, j, k: (k, j)),
    ],
    out_specs=pl.BlockSpec(block, out_block),
    out_shape=jax.ShapeDtypeStruct(shape, out_dtype),
    scratch_shapes=[pltpu.VMEM(block, jnp.float32)],
    compiler_params=_parameters(),
    interpret=dispatch.interpreting(),
    name='int8_matmul_dw',
  )(codes_RC, scale_R[:, None], dy_RO)


def _weight_kernel(
  codes_ref,
  scale_ref,
  dy_ref,
  out_ref,
  sum_ref,
  *,
  rows,
  nonnegative,
  dtype,
  swapped,
):
  step = pl.program_id(2)
  levels_IJ = codes_ref[...].astype(jnp.float32)
  if nonnegative:
    levels_IJ = levels_IJ + 128.0
  dy_IJ = dy_ref[...].astype(jnp.float32) * scale_ref[...]
  if rows % dy_ref.shape[0]:
    # Places beyond the last row hold arbitrary values, even NaN.
    place_IJ = step * dy_ref.shape[0] + lax.broadcasted_iota(
      jnp.int32, dy_IJ.shape, 0
    )
    dy_IJ = jnp.where(place_IJ < rows, dy_IJ, 0.0)
  operands = levels_IJ.astype(dtype), dy_IJ.astype(dtype)
  if swapped:
    operands = operands[::-1]
  _add(sum_ref, step, _dot(*operands, 0, 0, jnp.float32))

  @pl.when(step == pl.num_programs(2) - 1)
  def _():
    out_ref[...] = sum_ref[...].astype(out_ref.dtype)


def _columns(*vectors):
  """Returns vectors [R] as columns [R, 1]; leaves out None."""
  return [vector[:, None] for vector in vectors if vector is not None]


def _offsets(w, contract, nonnegative):
  if not nonnegative:
    return []
  axis = 0 if contract == 'first' else 1
  return [128 * jnp.sum(w.astype(jnp.int32), axis=axis)[None]]


def _parameters():
  return pltpu.CompilerParams(
    dimension_semantics=('parallel', 'arbitrary', 'arbitrary'),
    vmem_limit_bytes=blocks.VMEM_LIMIT,
  )


def _product(x_RC, w, kind, finish, vectors, axis, keep_codes=False):
  """Returns (y_RO, codes_RC or None, scale_R or None).

  Args:
    x_RC: rows.
    w: int8 codes.
    kind: the `_Coding` of the rows.
    finish: the `_Finish` of the sums.
    vectors: [R, 1] of rows, then [1, C] or [1, O] of columns, in the order
      that `kind` and `finish` name them.
    axis: the contracted axis of w, 0 or 1.
    keep_codes: whether to return the codes.
  """
  rows, contracted = x_RC.shape
  outputs = w.shape[1 - axis]
  kept = 0 if kind.kind == 'codes' else kind.dtype.itemsize
  sizes = blocks.tpu(
    rows, contracted, outputs, x_RC.dtype.itemsize, kept * (1 + keep_codes)
  )
  grid = (
    pl.cdiv(rows, sizes.R),
    pl.cdiv(outputs, sizes.O),
    contracted // sizes.C,
  )
  whole_rows = pl.BlockSpec((sizes.R, contracted), lambda i, j, k: (i, 0))
  of_row = pl.BlockSpec((sizes.R, 1), lambda i, j, k: (i, 0))
  of_output = pl.BlockSpec((1, sizes.O), lambda i, j, k: (0, j))
  of_column = pl.BlockSpec((1, contracted), lambda i, j, k: (0, 0))
  if axis == 0:
    w_spec = pl.BlockSpec((sizes.C, sizes.O), lambda i, j, k: (k, j))
  else:
    w_spec = pl.BlockSpec((sizes.O, sizes.C), lambda i, j, k: (j, k))
  specs = []
  for vector in vectors:
    if vector.shape[1] == 1 and len(specs) < _row_vectors(kind, finish):
      specs.append(of_row)
    else:
      specs.append(of_column if kind.has_columns else of_output)
  results = [jax.ShapeDtypeStruct((rows, outputs), finish.dtype)]
  result_specs = [pl.BlockSpec((sizes.R, sizes.O), lambda i, j, k: (i, j))]
  if kind.makes_codes:
    results.append(jax.ShapeDtypeStruct((rows, 1), jnp.float32))
    result_specs.append(of_row)
  if keep_codes:
    results.append(jax.ShapeDtypeStruct(x_RC.shape, jnp.int8))
    result_specs.append(whole_rows)
  is_integer = kind.dtype == jnp.int8
  scratch = [
    pltpu.VMEM((sizes.R, sizes.O), jnp.int32 if is_integer else jnp.float32)
  ]
  if kind.kind != 'codes' and not keep_codes:
    scratch.append(pltpu.VMEM((sizes.R, contracted), kind.dtype))
  found = pl.pallas_call(
    functools.partial(
      _product_kernel,
      kind=kind,
      finish=finish,
      sizes=sizes,
      axis=axis,
      keep_codes=keep_codes,
    ),
    grid=grid,
    in_specs=[whole_rows, w_spec, *specs],
    out_specs=result_specs,
    out_shape=results,
    scratch_shapes=scratch,
    compiler_params=_parameters(),
    interpret=dispatch.interpreting(),
    name='int8_matmul' if is_integer else 'int8_matmul_dx',
  )(x_RC, w, *vectors)
  y_RO, *rest = found
  scale_R = rest.pop(0)[:, 0] if kind.makes_codes else None
  return y_RO, rest.pop(0) if keep_codes else None, scale_R


def _row_vectors(kind, finish):
  return kind.has_cut + kind.has_limit + finish.has_row_scale + finish.has_cut


def _product_kernel(x_ref, w_ref, *refs, kind, finish, sizes, axis, keep_codes):
  refs = list(refs)
  cut_ref = refs.pop(0) if kind.has_cut else None
  limit_ref = refs.pop(0) if kind.has_limit else None
  scale_ref = refs.pop(0) if finish.has_row_scale else None
  at_ref = refs.pop(0) if finish.has_cut else None
  column_ref = refs.pop(0) if kind.has_columns else None
  scale_O_ref = refs.pop(0) if finish.has_scale else None
  offset_ref = refs.pop(0) if finish.has_offset else None
  y_ref = refs.pop(0)
  if kind.makes_codes:
    scale_ref = refs.pop(0)
  operand_ref = refs.pop(0) if keep_codes else None
  sum_ref = refs.pop(0)
  if kind.kind == 'codes':
    operand_ref = x_ref
  elif not keep_codes:
    operand_ref = refs.pop(0)

  block, output, step = map(pl.program_id, range(3))

  if kind.kind != 'codes':

    @pl.when((output == 0) & (step == 0))
    def _():
      _prepare(
        x_ref,
        cut_ref,
        limit_ref,
        column_ref,
        operand_ref,
        scale_ref,
        kind,
        block * sizes.R,
      )

  left_IJ = operand_ref[:, _part(step, sizes.C, operand_ref.shape[1])]
  right = w_ref[...].astype(kind.dtype)
  _add(sum_ref, step, _dot(left_IJ, right, 1, axis, sum_ref.dtype))

  @pl.when(step == pl.num_programs(2) - 1)
  def _():
    if scale_ref is None:
      y_ref[...] = sum_ref[...].astype(y_ref.dtype)
      return
    sums_IJ = sum_ref[...]
    if offset_ref is not None:
      sums_IJ = sums_IJ + offset_ref[...]
    at_I1 = None if at_ref is None else at_ref[...]
    y_ref[...] = coding.finish(
      sums_IJ,
      scale_ref[...] * scale_O_ref[...],
      coding.rounded_to(at_I1, finish.dtype),
      relu2=finish.relu2,
      dtype=finish.dtype,
    )


def _prepare(
  x_ref, cut_ref, limit_ref, column_ref, operand_ref, scale_ref, kind, first
):
  """Writes the dot's left operand of a block of rows, a few rows at a time."""
  columns = x_ref.shape[1]
  height = min(blocks.TPU_ROWS, x_ref.shape[0])
  width = blocks.tpu_columns(columns)

  def rows_from(n, _):
    rows = _part(n, height, x_ref.shape[0])

    def values(m):
      places = _part(m, width, columns)
      x_IJ = x_ref[rows, places].astype(jnp.float32)
      if column_ref is not None:
        x_IJ = x_IJ * column_ref[:, places]
      if cut_ref is not None:
        at_I1 = coding.rounded_to(cut_ref[rows], x_ref.dtype)
        x_IJ = coding.cut(x_IJ, at_I1)
      return places, x_IJ

    scale_I1 = None
    if kind.makes_codes:
      scale_I1 = _scale(values, limit_ref, rows, kind, (height, width), columns)
      scale_ref[rows] = scale_I1

    def write(m, _):
      places, x_IJ = values(m)
      start = m * width, first + n * height
      operand_ref[rows, places] = _code(x_IJ, scale_I1, kind, start, columns)
      return _

    return lax.fori_loop(0, columns // width, write, _)

  lax.fori_loop(0, x_ref.shape[0] // height, rows_from, 0)


def _part(n, size, whole):
  """Returns the slice of part n, and tells the compiler its alignment."""
  return pl.ds(0 if size == whole else pl.multiple_of(n * size, size), size)


def _scale(values, limit_ref, rows, kind, shape, columns):
  if limit_ref is not None:
    limit_I1 = limit_ref[rows]
  else:

    def larger(m, bits_IJ):
      return jnp.maximum(bits_IJ, coding.magnitude_bits(values(m)[1]))

    bits_IJ = lax.fori_loop(
      0, columns // shape[1], larger, jnp.zeros(shape, jnp.int32)
    )
    limit_I1 = coding.from_bits(jnp.max(bits_IJ, axis=1, keepdims=True))
  largest_code = 255.0 if kind.kind == 'nonnegative' else 127.0
  return coding.scale_of(limit_I1, largest_code, jnp.divide)


def _code(x_IJ, scale_I1, kind, start, columns):
  if kind.kind == 'scaled':
    return x_IJ.astype(kind.dtype)
  quotient_IJ = x_IJ / scale_I1
  if kind.kind != 'stochastic':
    return coding.encode(quotient_IJ, kind.kind == 'nonnegative')
  i_IJ, j_IJ = (
    lax.broadcasted_iota(jnp.int32, x_IJ.shape, axis) for axis in (0, 1)
  )
  place_IJ = (start[1] + i_IJ) * columns + start[0] + j_IJ
  return coding.encode_stochastic(quotient_IJ, coding.uniform(x_IJ, place_IJ))


def _quantize(kind, x_RC, vectors):
  """Returns (codes, scale_R) without the product."""
  rows, columns = x_RC.shape
  block = blocks.tpu_quantize(rows, columns, x_RC.dtype.itemsize)

  def kernel(x_ref, *refs):
    refs = list(refs)
    cut_ref = refs.pop(0) if kind.has_cut else None
    limit_ref = refs.pop(0) if kind.has_limit else None
    column_ref = refs.pop(0) if kind.has_columns else None
    codes_ref, scale_ref = refs
    first = pl.program_id(0) * block
    _prepare(
      x_ref, cut_ref, limit_ref, column_ref, codes_ref, scale_ref, kind, first
    )

  whole_rows = pl.BlockSpec((block, columns), lambda i: (i, 0))
  of_row = pl.BlockSpec((block, 1), lambda i: (i, 0))
  of_column = pl.BlockSpec((1, columns), lambda i: (0, 0))
  count = kind.has_cut + kind.has_limit
  codes_RC, scale_R1 = pl.pallas_call(
    kernel,
    grid=(pl.cdiv(rows, block),),
    in_specs=[
      whole_rows,
      *[of_row] * count,
      *[of_column] * (len(vectors) - count),
    ],
    out_specs=[whole_rows, of_row],
    out_shape=[
      jax.ShapeDtypeStruct(x_RC.shape, jnp.int8),
      jax.ShapeDtypeStruct((rows, 1), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel',), vmem_limit_bytes=blocks.VMEM_LIMIT
    ),
    interpret=dispatch.interpreting(),
    name='int8_quantize',
  )(x_RC, *vectors)
  return codes_RC, scale_R1[:, 0]


def _add(sum_ref, step, part):
  @pl.when(step == 0)
  def _():
    sum_ref[...] = part

  @pl.when(step != 0)
  def _():
    sum_ref[...] += part


def _dot(a, b, a_axis, b_axis, dtype):
  return lax.dot_general(
    a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=dtype
  )

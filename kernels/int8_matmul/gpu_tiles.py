"""Multiplies matrices in Pallas Triton, one tile of the result per program.

Tensor cores take s8 operands only with the contracted dimension last. A tile of
a weight [C, O] is therefore transposed on its way through shared memory. The
program reads it as four tiles of every fourth row, so that a thread holds four
codes of one column, packs them into a word and writes the word. (If it read one
tile, it would write each code separately, and loads would not be pipelined.)

Dimensions that the block size does not divide are masked.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch

_TURNED = 4


class Tile(NamedTuple):
  """The first row and column of a program's tile of the result."""

  row: jax.Array
  column: jax.Array


class Operand(NamedTuple):
  """One side of a product."""

  array: jax.Array  # A matrix.
  axis: int  # Its contracted axis.
  # A function of (block, its start along `axis`, refs of the vectors) that
  # returns the operand of the dot; with None that is the block.
  prepare: Callable | None = None


def product(
  left: Operand,
  right: Operand,
  vectors,
  sizes,
  *,
  finish: Callable,
  sums,
  dtype,
  name: str,
) -> jax.Array:
  """Returns finish(left · right), [R, O].

  Args:
    left: the operand whose free dimension is R.
    right: the operand whose free dimension is O.
    vectors: arrays of one dimension, for `prepare` and `finish`.
    sizes: blocks.Gpu.
    finish: a function of (sum, Tile, refs of the vectors) that returns the
      block to store.
    sums: dtype of the sum.
    dtype: the result's dtype.
    name: the kernel's name.
  """
  rows, contracted = _sizes(left)
  outputs, _ = _sizes(right)
  down, across = pl.cdiv(rows, sizes.R), pl.cdiv(outputs, sizes.O)
  block = _block
  if _turns(right):
    # The same bytes, with four rows in one: [C/4, 4·O].
    block = _turn
    right = Operand(right.array.reshape(-1, _TURNED * outputs), 1)

  def kernel(left_ref, right_ref, *refs):
    *vector_refs, out_ref = refs
    i, j = _place(pl.program_id(0), down, across, sizes.group)
    tile = Tile(i * sizes.R, j * sizes.O)

    def add(n, total):
      start = n * sizes.C
      a = _block(left_ref, left.axis, tile.row, sizes.R, start, sizes.C)
      b = block(right_ref, right.axis, tile.column, sizes.O, start, sizes.C)
      if left.prepare is not None:
        a = left.prepare(a, start, vector_refs)
      if right.prepare is not None:
        b = right.prepare(b, start, vector_refs)
      return total + lax.dot_general(
        a,
        b,
        (((left.axis,), (right.axis,)), ((), ())),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=sums,
      )

    total = lax.fori_loop(
      0, pl.cdiv(contracted, sizes.C), add, jnp.zeros((sizes.R, sizes.O), sums)
    )
    store(out_ref, tile, finish(total, tile, vector_refs))

  return pl.pallas_call(
    kernel,
    grid=(down * across,),
    out_shape=jax.ShapeDtypeStruct((rows, outputs), dtype),
    compiler_params=plgpu.CompilerParams(
      num_warps=sizes.warps, num_stages=sizes.stages
    ),
    interpret=dispatch.interpreting(),
    name=name,
  )(left.array, right.array, *vectors)


def _sizes(operand):
  """Returns the sizes (free, contracted) of an operand."""
  shape = operand.array.shape
  return shape[1 - operand.axis], shape[operand.axis]


def _turns(right):
  """Returns whether the right operand's tiles must be transposed."""
  is_codes = right.array.dtype == jnp.int8 and right.prepare is None
  return is_codes and right.axis == 0 and right.array.shape[0] % _TURNED == 0


def _place(program, down, across, group):
  """Returns the tile (i, j) of a program.

  Successive programs take `group` rows of tiles column by column. Programs that
  run at the same time then read few different rows and columns, which the
  second-level cache holds.
  """
  first = program // (group * across) * group
  height = jnp.minimum(down - first, group)
  within = program % (group * across)
  return first + within % height, within // height


def _block(ref, axis, free, free_size, contracted, contracted_size):
  """Returns a block of an operand."""
  starts, sizes = (free, contracted), (free_size, contracted_size)
  if axis == 0:
    starts, sizes = starts[::-1], sizes[::-1]
  return load(ref, starts, sizes)


def _turn(ref, axis, column, columns, row, rows):
  """Returns a block [O, C] of an array [C/4, 4·O], transposed."""
  del axis
  height, outputs = ref.shape[0], ref.shape[1] // _TURNED
  starts, sizes = (row // _TURNED, column), (rows // _TURNED, columns)
  mask = _find_inside((height, outputs), starts, sizes)
  quarters = [
    _mask(_view(ref, (starts[0], n * outputs + column), sizes), mask)
    for n in range(_TURNED)
  ]
  # Four times [C/4, O] become [C/4, O, 2, 2], in the order of the rows.
  pairs = [_join(quarters[0], quarters[2]), _join(*quarters[1::2])]
  words = _join(*pairs).transpose(1, 0, 2, 3)
  return words.reshape(columns, rows)


def _join(a, b):
  return jnp.concatenate([a[..., None], b[..., None]], axis=-1)


def vector(ref, start, size):
  """Returns a block of a vector."""
  return load(ref, (start,), (size,))


def load(ref, starts, sizes):
  """Returns a block, with zeros outside the array."""
  return _mask(
    _view(ref, starts, sizes), _find_inside(ref.shape, starts, sizes)
  )


def _mask(view, mask):
  return plgpu.load(view, mask=mask, other=None if mask is None else 0)


def store(ref, starts, values) -> None:
  """Stores the part of a block that is inside the array."""
  plgpu.store(
    _view(ref, starts, values.shape),
    values.astype(ref.dtype),
    mask=_find_inside(ref.shape, starts, values.shape),
  )


def _view(ref, starts, sizes):
  return ref.at[tuple(map(pl.ds, starts, sizes))]


def _find_inside(shape, starts, sizes):
  """Returns a mask of a block's places inside the array; None if all are."""
  mask = None
  for axis, (start, size) in enumerate(zip(starts, sizes)):
    if shape[axis] % size:
      place = start + lax.broadcasted_iota(jnp.int32, sizes, axis)
      inside = place < shape[axis]
      mask = inside if mask is None else mask & inside
  return mask

"""Squinch in Pallas Mosaic, for TPUs: 32 groups of 128 columns at a time.

Encoding reads the gradient once, as bf16 or f32, and writes each plane once.
Decoding reads all sources of a sum once and writes the sum once. A strided load
of every eighth row gives row i of 32 groups (in bf16, which has two rows per
word, of every fourth word), so that no value leaves its lane. The tables lie
along the lanes of vectors, 128 entries each, and a lane looks up its header's
entry.
"""

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.squinch import blocks
from kaiju_jax.kernels.squinch import groups
from kaiju_jax.kernels.squinch import reference

_G, _C = blocks.TPU_GROUPS, blocks.TPU_COLUMNS
_ROWS = reference.GROUP * _G
_SUBLANES = 8
_UPPER = np.int32(-(2**16))


def encode_parts(
  x_RC: jax.Array, parts: int, elements: str, header: str
) -> jax.Array:
  """See `reference.encode_parts`."""
  if x_RC.dtype != jnp.bfloat16:
    x_RC = x_RC.astype(jnp.float32)
  rows, columns = x_RC.shape
  rows //= parts
  sizes = blocks.tpu(
    'encode',
    parts=parts,
    groups=rows // reference.GROUP,
    itemsize=x_RC.dtype.itemsize,
  )
  x_NRC = x_RC.reshape(parts, rows, columns)
  return _encode(x_NRC, elements, header, sizes, dispatch.interpreting())


# Jitted separately, so that a kernel is traced and lowered once for all weights
# of a shape. Every choice must be an argument, because the first trace stays.
@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _encode(
  x_NRC: jax.Array,
  elements: str,
  header: str,
  sizes: blocks.Tpu,
  interpret: bool,
) -> jax.Array:
  parts, rows, columns = x_NRC.shape
  count = rows // reference.GROUP

  def kernel(scale_ref, x_ref, out_ref, words_ref):
    def step(j, _):
      planes = groups.encode(
        _rows(x_ref, words_ref, j),
        functools.partial(_look_up, scale_ref),
        functools.partial(groups.element, elements=elements),
        header,
      )
      place = pl.ds(pl.multiple_of(j * _G, _G), _G)
      for i, plane in enumerate(planes):
        out_ref[i, place] = plane.astype(jnp.uint8)
      return _

    lax.fori_loop(0, sizes.G // _G, step, 0)

  scales = _table(reference.SCALES[elements, header])
  return pl.pallas_call(
    kernel,
    name='squinch_encode',
    out_shape=jax.ShapeDtypeStruct(
      (parts, reference.PLANES, count, columns),
      jnp.uint8,
      manual_axis_type=jax.typeof(x_NRC).manual_axis_type,
    ),
    grid=(parts, pl.cdiv(count, sizes.G), pl.cdiv(columns, _C)),
    in_specs=[
      pl.BlockSpec(scales.shape, lambda n, g, c: (0, 0)),
      pl.BlockSpec(
        (None, reference.GROUP * sizes.G, _C), lambda n, g, c: (n, g, c)
      ),
    ],
    out_specs=pl.BlockSpec(
      (None, reference.PLANES, sizes.G, _C), lambda n, g, c: (n, 0, g, c)
    ),
    scratch_shapes=[pltpu.VMEM((_ROWS // 2, _C), jnp.int32)],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'parallel')
    ),
    interpret=interpret,
  )(scales, x_NRC)


def decode_sum(packed_NPGC: jax.Array, elements: str, header: str) -> jax.Array:
  """See `reference.decode_sum`."""
  parts, _, count, _ = packed_NPGC.shape
  sizes = blocks.tpu('decode', parts=parts, groups=count, itemsize=4)
  return _decode(packed_NPGC, elements, header, sizes, dispatch.interpreting())


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _decode(
  packed_NPGC: jax.Array,
  elements: str,
  header: str,
  sizes: blocks.Tpu,
  interpret: bool,
) -> jax.Array:
  parts, planes, count, columns = packed_NPGC.shape

  def kernel(unit_ref, level_ref, packed_ref, out_ref):
    def places(j):
      return [
        pl.ds(j * _ROWS + i, _G, stride=reference.GROUP)
        for i in range(reference.GROUP)
      ]

    def decoded(j, n):
      place = pl.ds(pl.multiple_of(j * _G, _G), _G)
      return groups.decode(
        [packed_ref[n, i, place].astype(jnp.int32) for i in range(planes)],
        functools.partial(_look_up, unit_ref),
        functools.partial(_look_up, level_ref),
        elements,
      )

    def step(is_first, j, _):
      if is_first:
        rows = decoded(j, 0)
      else:
        rows = [out_ref[place] for place in places(j)]
      for n in range(is_first, sizes.N):
        rows = [row + more for row, more in zip(rows, decoded(j, n))]
      for place, row in zip(places(j), rows):
        out_ref[place] = row
      return _

    def steps(is_first):
      lax.fori_loop(0, sizes.G // _G, functools.partial(step, is_first), 0)

    is_first = pl.program_id(2) == 0
    pl.when(is_first)(functools.partial(steps, True))
    pl.when(~is_first)(functools.partial(steps, False))

  units = _table(reference.UNITS[elements, header])
  levels = _table(reference.FITTED)
  return pl.pallas_call(
    kernel,
    name='squinch_decode',
    out_shape=jax.ShapeDtypeStruct(
      (reference.GROUP * count, columns),
      jnp.float32,
      manual_axis_type=jax.typeof(packed_NPGC).manual_axis_type,
    ),
    grid=(pl.cdiv(count, sizes.G), pl.cdiv(columns, _C), parts // sizes.N),
    in_specs=[
      pl.BlockSpec(units.shape, lambda g, c, n: (0, 0)),
      pl.BlockSpec(levels.shape, lambda g, c, n: (0, 0)),
      pl.BlockSpec(
        (sizes.N, planes, sizes.G, _C), lambda g, c, n: (n, 0, g, c)
      ),
    ],
    out_specs=pl.BlockSpec(
      (reference.GROUP * sizes.G, _C), lambda g, c, n: (g, c)
    ),
    compiler_params=pltpu.CompilerParams(
      # Sources are the last dimension, so that the sum stays in VMEM.
      dimension_semantics=('parallel', 'parallel', 'arbitrary')
    ),
    interpret=interpret,
  )(units, levels, packed_NPGC)


def _rows(x_ref, words_ref, j) -> list[jax.Array]:
  """Returns rows 0…7 of the j-th 32 groups, bits of float32 as int32."""
  if x_ref.dtype != jnp.bfloat16:
    rows = [
      x_ref[pl.ds(j * _ROWS + i, _G, stride=reference.GROUP)]
      for i in range(reference.GROUP)
    ]
    return [lax.bitcast_convert_type(row, jnp.int32) for row in rows]
  # A bf16 is the upper half of a float32. The first of a word's two rows is in
  # the lower half.
  place = pl.ds(pl.multiple_of(j * _ROWS, _ROWS), _ROWS)
  words_ref[...] = pltpu.bitcast(x_ref[place], jnp.int32)
  stride = reference.GROUP // 2
  words = [words_ref[pl.ds(i, _G, stride=stride)] for i in range(stride)]
  return [row for word in words for row in (word << 16, word & _UPPER)]


def _table(entries: np.ndarray) -> jax.Array:
  """Returns up to 256 entries as float32[·, 128]."""
  padded = np.zeros(-(-len(entries) // _C) * _C, np.float32)
  padded[: len(entries)] = entries
  return jnp.asarray(padded.reshape(-1, _C))


def _look_up(table_ref, index: jax.Array) -> jax.Array:
  """Returns entries of a `_table`, a vector of indices at a time."""
  vectors = jnp.split(index, len(index) // _SUBLANES)
  return jnp.concatenate([_entries(table_ref, vector) for vector in vectors])


def _entries(table_ref, index: jax.Array) -> jax.Array:
  rows = len(table_ref)
  lane = index & (_C - 1) if rows > 1 else index
  found = [
    jnp.take_along_axis(
      # The same entries in all sublanes.
      jnp.broadcast_to(table_ref[i : i + 1], index.shape),
      lane,
      axis=1,
      mode='promise_in_bounds',
    )
    for i in range(rows)
  ]
  return found[0] if rows == 1 else jnp.where(index < _C, *found)

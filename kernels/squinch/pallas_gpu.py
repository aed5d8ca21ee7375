"""Squinch in Pallas Triton, for GPUs: eight rows of a tile per program.

Encoding reads the gradient once, as bf16 or f32, and writes each plane once.
Decoding reads all sources of a sum once and writes the sum once. A program
loads each of its eight rows separately, so that the lanes of a warp read
neighbouring places and no value leaves its thread. It reads the tables through
pointers; they fill a few lines of cache.
"""

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.squinch import blocks
from kaiju_jax.kernels.squinch import groups
from kaiju_jax.kernels.squinch import reference

# This computes the root as sqrt.rn does for normal numbers, without its branch,
# and the floor by a sum that rounds down and leaves the element in the low
# bits. The clamp from below avoids the root of zero, which would be NaN here;
# the clamp from above limits the element to 15. Triton's own root is
# approximate, and its casts saturate.
_ELEMENT = """{{
  .reg .f32 p, r, s, e;
  mul.rn.f32 p, $1, $2;
  max.f32 p, p, 0f{least:08X};
  min.f32 p, p, 0f{most:08X};
  rsqrt.approx.ftz.f32 r, p;
  mul.rn.f32 s, p, r;
  mul.rn.f32 r, r, 0f3F000000;
  neg.f32 e, s;
  fma.rn.f32 e, e, s, p;
  fma.rn.f32 s, e, r, s;
  add.rn.f32 s, s, 0f{half:08X};
  add.rm.f32 s, s, 0f4B000000;
  mov.b32 $0, s;
}}"""
_LEAST = 1e-30
# The clamp from above: large enough for element 15, too small for 16.
_MOST = {'zero': 240.0, 'floor': 255.0}
_HALF = {'zero': 0.5, 'floor': 0.0}


def encode_parts(
  x_RC: jax.Array, parts: int, elements: str, header: str
) -> jax.Array:
  """See `reference.encode_parts`."""
  rows, columns = x_RC.shape
  count = rows // (reference.GROUP * parts)
  x_NGIC = x_RC.reshape(parts, count, reference.GROUP, columns)
  sizes = blocks.gpu(
    'encode',
    parts=parts,
    groups=count,
    columns=columns,
    itemsize=x_RC.dtype.itemsize,
  )
  return _encode(x_NGIC, elements, header, sizes, dispatch.interpreting())


# Jitted separately, so that a kernel is traced and lowered once for all weights
# of a shape. Every choice must be an argument, because the first trace stays.
@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _encode(
  x_NGIC: jax.Array,
  elements: str,
  header: str,
  sizes: blocks.Gpu,
  interpret: bool,
) -> jax.Array:
  parts, count, _, columns = x_NGIC.shape
  across, down = pl.cdiv(columns, sizes.C), pl.cdiv(count, sizes.G)

  def place(p):
    return p // (across * down), p // across % down, p % across

  def kernel(x_ref, scale_ref, out_ref):
    _, g, c = place(pl.program_id(0))
    load, store = _mask(g, c, sizes, count, columns)
    rows = [
      lax.bitcast_convert_type(
        load(x_ref.at[:, _index(i)]).astype(jnp.float32), jnp.int32
      )
      for i in range(reference.GROUP)
    ]
    element = functools.partial(
      _element, elements=elements, interpret=interpret
    )
    planes = groups.encode(rows, lambda q: scale_ref[q], element, header)
    for i, plane in enumerate(planes):
      store(out_ref.at[_index(i)], plane.astype(jnp.uint8))

  def row_block(p):
    n, g, c = place(p)
    return n, g, 0, c

  def plane_block(p):
    n, g, c = place(p)
    return n, 0, g, c

  scales = jnp.asarray(reference.SCALES[elements, header])
  return pl.pallas_call(
    kernel,
    name='squinch_encode',
    out_shape=jax.ShapeDtypeStruct(
      (parts, reference.PLANES, count, columns),
      jnp.uint8,
      manual_axis_type=jax.typeof(x_NGIC).manual_axis_type,
    ),
    grid=(parts * down * across,),
    in_specs=[
      pl.BlockSpec((None, sizes.G, reference.GROUP, sizes.C), row_block),
      pl.BlockSpec(scales.shape, lambda p: (0,)),
    ],
    out_specs=pl.BlockSpec(
      (None, reference.PLANES, sizes.G, sizes.C), plane_block
    ),
    compiler_params=plgpu.CompilerParams(num_warps=sizes.warps, num_stages=1),
    interpret=interpret,
  )(x_NGIC, scales)


def decode_sum(packed_NPGC: jax.Array, elements: str, header: str) -> jax.Array:
  """See `reference.decode_sum`."""
  parts, _, count, columns = packed_NPGC.shape
  sizes = blocks.gpu(
    'decode', parts=parts, groups=count, columns=columns, itemsize=4
  )
  return _decode(packed_NPGC, elements, header, sizes, dispatch.interpreting())


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _decode(
  packed_NPGC: jax.Array,
  elements: str,
  header: str,
  sizes: blocks.Gpu,
  interpret: bool,
) -> jax.Array:
  parts, planes, count, columns = packed_NPGC.shape
  across, down = pl.cdiv(columns, sizes.C), pl.cdiv(count, sizes.G)

  def kernel(packed_ref, unit_ref, level_ref, out_ref):
    g, c = pl.program_id(0) // across, pl.program_id(0) % across
    load, store = _mask(g, c, sizes, count, columns)

    def add(step, rows):
      # All loads of a step come before its arithmetic, to wait for them once.
      loaded = [
        [
          load(packed_ref.at[step * sizes.N + n, _index(i)])
          for i in range(planes)
        ]
        for n in range(sizes.N)
      ]
      for packed in loaded:
        decoded = groups.decode(
          [plane.astype(jnp.int32) for plane in packed],
          lambda q: unit_ref[q],
          lambda k: level_ref[k],
          elements,
        )
        rows = [row + more for row, more in zip(rows, decoded)]
      return rows

    # -0 + x is x, even where x is -0.
    nothing = jnp.full((sizes.G, sizes.C), -0.0, jnp.float32)
    rows = lax.fori_loop(0, parts // sizes.N, add, [nothing] * reference.GROUP)
    for i, row in enumerate(rows):
      store(out_ref.at[:, _index(i)], row)

  units = jnp.asarray(reference.UNITS[elements, header])
  levels = jnp.asarray(reference.FITTED, jnp.float32)
  sum_GIC = pl.pallas_call(
    kernel,
    name='squinch_decode',
    out_shape=jax.ShapeDtypeStruct(
      (count, reference.GROUP, columns),
      jnp.float32,
      manual_axis_type=jax.typeof(packed_NPGC).manual_axis_type,
    ),
    grid=(down * across,),
    in_specs=[
      pl.BlockSpec(
        (parts, planes, sizes.G, sizes.C),
        lambda p: (0, 0, p // across, p % across),
      ),
      pl.BlockSpec(units.shape, lambda p: (0,)),
      pl.BlockSpec(levels.shape, lambda p: (0,)),
    ],
    out_specs=pl.BlockSpec(
      (sizes.G, reference.GROUP, sizes.C),
      lambda p: (p // across, 0, p % across),
    ),
    compiler_params=plgpu.CompilerParams(num_warps=sizes.warps, num_stages=1),
    interpret=interpret,
  )(packed_NPGC, units, levels)
  return sum_GIC.reshape(reference.GROUP * count, columns)


def _mask(g, c, sizes: blocks.Gpu, count: int, columns: int):
  """Returns functions that load and store a tile's places inside the array."""
  if count % sizes.G == 0 and columns % sizes.C == 0:
    return plgpu.load, plgpu.store
  tile = sizes.G, sizes.C
  row = g * sizes.G + lax.broadcasted_iota(jnp.int32, tile, 0)
  column = c * sizes.C + lax.broadcasted_iota(jnp.int32, tile, 1)
  mask = (row < count) & (column < columns)
  return (
    functools.partial(plgpu.load, mask=mask, other=0),
    functools.partial(plgpu.store, mask=mask),
  )


def _index(i: int) -> np.int32:
  """Returns an index as an array; interpreted masked loads require it."""
  return np.int32(i)


def _element(
  size: jax.Array, scale: jax.Array, elements: str, interpret: bool
) -> jax.Array:
  if elements == 'fitted' or interpret:
    return groups.element(size, scale, elements)
  [found] = plgpu.elementwise_inline_asm(
    assembly(elements),
    args=[size, scale],
    constraints='=r,f,f',
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(size.shape, jnp.int32)],
  )
  return found


def assembly(elements: str) -> str:
  """Returns PTX that computes an element of magnitude $1 and scale $2."""
  return _ELEMENT.format(
    least=_word(_LEAST),
    most=_word(_MOST[elements]),
    half=_word(_HALF[elements]),
  )


def _word(x: float) -> int:
  return int(np.float32(x).view(np.uint32))

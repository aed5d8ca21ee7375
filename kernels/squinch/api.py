"""Encodes gradients in 6 bits per number, and decodes them or sums of them.

    packed = api.encode(x_RC)                 uint8[6, R/8, C]
    parts = api.encode_parts(x_RC, 8)         uint8[8, 6, R/64, C]
    x̂_RC = api.decode(packed)                float32[R, C]
    sum_RC = api.decode_sum(received)         float32[R/8, C] of eight parts

`reference.py` defines the layout, the element codes and the headers. An
implementation gives the reference's bits where its root and its logarithm do.
Decoding uses neither, and gives the same bits on every device. Encoding with
the header

    quarter   gives the bits that the reference gives on a CPU, wherever the
              root is rounded correctly (on a GPU, by construction)
    ln6       may give the next header, one up or down, where a backend's
              logarithm differs in its last bits at the edge between two
              headers; both headers then represent the numbers equally well

A kernel reads its operand once, bf16 as bf16, and writes its result once: 0.75
bytes per encoded number, or 4 per number of a sum.
"""

import operator
import types

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.squinch import blocks
from kaiju_jax.kernels.squinch import reference

RUNS_ON = {
  'reference': dispatch.ANYWHERE,
  'pallas_gpu': ('gpu',),
  'pallas_tpu': ('tpu',),
}


def encode(
  x_RC: jax.Array,
  elements: str = 'zero',
  header: str = 'ln6',
  *,
  implementation: str | None = None,
) -> jax.Array:
  """Returns the planes of x, uint8[6, R/8, C].

  Args:
    x_RC: floats; R a multiple of 8.
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.
    implementation: a key of `RUNS_ON`; with None platform and shape choose.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  return encode_parts(x_RC, 1, elements, header, implementation=implementation)[
    0
  ]


def encode_parts(
  x_RC: jax.Array,
  parts: int,
  elements: str = 'zero',
  header: str = 'ln6',
  *,
  implementation: str | None = None,
) -> jax.Array:
  """Returns the planes of N parts of x, uint8[N, 6, R/8N, C].

  Each part's bytes are contiguous.

  Args:
    x_RC: floats; R a multiple of 8N.
    parts: N, the number of equal parts that the rows are cut into, in order.
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.
    implementation: as for `encode`.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  reference.check(elements, header)
  if x_RC.ndim != 2:
    raise ValueError(f'x_RC has shape {x_RC.shape}: expected rows and columns.')
  if not jnp.issubdtype(x_RC.dtype, jnp.floating):
    raise TypeError(f'x_RC is {x_RC.dtype}: Squinch takes floats.')
  if operator.index(parts) < 1:
    raise ValueError(f'parts={parts}: must be at least 1.')
  rows, columns = x_RC.shape
  if rows % (reference.GROUP * parts):
    raise ValueError(
      f'x_RC has {rows} rows: must be a multiple of {reference.GROUP} ×'
      f' {parts} parts; pad with zeros.'
    )
  count = rows // (reference.GROUP * parts)
  module = _choose(implementation, parts, count, columns)
  if not x_RC.size:
    module = reference
  return module.encode_parts(x_RC, parts, elements, header)


def decode(
  packed_PGC: jax.Array,
  elements: str = 'zero',
  header: str = 'ln6',
  *,
  implementation: str | None = None,
) -> jax.Array:
  """Returns float32[8 · G, C] of `encode`'s planes.

  Args:
    packed_PGC: uint8[6, G, C].
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.
    implementation: as for `encode`.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  _check_packed('packed_PGC', packed_PGC)
  return decode_sum(
    packed_PGC[None], elements, header, implementation=implementation
  )


def decode_sum(
  packed_NPGC: jax.Array,
  elements: str = 'zero',
  header: str = 'ln6',
  *,
  implementation: str | None = None,
) -> jax.Array:
  """Returns float32[8 · G, C], the sum of N decoded sources in their order.

  Args:
    packed_NPGC: uint8[N, 6, G, C]; N at least 1.
    elements: one of `reference.ELEMENTS`.
    header: one of `reference.HEADERS`.
    implementation: as for `encode`.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  reference.check(elements, header)
  _check_packed('packed_NPGC', packed_NPGC)
  parts, _, count, columns = packed_NPGC.shape
  module = _choose(implementation, parts, count, columns)
  if not packed_NPGC.size:
    module = reference
  return module.decode_sum(packed_NPGC, elements, header)


def _choose(
  implementation: str | None, parts: int, count: int, columns: int
) -> types.ModuleType:
  if implementation is None:
    implementation = blocks.implementation(
      dispatch.platform(), parts, count, columns
    )
  return dispatch.choose(__package__, implementation, RUNS_ON)


def _check_packed(name: str, packed: jax.Array) -> None:
  letters = name.split('_')[-1]
  if packed.dtype != jnp.uint8:
    raise TypeError(f'{name} is {packed.dtype}: Squinch is uint8.')
  if packed.ndim != len(letters) or packed.shape[-3] != reference.PLANES:
    form = 'N, 6, G, C' if 'N' in letters else '6, G, C'
    raise ValueError(f'{name} has shape {packed.shape}: expected [{form}].')
  if 'N' in letters and not len(packed):
    raise ValueError(f'{name} has shape {packed.shape}: a sum of no sources.')

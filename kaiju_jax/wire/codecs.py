"""Forms in which a gradient may be sent: Squinch, and what it is compared with.

A codec pairs a function that returns the decoded x_RC with its bits per number,
headers included. Blocks run along the rows (d_model), as Squinch's eight do;
rows that fill no block are padded with zeros.

    f32, bf16      no blocks
    zero, floor, fitted
                   Squinch, 6 bits: 8 numbers share an 8-bit logarithm
                   (`-q` with the second header, quarter)
    int8 … int4    blocks of 32, scale = max |x| / m in bf16, codes −m … m,
                   m = 127, 31, 7, nearest even: 8.5, 6.5, 4.5 bits
    mxfp6          blocks of 32, scale 2^(⌊log₂ max⌋ − e) in 8 bits (E8M0),
                   elements e2m3 (e = 2, to 7.5) or e3m2 (e = 4, to 28),
                   nearest even, cut at the largest: 6.25 bits (the Open
                   Compute Project's Microscaling Formats 1.0)

How the integers are blocked and scaled is our guess at what is usual. In
training (`wire_gradients='int4'`) gradients are rounded to them as a contrast
to Squinch, and cross as floats, which saves no bytes (`int4`).
"""

from collections.abc import Callable
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from kaiju_jax.kernels.squinch import reference
from kaiju_jax.quantization import int8

MX_BLOCK = 32
_INTEGER_BLOCK = 32
_FLAT_BLOCK = 256
# 2^−127 is in E8M0, but no normal float32.
_LEAST_EXPONENT, _LARGEST_EXPONENT = -126, 127


@dataclasses.dataclass(frozen=True)
class MeasuredCodec:
  """A way to send a gradient."""

  name: str  # The codec's name in tables.
  bits: float  # Bits sent per number, scales and headers included.
  # x_RC → float32[R, C], what arrives.
  round_trip: Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Minifloat:
  """A float of few bits, without inf and NaN."""

  mantissa: int  # Its bits.
  least: int  # Exponent of the smallest normal number, and of those below it.
  largest: float  # Value.
  exponent: int  # Exponent of `largest`.


E2M3 = Minifloat(mantissa=3, least=0, largest=7.5, exponent=2)
E3M2 = Minifloat(mantissa=2, least=-2, largest=28.0, exponent=4)


def bf16(x_RC: jax.Array) -> jax.Array:
  """Returns x rounded to bfloat16, as float32."""
  return x_RC.astype(jnp.bfloat16).astype(jnp.float32)


def squinch(x_RC: jax.Array, elements: str, header: str = 'ln6') -> jax.Array:
  """Returns what arrives by Squinch."""
  rows = x_RC.shape[0]
  padded_RC = _pad(x_RC, reference.GROUP)
  packed_PGC = reference.encode(padded_RC, elements, header)
  return reference.decode(packed_PGC, elements, header)[:rows]


def integers(x_RC: jax.Array, largest: int) -> jax.Array:
  """Returns what arrives as codes −largest … largest times a block's scale."""
  x_GIC = _blocks(x_RC, _INTEGER_BLOCK)
  return _rows(_round_blocks(x_GIC, largest), x_RC)


def int4(x: jax.Array, flat: bool) -> jax.Array:
  """Returns a gradient rounded to int4 codes −7 … 7, as float32.

  Args:
    x: a gradient, D first.
    flat: whether blocks hold 256 elements in memory's order, which cross hidden
      units and vocabulary, instead of 32 along D. (Blocks are smaller if the
      size is no multiple of these.)
  """
  rows = x.astype(jnp.float32)
  if flat:
    blocks = rows.reshape(-1, math.gcd(x.size, _FLAT_BLOCK))
  else:
    blocks = rows.reshape(
      -1, math.gcd(x.shape[0], _INTEGER_BLOCK), *x.shape[1:]
    )
  return _round_blocks(blocks, 7).reshape(x.shape)


def microscale(x_RC: jax.Array, element: Minifloat) -> jax.Array:
  """Returns what arrives as an MX block of `element`s."""
  x_GIC = _blocks(x_RC, MX_BLOCK)
  largest_G1C = jnp.max(jnp.abs(x_GIC), axis=1, keepdims=True)
  exponent_G1C = jnp.clip(
    _exponent(largest_G1C) - element.exponent,
    _LEAST_EXPONENT,
    _LARGEST_EXPONENT,
  )
  scale_G1C = jnp.ldexp(jnp.float32(1), exponent_G1C)
  return _rows(minifloat(x_GIC / scale_G1C, element) * scale_G1C, x_RC)


def minifloat(x: jax.Array, element: Minifloat) -> jax.Array:
  """Returns the nearest `element` to each x, even at a tie, cut at both ends.

  Args:
    x: float32 array of any shape.
    element: the format.
  """
  exponent = jnp.maximum(_exponent(x), element.least)
  step = jnp.ldexp(jnp.float32(1), exponent - element.mantissa)
  return jnp.clip(jnp.round(x / step) * step, -element.largest, element.largest)


def _exponent(x: jax.Array) -> jax.Array:
  """Returns ⌊log₂ |x|⌋, exactly; 0's is one less than 1's."""
  return jnp.frexp(x)[1] - 1


def _round_blocks(blocks_GI: jax.Array, largest: int) -> jax.Array:
  """Rounds blocks along the second dimension to codes times scales."""
  limit = int8.largest(blocks_GI, (1,))
  scale = (limit / largest).astype(jnp.bfloat16).astype(jnp.float32)
  # If bfloat16 rounded the scale down, the largest may lie above its code.
  codes = jnp.round(blocks_GI / jnp.where(scale == 0, 1, scale))
  return jnp.clip(codes, -largest, largest) * scale


def _pad(x_RC: jax.Array, block: int) -> jax.Array:
  x_RC = x_RC.astype(jnp.float32)
  return jnp.pad(x_RC, ((0, -x_RC.shape[0] % block), (0, 0)))


def _blocks(x_RC: jax.Array, block: int) -> jax.Array:
  return _pad(x_RC, block).reshape(-1, block, x_RC.shape[1])


def _rows(x_GIC: jax.Array, like_RC: jax.Array) -> jax.Array:
  rows, columns = like_RC.shape
  return x_GIC.reshape(-1, columns)[:rows]


def _squinch(elements: str, header: str) -> MeasuredCodec:
  name = elements if header == 'ln6' else f'{elements}-q'
  return MeasuredCodec(
    name,
    8 * reference.PLANES / reference.GROUP,
    functools.partial(squinch, elements=elements, header=header),
  )


def _integers(bits: int) -> MeasuredCodec:
  return MeasuredCodec(
    f'int{bits}',
    bits + 16 / _INTEGER_BLOCK,
    functools.partial(integers, largest=2 ** (bits - 1) - 1),
  )


def _make_microscaled(name: str, element: Minifloat) -> MeasuredCodec:
  return MeasuredCodec(
    f'mxfp6 {name}',
    6 + 8 / MX_BLOCK,
    functools.partial(microscale, element=element),
  )


CODECS = (
  MeasuredCodec('f32', 32, lambda x_RC: x_RC.astype(jnp.float32)),
  MeasuredCodec('bf16', 16, bf16),
  *(
    _squinch(elements, header)
    for header in reference.HEADERS
    for elements in reference.ELEMENTS
  ),
  *(_integers(bits) for bits in (8, 6, 4)),
  _make_microscaled('e2m3', E2M3),
  _make_microscaled('e3m2', E3M2),
)

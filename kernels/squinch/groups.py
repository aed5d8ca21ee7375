"""Encodes and decodes groups of eight, row by row, inside a kernel.

`reference.py` computes on arrays [G, 8, C]; these functions compute the same on
eight arrays of one shape. A kernel loads each row of its groups separately, and
no value moves to another row. The bits are the reference's. Where a step is
left out or reordered, a comment says why that changes no bit.

The table look-up and the root depend on the device; the kernel passes both.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.squinch import reference

LookUp = Callable[[jax.Array], jax.Array]
_SIGN = np.int32(-(2**31))


def encode(
  rows: Sequence[jax.Array],
  look_up: LookUp,
  element: Callable[[jax.Array, jax.Array], jax.Array],
  header: str,
) -> list[jax.Array]:
  """Returns the six planes of groups, each in the low byte of an int32.

  Args:
    rows: eight arrays, bits of float32 as int32.
    look_up: a function of headers that returns entries of `reference.SCALES`.
    element: a function of (float32 magnitudes, scales) that returns int32 with
      the element in the low four bits; anything for inf or NaN.
    header: one of `reference.HEADERS`.
  """
  sizes = [row & np.int32(0x7FFFFFFF) for row in rows]
  q = reference.header_code(functools.reduce(jnp.maximum, sizes), header)
  scale = look_up(q)
  codes = [element(_float(size), scale) for size in sizes]
  pairs = [low + (high << 4) for low, high in zip(codes[:4], codes[4:])]
  signs = functools.reduce(
    # One instruction on devices that shift across two words.
    lambda signs, row: (signs << 1) | _sign(row),
    reversed(rows),
    jnp.zeros_like(q),
  )
  is_spoilt = q == reference.NAN
  is_empty = is_spoilt | (q == reference.ZERO)
  return [
    q,
    jnp.where(is_empty, 0, signs),
    # One selection here instead of one for inf and NaN in each of eight rows.
    *(jnp.where(is_spoilt, 0, pair) for pair in pairs),
  ]


def decode(
  planes: Sequence[jax.Array],
  look_up: LookUp,
  level: LookUp,
  elements: str,
) -> list[jax.Array]:
  """Returns the eight rows of groups, float32.

  Args:
    planes: six arrays, int32 in 0…255.
    look_up: a function of headers that returns entries of `reference.UNITS`.
    level: a function of elements that returns entries of `reference.FITTED`,
      float32.
    elements: one of `reference.ELEMENTS`.
  """
  q, signs, *pairs = planes
  unit = look_up(q)
  codes = [pair & 15 for pair in pairs] + [pair >> 4 for pair in pairs]
  # The sign is no factor of the product: a compiler might fuse such a product
  # with the sum that follows, and round once where the reference rounds twice.
  sizes = [_level(code, level, elements) * unit for code in codes]
  return [
    _float(_bits(size) ^ ((signs << (31 - i)) & _SIGN))
    for i, size in enumerate(sizes)
  ]


def element(size: jax.Array, scale: jax.Array, elements: str) -> jax.Array:
  """Returns the elements, in the low four bits of int32.

  Args:
    size: float32 magnitudes.
    scale: entries of `reference.SCALES`.
    elements: one of `reference.ELEMENTS`.
  """
  squared = size * scale
  if elements == 'fitted':
    return sum((squared >= edge).astype(jnp.int32) for edge in _FITTED_EDGES)
  found = jnp.sqrt(squared)
  if elements == 'zero':
    found = found + 0.5
  # The last bits of a float of this size are the integer. A cast takes many
  # instructions, because it must also round negative numbers towards zero.
  return _bits(jnp.floor(jnp.minimum(found, 15)) + 2.0**23)


def _level(code: jax.Array, level: LookUp, elements: str) -> jax.Array:
  if elements == 'fitted':
    return level(code)
  # float32 computes such small integers exactly, in any order of operations.
  k = code.astype(jnp.float32)
  return k * k if elements == 'zero' else 2 * k * (k + 1) + 1


def _squares(edges: np.ndarray) -> list[np.float32]:
  """Returns the smallest floats whose roots reach the edges.

  A rounded root never falls as its argument grows, so a comparison of the
  argument with the returned floats is one of the root with the edges.
  """
  found = np.square(edges)
  for _ in range(4):
    below = np.nextafter(found, np.float32(0))
    found = np.where(np.sqrt(below) >= edges, below, found)
  for _ in range(8):
    above = np.nextafter(found, np.float32(1))
    found = np.where(np.sqrt(found) >= edges, found, above)
  return list(found)


_FITTED_EDGES = _squares(reference.FITTED_EDGES)


def _float(bits: jax.Array) -> jax.Array:
  return lax.bitcast_convert_type(bits, jnp.float32)


def _bits(x: jax.Array) -> jax.Array:
  return lax.bitcast_convert_type(x, jnp.int32)


def _sign(bits: jax.Array) -> jax.Array:
  return lax.shift_right_logical(bits, jnp.full_like(bits, 31))

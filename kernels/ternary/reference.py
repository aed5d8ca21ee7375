"""Packs five trits (−1, 0 or 1) into a byte: 1.6 bits per trit.

From the sources: 1.6 bits per weight, which is five base-3 digits in a byte
(3⁵ = 243). Our guess is which five trits share a byte. Rows are cut into five
planes of R/5 rows each, and the rows j of all planes share a byte:

    packed[j] = Σ 3^i · (x[i·R/5 + j] + 1)      i = 0…4

Nothing is interleaved: packing is four multiply-adds of contiguous slices.
Unpacking divides by 3, by a product and a shift in 16 bits:
⌊b/3⌋ = (171·b) » 9 for every b ≤ 255.

Where R is no multiple of five, zeros pad the last plane. Bytes 243…255 encode
no five digits: they mean damage, and decode to zeros.
"""

import jax
import jax.numpy as jnp

DIGITS = 5
VALUES = 3**DIGITS


def packed_rows(rows: int) -> int:
  """Returns the number of bytes of a column of `rows` trits."""
  return -(-rows // DIGITS)


def encode(x: jax.Array) -> jax.Array:
  """Returns uint8[⌈R/5⌉, …] of trits.

  Args:
    x: int8[R, …], each −1, 0 or 1 (any other value spoils its byte).

  Raises:
    ValueError: not int8, or a scalar.
  """
  if x.dtype != jnp.int8 or x.ndim == 0:
    raise ValueError(f'{x.dtype}{list(x.shape)}: trits are int8[R, …].')
  rows, *rest = x.shape
  planes = packed_rows(rows)
  padding = [(0, DIGITS * planes - rows)] + [(0, 0)] * len(rest)
  digits = (jnp.pad(x, padding) + 1).astype(jnp.uint8)
  digits = digits.reshape(DIGITS, planes, *rest)
  packed = digits[DIGITS - 1]
  for i in reversed(range(DIGITS - 1)):
    packed = 3 * packed + digits[i]
  return packed


def decode(packed: jax.Array, rows: int) -> jax.Array:
  """Returns int8[R, …], with zeros for damaged bytes.

  Args:
    packed: uint8[⌈R/5⌉, …] from `encode`.
    rows: R.

  Raises:
    ValueError: not uint8, or another number of bytes than R trits take.
  """
  if packed.dtype != jnp.uint8 or packed.shape[:1] != (packed_rows(rows),):
    raise ValueError(
      f'{packed.dtype}{list(packed.shape)}: {rows} rows of trits are'
      f' uint8[{packed_rows(rows)}, …].'
    )
  nothing = jnp.asarray(VALUES // 2, jnp.uint8)  # Five zeros.
  left = jnp.where(is_damaged(packed), nothing, packed).astype(jnp.uint16)
  digits = []
  for _ in range(DIGITS):
    third = (171 * left) >> 9
    digits.append((left - 3 * third).astype(jnp.int8) - 1)
    left = third
  return jnp.concatenate(digits)[:rows]


def is_damaged(packed: jax.Array) -> jax.Array:
  """Returns, per byte, whether it encodes no digits: 13 of 256 values."""
  return packed >= VALUES

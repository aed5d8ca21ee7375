"""An exact count of row tokens, as two 32-bit words.

JAX has no 64-bit integers by default, and float32 counts exactly only up to
2^24 units of the largest power of two that divides every addend: steps of
4,088 tokens would be miscounted from step 32,833 on. Two words count to 2^64.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_WORD = 2**32


class TokenCount(NamedTuple):
  """A count as high · 2^32 + low, both uint32 scalars."""

  high: jax.Array
  low: jax.Array


def start(count: int = 0) -> TokenCount:
  """Returns a count of `count` tokens, less than 2^64."""
  high, low = divmod(count, _WORD)
  return TokenCount(jnp.uint32(high), jnp.uint32(low))


def add(count: TokenCount, tokens: jax.Array) -> TokenCount:
  """Returns the count with `tokens` more, a uint32 scalar."""
  low = count.low + tokens
  carry = (low < tokens).astype(jnp.uint32)
  return TokenCount(count.high + carry, low)


def has_reached(count: TokenCount, tokens: int) -> jax.Array:
  """Returns whether the count is at least `tokens`, exactly."""
  high, low = divmod(tokens, _WORD)
  high, low = jnp.uint32(high), jnp.uint32(low)
  return (count.high > high) | ((count.high == high) & (count.low >= low))


def to_float(count: TokenCount) -> jax.Array:
  """Returns the count in float32, exact if float32 can hold it."""
  high, low = (word.astype(jnp.float32) for word in count)
  return high * float(_WORD) + low


def to_int(count: TokenCount) -> int:
  """Returns the value of a count that is not traced."""
  high, low = jax.device_get(count)
  return int(high) * _WORD + int(low)

"""Squinch by definition: eight numbers in 48 bits.

From the sources: blocks of eight values; an 8-bit logarithm of the block's
largest magnitude, eight signs, eight 4-bit elements; elements on a square-root
scale, which minimizes the expected error of the logarithm where magnitudes are
log-uniform; and, of the header,

    q      = clip(int(6 · ln max + 129), 0, 255)
    maxabs = exp((q − 128) / 6)

Our guesses, since the sources give no more: the element codes, with
r = |x| / maxabs,

    zero    k = min(15, floor(15·√r + 1/2))    x̂ = ±(k/15)² · maxabs
    floor   k = min(15, floor(16·√r))          x̂ = ±(2k(k+1) + 1)/512 · maxabs

`floor` is the more accurate on a logarithmic scale but cannot say zero, and
under Adam an element whose gradient is exactly zero would drift by nearly the
learning rate each step: `zero` is the default. A third is a table:

    fitted  0, and fifteen levels fitted to gradients: the nearest in the
            logarithm, but zero below r = 1/900, where `zero` has it too

It is nearer than `zero` in the logarithm and no worse in squares, with the same
numbers flushed, on gradients it was not fitted to (`experiments.codecs` made
the table, and prints the comparison), and costs fifteen comparisons.

q = 0 is kept for a block of zeros and q = 255 for one with inf or NaN in it,
which decodes to NaN: a gradient that is no number must not become a quiet zero.

A second header is ours, for speed and for the same bits everywhere: steps of
2^(1/4), read off the float's exponent and three comparisons of its mantissa.

    ln6       the sources': 5.4e-10 … 1.3e9
    quarter   maxabs = 2^((q − 128)/4), at least max: 2.8e-10 … 3.0e9

Layout: planes, not structs. Rows R of x_RC are taken in groups of eight along
the leading axis (d_model: never across vocabulary or hidden units), and the
result is uint8[6, G, C], G = R/8:

    plane 0      q
    plane 1      signs, bit i that of row i of the group
    plane 2 + i  elements, row i | row i + 4 « 4    (i = 0…3)
"""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

GROUP = 8
PLANES = 6
ELEMENTS = ('zero', 'floor', 'fitted')
HEADERS = ('ln6', 'quarter')

_ZERO, _NAN = 0, 255
# Decoding reads maxabs from a table, so that every backend agrees to the bit.
_LN6 = np.exp((np.arange(256) - 128) / 6).astype(np.float32)
_QUARTER = np.exp2((np.arange(256) - 128) / 4).astype(np.float32)
_TABLES = {
  header: np.where(
    np.arange(256) == _NAN, np.nan, np.where(np.arange(256) == _ZERO, 0, table)
  ).astype(np.float32)
  for header, table in (('ln6', _LN6), ('quarter', _QUARTER))
}
# Mantissas of 2^(1/4), 2^(1/2), 2^(3/4): one more quarter from each on.
_MANTISSAS = np.exp2(np.arange(1, 4) / 4).astype(np.float32)
_FITTED = np.array(
  [0, 0.0059, 0.0195, 0.0407, 0.0693, 0.1054, 0.149, 0.2004]
  + [0.2595, 0.3271, 0.4036, 0.4903, 0.5905, 0.7088, 0.8514, 0.9455]
)
# Of √r, where the next level begins.
_FITTED_EDGES = np.sqrt(
  [1 / 900, *np.sqrt(_FITTED[1:-1] * _FITTED[2:])]
).astype(np.float32)
_LEVELS = {
  'zero': ((np.arange(16) / 15) ** 2).astype(np.float32),
  'floor': ((2 * np.arange(16) * (np.arange(16) + 1) + 1) / 512).astype(
    np.float32
  ),
  'fitted': _FITTED.astype(np.float32),
}


def encode(
  x_RC: jax.Array, elements: str = 'zero', header: str = 'ln6'
) -> jax.Array:
  """Returns uint8[6, R/8, C].

  Args:
    x_RC: a float array; R a multiple of 8.
    elements: of ELEMENTS.
    header: of HEADERS.

  Raises:
    ValueError: rows that fill no group, or an unknown code.
  """
  check(elements, header)
  rows, columns = x_RC.shape
  if rows % GROUP:
    raise ValueError(
      f'{rows} rows: Squinch takes them in groups of {GROUP}; pad with zeros.'
    )
  x_GIC = x_RC.astype(jnp.float32).reshape(rows // GROUP, GROUP, columns)
  size_GIC = jnp.abs(x_GIC)
  # A NaN is the largest of its group.
  q_GC = _q(jnp.max(size_GIC, axis=1), header)
  live_GC = jnp.where((q_GC == _ZERO) | (q_GC == _NAN), 1, q_GC)
  maxabs_GC = jnp.asarray(_TABLES[header])[live_GC]
  root_GIC = jnp.sqrt(size_GIC / maxabs_GC[:, None])
  if elements == 'zero':
    k_GIC = jnp.floor(15 * root_GIC + 0.5)
  elif elements == 'floor':
    k_GIC = jnp.floor(16 * root_GIC)
  else:
    k_GIC = sum(
      (root_GIC >= edge).astype(jnp.float32) for edge in _FITTED_EDGES
    )
  # Cut as a float: NaN and inf have no integer. A group of zeros, or of what
  # is no number, is named by its header alone.
  is_live_G1C = (q_GC == live_GC)[:, None]
  k_GIC = jnp.where(is_live_G1C, jnp.clip(k_GIC, 0, 15), 0).astype(jnp.uint8)
  negative_GIC = ((x_GIC < 0) & is_live_G1C).astype(jnp.uint8)
  place_I = jnp.arange(GROUP, dtype=jnp.uint8)
  signs_GC = jnp.sum(
    negative_GIC << place_I[None, :, None], axis=1, dtype=jnp.uint8
  )
  pairs = k_GIC[:, :4] | (k_GIC[:, 4:] << 4)
  return jnp.stack(
    [q_GC.astype(jnp.uint8), signs_GC, *jnp.moveaxis(pairs, 1, 0)]
  )


def decode(
  packed_PGC: jax.Array, elements: str = 'zero', header: str = 'ln6'
) -> jax.Array:
  """Returns float32[8 · G, C] of `encode`'s planes.

  Raises:
    ValueError: something else than six planes, or an unknown code.
  """
  check(elements, header)
  planes, groups, columns = packed_PGC.shape
  if planes != PLANES or packed_PGC.dtype != jnp.uint8:
    raise ValueError(
      f'{packed_PGC.dtype}{packed_PGC.shape}: Squinch is uint8[6, G, C].'
    )
  q_GC, signs_GC, *pairs = packed_PGC
  maxabs_GC = jnp.asarray(_TABLES[header])[q_GC.astype(jnp.int32)]
  low = [pair & 15 for pair in pairs]
  high = [pair >> 4 for pair in pairs]
  k_GIC = jnp.stack(low + high, axis=1).astype(jnp.int32)
  place_I = jnp.arange(GROUP, dtype=jnp.uint8)
  negative_GIC = (signs_GC[:, None] >> place_I[None, :, None]) & 1
  size_GIC = jnp.asarray(_LEVELS[elements])[k_GIC] * maxabs_GC[:, None]
  x_GIC = jnp.where(negative_GIC == 1, -size_GIC, size_GIC)
  return x_GIC.reshape(GROUP * groups, columns)


def check(elements: str, header: str) -> None:
  """Refuses codes that there are not.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  for name, value, known in (
    ('elements', elements, ELEMENTS),
    ('header', header, HEADERS),
  ):
    if value not in known:
      raise ValueError(
        f'{name}={value!r}: must be one of {", ".join(map(repr, known))}.'
      )


def _q(largest_GC: jax.Array, header: str) -> jax.Array:
  """Returns the header, int32: 0 of what is too small, 255 of no number."""
  if header == 'ln6':
    q = jnp.floor(6 * jnp.log(largest_GC) + 129)
  else:
    q = _quarter(largest_GC)
  q = jnp.clip(q, _ZERO, _NAN - 1)
  q = jnp.where(jnp.isfinite(largest_GC), q, _NAN)
  return q.astype(jnp.int32)


def _quarter(largest_GC: jax.Array) -> jax.Array:
  """Returns the smallest q with 2^((q − 128)/4) ≥ largest, by its bits."""
  bits = lax.bitcast_convert_type(largest_GC, jnp.int32)
  # A multiple of 2^e has the mantissa 1 and needs no step above 2^e.
  exponent = (bits >> 23) - 127
  mantissa = lax.bitcast_convert_type(
    (bits & 0x7FFFFF) | 0x3F800000, jnp.float32
  )
  above = sum(
    (mantissa > threshold).astype(jnp.int32)
    for threshold in (np.float32(1), *_MANTISSAS)
  )
  return (4 * exponent + above + 128).astype(jnp.float32)

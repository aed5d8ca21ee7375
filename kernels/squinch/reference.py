"""Defines Squinch: eight numbers in 48 bits.

From the sources: blocks of eight values; an 8-bit logarithm of the block's
largest magnitude, eight signs, eight 4-bit elements; elements on a square-root
scale, which minimizes the expected error of the logarithm where magnitudes are
log-uniform; and for the header

    q      = clip(int(6 · ln max + 129), 0, 255)
    maxabs = exp((q − 128) / 6)

The sources say no more. The element codes are our guesses, with
r = |x| / maxabs:

    zero    k = min(15, floor(15·√r + 1/2))    x̂ = ±(k/15)² · maxabs
    floor   k = min(15, floor(16·√r))          x̂ = ±(2k(k+1) + 1)/512 · maxabs

`floor` is more accurate on a logarithmic scale but cannot represent zero: under
Adam, an element whose gradient is exactly zero would drift by nearly the
learning rate each step. So `zero` is the default. A third code is a table:

    fitted  0, and fifteen levels fitted to gradients; takes the level nearest
            in the logarithm, but zero below r = 1/900, as in `zero`

On gradients to which it was not fitted, `fitted` has a smaller error than
`zero` in the logarithm and no larger one in squares, and makes the same numbers
zero. It costs fifteen comparisons. `experiments.codecs` made the table and
prints the errors.

q = 0 is reserved for a block of zeros and q = 255 for a block with inf or NaN.
Such a block decodes to NaN, because a gradient that is not finite must not
silently become zero.

A second header is ours. It is quicker and gives the same bits on every device:
its steps of 2^(1/4) follow from the float's exponent and three comparisons of
its mantissa.

    ln6       the sources': 5.4e-10 … 1.3e9
    quarter   maxabs = 2^((q − 128)/4), at least max: 2.8e-10 … 3.0e9

Layout: planes, not structs. Rows R of x_RC are taken in groups of eight along
the leading axis (d_model: never across vocabulary or hidden units), and the
result is uint8[6, G, C], G = R/8:

    plane 0      q
    plane 1      signs, bit i that of row i of the group
    plane 2 + i  elements, row i | row i + 4 « 4    (i = 0…3)
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

GROUP = 8
PLANES = 6
# Sources that a step of the scan decodes at once.
_UNROLL = 4
ELEMENTS = ('zero', 'floor', 'fitted')
HEADERS = ('ln6', 'quarter')

# Headers of a group of zeros, and of a group with inf or NaN.
ZERO, NAN = 0, 255
# The bits of inf. Compared as integers, magnitudes keep their order, inf is
# above all numbers, and NaN above inf.
INFINITY = 0x7F800000
_Q = np.arange(256)
_MAXABS = {
  'ln6': np.exp((_Q - 128) / 6),
  'quarter': np.exp2((_Q - 128) / 4),
}
# Both directions read a table, so that every backend agrees to the bit.
# Encoding multiplies |x| by this before the root: 15², 16² or 1 over maxabs,
# and 0 for a group that its header describes completely.
SCALES = {
  (elements, header): np.where(
    (_Q == ZERO) | (_Q == NAN), 0, count**2 / maxabs
  ).astype(np.float32)
  for elements, count in (('zero', 15), ('floor', 16), ('fitted', 1))
  for header, maxabs in _MAXABS.items()
}
# Decoding multiplies an integer (k², 2k(k+1) + 1 or a table's) by this. There
# is one factor, because only some compilers would regroup a product of three.
UNITS = {
  (elements, header): np.select(
    [_Q == ZERO, _Q == NAN], [0, np.nan], maxabs / steps
  ).astype(np.float32)
  for elements, steps in (('zero', 15**2), ('floor', 512), ('fitted', 10_000))
  for header, maxabs in _MAXABS.items()
}
# Mantissas of 2^(1/4), 2^(1/2), 2^(3/4), at which the next step begins.
_MANTISSAS = np.exp2(np.arange(1, 4) / 4).astype(np.float32)
# Levels in ten-thousandths of maxabs; a level begins at an edge, a value of √r.
FITTED = np.array(
  [0, 59, 195, 407, 693, 1054, 1490, 2004]
  + [2595, 3271, 4036, 4903, 5905, 7088, 8514, 9455]
)
FITTED_EDGES = np.sqrt(
  [1 / 900, *np.sqrt(FITTED[1:-1] * FITTED[2:]) / 10_000]
).astype(np.float32)


def encode(
  x_RC: jax.Array, elements: str = 'zero', header: str = 'ln6'
) -> jax.Array:
  """Returns uint8[6, R/8, C].

  Args:
    x_RC: a float array; R a multiple of 8.
    elements: one of ELEMENTS.
    header: one of HEADERS.

  Raises:
    ValueError: rows that are no multiple of 8, or an unknown code.
  """
  check(elements, header)
  rows, columns = x_RC.shape
  if rows % GROUP:
    raise ValueError(
      f'{rows} rows: Squinch takes them in groups of {GROUP}; pad with zeros.'
    )
  x_GIC = x_RC.astype(jnp.float32).reshape(rows // GROUP, GROUP, columns)
  bits_GIC = lax.bitcast_convert_type(x_GIC, jnp.int32)
  size_GIC = bits_GIC & 0x7FFFFFFF
  # Compares the bits as integers, for speed; a NaN is the largest of its group.
  q_GC = header_code(jnp.max(size_GIC, axis=1), header)
  # Inf and NaN become finite here; the scale of their group, 0, makes them 0.
  size_GIC = lax.bitcast_convert_type(
    jnp.minimum(size_GIC, INFINITY - 1), jnp.float32
  )
  scale_GC = jnp.asarray(SCALES[elements, header])[q_GC]
  k_GIC = jnp.sqrt(size_GIC * scale_GC[:, None])
  if elements == 'zero':
    k_GIC = k_GIC + 0.5
  elif elements == 'fitted':
    k_GIC = sum((k_GIC >= edge).astype(jnp.float32) for edge in FITTED_EDGES)
  # The cast rounds towards zero, which is floor because nothing is negative.
  k_GIC = jnp.minimum(k_GIC, 15).astype(jnp.uint8)
  place_I = jnp.arange(GROUP, dtype=jnp.uint8)
  signs_GC = jnp.sum(
    (bits_GIC < 0).astype(jnp.uint8) << place_I[None, :, None],
    axis=1,
    dtype=jnp.uint8,
  )
  signs_GC = jnp.where((q_GC == ZERO) | (q_GC == NAN), 0, signs_GC)
  pairs = k_GIC[:, :4] | (k_GIC[:, 4:] << 4)
  return jnp.stack(
    [q_GC.astype(jnp.uint8), signs_GC, *jnp.moveaxis(pairs, 1, 0)]
  )


def decode(
  packed_PGC: jax.Array, elements: str = 'zero', header: str = 'ln6'
) -> jax.Array:
  """Returns float32[8 · G, C] of `encode`'s planes.

  Raises:
    ValueError: not six planes of uint8, or an unknown code.
  """
  check(elements, header)
  planes, groups, columns = packed_PGC.shape
  if planes != PLANES or packed_PGC.dtype != jnp.uint8:
    raise ValueError(
      f'{packed_PGC.dtype}{packed_PGC.shape}: Squinch is uint8[6, G, C].'
    )
  q_GC, signs_GC, *pairs = packed_PGC
  unit_GC = jnp.asarray(UNITS[elements, header])[q_GC.astype(jnp.int32)]
  low = [pair & 15 for pair in pairs]
  high = [pair >> 4 for pair in pairs]
  k_GIC = jnp.stack(low + high, axis=1).astype(jnp.int32)
  if elements == 'zero':
    level_GIC = k_GIC * k_GIC
  elif elements == 'fitted':
    level_GIC = jnp.asarray(FITTED, jnp.int32)[k_GIC]
  else:
    level_GIC = 2 * k_GIC * (k_GIC + 1) + 1
  size_GIC = level_GIC.astype(jnp.float32) * unit_GC[:, None]
  # The sign is written into the float's sign bit.
  place_I = 31 - jnp.arange(GROUP, dtype=jnp.int32)
  sign_GIC = signs_GC.astype(jnp.int32)[:, None] << place_I[None, :, None]
  bits_GIC = lax.bitcast_convert_type(size_GIC, jnp.int32)
  bits_GIC = bits_GIC ^ (sign_GIC & np.int32(-(2**31)))
  x_GIC = lax.bitcast_convert_type(bits_GIC, jnp.float32)
  return x_GIC.reshape(GROUP * groups, columns)


def encode_parts(
  x_RC: jax.Array, parts: int, elements: str = 'zero', header: str = 'ln6'
) -> jax.Array:
  """Returns uint8[N, 6, R/8N, C]: `encode` of each of N equal parts of R.

  Args:
    x_RC: a float array; R a multiple of 8N.
    parts: N.
    elements: one of ELEMENTS.
    header: one of HEADERS.

  Raises:
    ValueError: see `encode`.
  """
  packed_PGC = encode(x_RC, elements, header)
  split = packed_PGC.reshape(
    PLANES, parts, packed_PGC.shape[1] // parts, packed_PGC.shape[2]
  )
  return jnp.moveaxis(split, 1, 0)


def decode_sum(
  packed_NPGC: jax.Array, elements: str = 'zero', header: str = 'ln6'
) -> jax.Array:
  """Returns float32[8 · G, C], the sum of N devices' parts in their order.

  Args:
    packed_NPGC: uint8[N, 6, G, C], the bytes from each device's `encode`.
    elements: one of ELEMENTS.
    header: one of HEADERS.

  Raises:
    ValueError: see `decode`.
  """
  # A GPU's compiler makes one loop of the reduction; with scans a step takes
  # three times as long there. But a CPU's compiler does not vectorize the
  # reduction, and a TPU's writes the decoded parts to memory.
  return lax.platform_dependent(
    packed_NPGC,
    cuda=functools.partial(sum_at_once, elements=elements, header=header),
    default=functools.partial(sum_in_turn, elements=elements, header=header),
  )


def sum_at_once(packed_NPGC: jax.Array, elements: str, header: str):
  """Returns `decode_sum`, computed as a reduction over N."""
  one = functools.partial(decode, elements=elements, header=header)
  return jnp.sum(jax.vmap(one)(packed_NPGC), axis=0)


def sum_in_turn(packed_NPGC: jax.Array, elements: str, header: str):
  """Returns `decode_sum`, computed as a scan over N."""

  def add(sum_RC, packed_PGC):
    return sum_RC + decode(packed_PGC, elements, header), None

  first_RC = decode(packed_NPGC[0], elements, header)
  sum_RC, _ = lax.scan(add, first_RC, packed_NPGC[1:], unroll=_UNROLL)
  return sum_RC


def check(elements: str, header: str) -> None:
  """Refuses unknown codes.

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


def header_code(largest_GC: jax.Array, header: str) -> jax.Array:
  """Returns groups' headers, int32: 0 if too small, 255 for inf and NaN.

  Args:
    largest_GC: the bits of each group's largest magnitude, a float32.
    header: one of HEADERS.
  """
  if header == 'ln6':
    largest = lax.bitcast_convert_type(largest_GC, jnp.float32)
    q = jnp.floor(6 * jnp.log(largest) + 129)
    q = jnp.clip(q, ZERO, NAN - 1).astype(jnp.int32)
  else:
    q = jnp.clip(_quarter(largest_GC), ZERO, NAN - 1)
  return jnp.where(largest_GC >= INFINITY, NAN, q)


def _quarter(bits: jax.Array) -> jax.Array:
  """Returns the smallest q with 2^((q − 128)/4) ≥ the float of these bits."""
  # 2^e itself has the mantissa 1 and needs no step above 2^e.
  exponent = (bits >> 23) - 127
  mantissa = lax.bitcast_convert_type(
    (bits & 0x7FFFFF) | 0x3F800000, jnp.float32
  )
  above = sum(
    (mantissa > threshold).astype(jnp.int32)
    for threshold in (np.float32(1), *_MANTISSAS)
  )
  return 4 * exponent + above + 128

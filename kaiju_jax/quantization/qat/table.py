"""The embedding's lookup, of floats or of codes, and its gradient."""

import jax
import jax.numpy as jnp

from kaiju_jax.quantization import int8

Quantized = int8.Quantized


@jax.custom_vjp
def lookup(table_DV: jax.Array | Quantized, index_BL: jax.Array) -> jax.Array:
  """Returns the entries [B, L, D] of tokens, float32; zeros outside the table.

  An entry's gradient is summed in float32, because in bfloat16 a sum over the
  places of a frequent token stops growing after 256 of them.

  Args:
    table_DV: this device's vocabulary entries.
    index_BL: an entry's number in the table; an entry of another device has a
      negative number, or one of V and more.
  """
  table = table_DV.codes if isinstance(table_DV, Quantized) else table_DV
  x_BLD = _columns(table, index_BL).astype(jnp.float32)
  if isinstance(table_DV, Quantized):
    scale_V = table_DV.scales[0]
    x_BLD = x_BLD * jnp.take(scale_V, index_BL, mode='clip')[..., None]
  inside_BL = (index_BL >= 0) & (index_BL < table.shape[1])
  return jnp.where(inside_BL[..., None], x_BLD, 0)


def lookup_rows(
  table_VD: jax.Array | Quantized, index_BL: jax.Array
) -> jax.Array:
  """Returns what `lookup` returns for a table [V, D]; has no gradient."""

  def rows(x: jax.Array) -> jax.Array:
    return jnp.take(x, index_BL, axis=0, mode='clip').astype(jnp.float32)

  if isinstance(table_VD, Quantized):
    x_BLD = rows(table_VD.codes) * rows(table_VD.scales)
  else:
    x_BLD = rows(table_VD)
  inside_BL = (index_BL >= 0) & (index_BL < table_VD.shape[0])
  return jnp.where(inside_BL[..., None], x_BLD, 0)


def _columns(table_DV: jax.Array, index_BL: jax.Array) -> jax.Array:
  """Returns columns of a matrix as rows [B, L, D].

  For many columns the matrix is transposed first, so that each column is read
  as a contiguous row. A few, as in a decoding step, are read in place, because
  a transpose reads and writes the whole matrix.
  """
  if index_BL.size * 64 > table_DV.shape[1]:
    return jnp.take(table_DV.T, index_BL, axis=0, mode='clip')
  x_DBL = jnp.take(table_DV, index_BL, axis=1, mode='clip')
  return jnp.moveaxis(x_DBL, 0, -1)


def _lookup_forward(table_DV, index_BL):
  # An empty array remembers the dtype and V.
  if isinstance(table_DV, Quantized):
    carrier = table_DV.carrier
    like = Quantized(None, None, None if carrier is None else carrier[:0])
  else:
    like = table_DV[:0]
  return lookup(table_DV, index_BL), (like, index_BL)


def _lookup_backward(residuals, dx_BLD):
  like, index_BL = residuals
  empty_DV = like.carrier if isinstance(like, Quantized) else like
  if empty_DV is None:  # A frozen table.
    return like, None
  size = empty_DV.shape[1]
  # An index outside is dropped, but a negative one would count from the end.
  index_BL = jnp.where(index_BL < 0, size, index_BL)
  gradient_VD = jnp.zeros((size, dx_BLD.shape[-1]), jnp.float32)
  gradient_VD = gradient_VD.at[index_BL].add(dx_BLD, mode='drop')
  gradient_DV = gradient_VD.T.astype(empty_DV.dtype)
  if isinstance(like, Quantized):
    return like._replace(carrier=gradient_DV), None
  return gradient_DV, None


lookup.defvjp(_lookup_forward, _lookup_backward)

"""An einsum of two arrays, in the order of operands that XLA multiplies best.

Codes of a weight that is summed over last are multiplied by numba where it is
installed (`kernels/int8_matmul/numba_cpu.py`). Otherwise the best order on a
CPU is measured (`experiments/results/open_models.md`). YNNPACK, which XLA's CPU
calls for products of two rows and more, packs the second operand anew in every
call, and reads the first in place. One row of codes goes to a slow loop
instead. So the order of operands depends on the rows, and a weight should lie
with the dimension that is summed over last (`decoding/device/weights.py`). Sums
of codes are integers, and have the same bits in every order.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks
from kaiju_jax.quantization.qat import letters as letters_lib

# Measured on a CPU: 32 rows gain, 64 hardly, 128 lose.
_FEW_ROWS = 32
# Rows of codes up to which a loop of XLA's own is quicker than YNNPACK.
_LOOP_ROWS = 2
# Codes that the loop takes at once, and so many of which are added before the
# next. XLA breaks up a sum over a dimension of more than 32.
_LANES = 32
_MOST_ADDED = 16
_MOST_TURNS = 32


def multiply(
  letters: letters_lib.Letters, x: Any, w: Any, dtype: jax.typing.DTypeLike
) -> jax.Array:
  """Returns the einsum in `dtype`, summed over one dimension.

  H and K, which lie last and side by side in x and w, become one dimension. To
  sum over two dimensions XLA would copy the whole weight first, on a CPU.

  Args:
    letters: of the einsum.
    x: activations, floats or codes.
    w: the weight, floats or codes.
    dtype: of the sum.
  """
  x_letters, w_letters, out_letters, contracted = letters
  if len(contracted) > 1:
    x = x.reshape(*x.shape[: -len(contracted)], -1)
    w = w.reshape(*w.shape[: -len(contracted)], -1)
    x_letters = x_letters.removesuffix(contracted) + contracted[0]
    w_letters = w_letters.removesuffix(contracted) + contracted[0]
  spec = f'{x_letters},{w_letters}->{out_letters}'
  rows = x.size // x.shape[-1]
  is_coded = x.dtype == jnp.int8
  is_last = w_letters[-1] == x_letters[-1]
  kernel = blocks.numba_cpu() if is_coded and is_last else None
  if kernel and kernel.is_whole(x.shape[-1]):
    x_RC, w_OC = (each.reshape(-1, each.shape[-1]) for each in (x, w))
    return kernel.sums(x_RC, w_OC).reshape(*x.shape[:-1], *w.shape[:-1])
  if dispatch.platform() != 'cpu' or rows > _FEW_ROWS:
    return jnp.einsum(spec, x, w, preferred_element_type=dtype)
  if is_coded and is_last and rows <= _LOOP_ROWS and _added(x.shape[-1]):
    return _loop(x, w)
  if is_coded and rows == 1:
    # XLA takes two to six times as long for one row as for two.
    doubled = letters._replace(
      x=x_letters, w=w_letters, contracted=contracted[0]
    )
    return multiply(doubled, jnp.concatenate([x, x]), w, dtype)[:1]
  if is_last and rows > 1:
    turned = w_letters[:-1] + x_letters[:-1]
    y = jnp.einsum(
      f'{w_letters},{x_letters}->{turned}', w, x, preferred_element_type=dtype
    )
    # Without a barrier XLA turns the product round again.
    return jnp.einsum(f'{turned}->{out_letters}', lax.optimization_barrier(y))
  return jnp.einsum(spec, x, w, preferred_element_type=dtype)


def _loop(x: jax.Array, w: jax.Array) -> jax.Array:
  """Returns the product of codes [..., D] and [..., D] by a loop, in int32.

  XLA fuses widening, products and sums to one loop over the weight, which it
  reads once, in place. LLVM makes it vectors if the dimensions of the sum are
  in this order: the loop over lanes is short and holds a body that is too large
  to unroll.
  """
  size = x.shape[-1]
  split = size // _LANES // _added(size), _added(size), _LANES
  lead = *x.shape[:-1], *w.shape[:-1]
  x = _apart(x).reshape(1, -1, *split).swapaxes(-1, -2).astype(jnp.int32)
  w = w.reshape(-1, 1, *split).swapaxes(-1, -2).astype(jnp.int32)
  sums = lax.reduce(w * x, jnp.int32(0), lax.add, (2, 3, 4))
  return sums.T.reshape(lead)


def _apart(x: jax.Array) -> jax.Array:
  """Returns codes as they are, which XLA does not fuse into what reads them.

  It would code the activations anew for every output: that takes four times as
  long as the loop. XLA drops a barrier before it fuses, but it fuses no sliding
  maximum; here it is that of each code and itself.
  """
  pairs = jnp.stack([x, x], axis=-1)
  window = (1,) * x.ndim + (2,)
  least = jnp.int8(jnp.iinfo(jnp.int8).min)
  return lax.reduce_window(
    pairs, least, lax.max, window, window, 'VALID'
  ).reshape(x.shape)


def _added(size: int) -> int:
  """Returns how many codes of a lane are added; 0 where none can be."""
  lanes, rest = divmod(size, _LANES)
  if rest:
    return 0
  added = max(n for n in range(1, _MOST_ADDED + 1) if lanes % n == 0)
  return added if lanes // added <= _MOST_TURNS else 0

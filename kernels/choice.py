"""One of several arrays, which numba's kernels read in place by its number.

A loop over layers needs no copy of a layer's weights and pages: an operand is
all layers' arrays.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Choice(NamedTuple):
  """One of `arrays`, which have the same shape and dtype."""

  number: jax.Array  # int32.
  arrays: tuple[jax.Array, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    return self.arrays[0].shape

  @property
  def ndim(self) -> int:
    return self.arrays[0].ndim

  @property
  def dtype(self) -> Any:
    return self.arrays[0].dtype

  def reshape(self, *shape: int) -> 'Choice':
    return Choice(self.number, tuple(x.reshape(*shape) for x in self.arrays))


def wrap(x: jax.Array | Choice) -> Choice:
  """Returns a choice as it is, and an array as the choice of it alone."""
  return x if isinstance(x, Choice) else Choice(jnp.int32(0), (x,))

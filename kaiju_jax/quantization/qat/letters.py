"""The letters of a projection's einsum, 'BLD,DF->BLF'."""

from typing import NamedTuple

import jax


class Letters(NamedTuple):
  """The letters of x, w and the result, and those that are summed over."""

  x: str
  w: str
  out: str
  contracted: str

  @property
  def contract(self) -> str:
    """The dimension of the weight that is summed over, 'first' or 'last'."""
    return 'first' if self.w.startswith(self.contracted) else 'last'

  @property
  def x_axes(self) -> tuple[int, ...]:
    """The dimensions of x that are summed over."""
    return tuple(map(self.x.index, self.contracted))

  @property
  def w_axes(self) -> tuple[int, ...]:
    """The dimensions of w that are summed over."""
    return tuple(map(self.w.index, self.contracted))

  @property
  def w_outputs(self) -> tuple[int, ...]:
    """The dimensions of w that stay."""
    return tuple(i for i, name in enumerate(self.w) if name in self.out)


def parse(spec: str) -> Letters:
  """Returns ('BLD', 'DF', 'BLF', 'D') of 'BLD,DF->BLF'."""
  operands, out = spec.split('->')
  x, w = operands.split(',')
  contracted = ''.join(letter for letter in w if letter in x)
  return Letters(x, w, out, contracted)


def turn(spec: str) -> str:
  """Returns 'BLD,FD->BLF' of 'BLD,DF->BLF': the weight's sum comes last."""
  x, w, out, contracted = parse(spec)
  rest = ''.join(letter for letter in w if letter not in contracted)
  return f'{x},{rest}{contracted}->{out}'


def align(array: jax.Array, letters: str, to: str) -> jax.Array:
  """Reshapes `array` so that it broadcasts against a tensor of letters `to`."""
  sizes = dict(zip(letters, array.shape))
  return array.reshape([sizes.get(letter, 1) for letter in to])

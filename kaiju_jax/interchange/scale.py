"""The embedding's √D, which a table from elsewhere holds already multiplied.

Ours looks up E and multiplies by √D; a tied head reads E as it is. Elsewhere
nothing is multiplied, so that a folder holds √D·E and, beside it, E as the
head.

Division does not always undo a multiplication: of the float32 numbers near W/√D
one is taken whose product is W again. There is one for every W that was made by
`scaled`, so that the model computes the same bits; where √D is a power of two
it is the number that W was made of. Other tables may come back with an error of
one part in 2^24.
"""

import numpy as np


def scaled(embedding_DV: np.ndarray) -> np.ndarray:
  """Returns the float32 table times √D, as the forward pass rounds it."""
  return embedding_DV * _root(embedding_DV)


def unscaled(table_DV: np.ndarray) -> np.ndarray:
  """Returns the float32 table whose `scaled` is `table_DV`, or nearest."""
  nearest = table_DV / _root(table_DV)
  found = nearest
  for direction in -np.inf, np.inf:
    beside = np.nextafter(nearest, np.float32(direction))
    is_better = (scaled(found) != table_DV) & (scaled(beside) == table_DV)
    found = np.where(is_better, beside, found)
  return found


def _root(table_DV: np.ndarray) -> np.float32:
  return np.float32(table_DV.shape[0] ** 0.5)

"""Multiplies or divides the embedding by √D, which other tools' tables contain.

Our model looks up E and multiplies it by √D; a tied head reads E unchanged.
Other models do not multiply, so a folder holds √D·E as the embedding and E as
the head.

In float32, division does not always undo a multiplication. So `unscale` takes,
among the numbers near W/√D, one whose product with √D is W again. There is one
for every W that `scale` made, so the model computes the same bits. Where √D is
a power of two, it is the very number that W was made from. Other tables may
come back with an error of one part in 2^24.
"""

import numpy as np


def scale(table: np.ndarray, d_model: int) -> np.ndarray:
  """Returns entries of a float32 table times √D, as the forward pass rounds."""
  return table * np.float32(d_model**0.5)


def unscale(table: np.ndarray, d_model: int) -> np.ndarray:
  """Returns float32 entries whose `scale` is, or is next to, `table`."""
  nearest = table / np.float32(d_model**0.5)
  found = nearest
  for direction in -np.inf, np.inf:
    beside = np.nextafter(nearest, np.float32(direction))
    is_better = (scale(found, d_model) != table) & (
      scale(beside, d_model) == table
    )
    found = np.where(is_better, beside, found)
  return found

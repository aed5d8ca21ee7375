"""Rows of random tokens that repeat: what teaches a small model to copy.

A document is a run of random tokens, said several times over. From the second
time on each token can be known, and by nothing but copying: what stood behind
the same token before. A model whose initialization suggests the heads for it
(`induction.py`) learns in some dozens of such rows to use them, and has not
learned it from dialogues by the end of a run of minutes
(experiments/results/chat.md).

The runs grow longer, so that the heads learn to look further back. Our guess:
all of it; that induction heads copy, and can be drilled with repeated random
tokens, is Olsson et al. (2022).
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.data import packing

_SHORTEST, _SHORT = 3, 9  # Tokens of a run, from … to below.
_TIMES = 2, 6  # How often a run is said, from … to below.
_LEAST = 40  # Tokens that are worth another document.


def row(
  rng: np.random.Generator,
  tokens: Sequence[int],
  bos_id: int,
  length: int,
  longest: int = 0,
) -> packing.Row:
  """Returns a row.

  Args:
    rng: what it is drawn from.
    tokens: what a run may be made of.
    bos_id: the token that opens a document.
    length: tokens of the row, L.
    longest: how many tokens more than a short run's a run may have.
  """
  pieces, left = [], length
  while left >= _LEAST or not pieces:
    size = int(rng.integers(_SHORTEST, _SHORT + int(longest * rng.random())))
    run = rng.choice(tokens, size)
    said = np.tile(run, int(rng.integers(*_TIMES)))
    whole = np.concatenate([[bos_id], said])[:left].astype(np.int32)
    # The run's first time is a surprise, and so is where it begins again.
    weights = (np.arange(len(whole)) >= size + 2).astype(np.float32)
    pieces.append(packing.Piece(whole, None, weights, len(pieces)))
    left -= len(whole)
  return packing.row(pieces, length)

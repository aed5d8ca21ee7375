"""Makes rows of random tokens that repeat, which teach a small model to copy.

A document is a run of random tokens, repeated several times. From the second
time on, a model can predict each token, and only by copying: the token that
followed the same token before. A model whose initialization suggests the heads
for copying (`evaluation/induction.py`) learns to use them from some dozens of
such rows. Dialogues alone do not teach it by the end of a run of minutes
(experiments/results/chat.md).

The runs grow longer, so that the heads learn to look further back. Our guess:
all of it. That induction heads copy, and can be trained with repeated random
tokens, is from Olsson et al. (2022).
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.data import packing

_SHORTEST, _SHORT = 3, 9  # A short run has 3 to 8 tokens.
_TIMES = 2, 6  # A run occurs 2 to 5 times.
_LEAST = 40  # The least room for another document, in tokens.


def row(
  rng: np.random.Generator,
  tokens: Sequence[int],
  bos_id: int,
  length: int,
  longest: int = 0,
) -> packing.Row:
  """Returns a row.

  Args:
    rng: the source of all draws.
    tokens: the tokens that a run may contain.
    bos_id: the token that opens a document.
    length: L, tokens of the row.
    longest: how many tokens longer than a short run a run may be.
  """
  pieces, left = [], length
  while left >= _LEAST or not pieces:
    size = int(rng.integers(_SHORTEST, _SHORT + int(longest * rng.random())))
    run = rng.choice(tokens, size)
    said = np.tile(run, int(rng.integers(*_TIMES)))
    whole = np.concatenate([[bos_id], said])[:left].astype(np.int32)
    # The run's first occurrence cannot be predicted, nor where it begins again.
    weights = (np.arange(len(whole)) >= size + 2).astype(np.float32)
    pieces.append(packing.Piece(whole, None, weights, len(pieces)))
    left -= len(whole)
  return packing.row(pieces, length)

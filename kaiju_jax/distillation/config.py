"""Configures how a teacher's distributions are sampled; imports no jax."""

import dataclasses
import math
from typing import Literal

METHODS = ('systematic', 'gumbel', 'multinomial', 'top_k', 'full')
# The squares of counts of points must fit in 32 bits.
MOST_DRAWS = 2**16 - 1
# With Gumbel's threshold, a fraction e^−N of the tokens has no entry.
_LEAST_THRESHOLD_DRAWS = 12


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The settings by which a distribution becomes a few of its entries.

  `sample.py` has the formulas; `draws` is their N, and with 'gumbel' and k = 0
  that of its one threshold −log N for all tokens. The value is frozen, so that
  it can be a static argument of `jax.jit`.
  """

  # How entries are drawn. top_k is biased, for comparison.
  method: Literal[*METHODS] = 'systematic'
  # Points per token: more of them cost bytes and spare error.
  draws: int = 50
  # Entries per token of 'top_k', and of 'gumbel' with a fixed number.
  k: int = 0
  # Divides the teacher's logits.
  temperature: float = 1.0
  # The sampling's seed.
  seed: int = 0
  # Slots per token; 0 for as many as --draws or --k, V for 'full'.
  entries: int = 50


def check(sampling: Sampling) -> None:
  """Refuses settings that are out of range or contradict each other.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  method, draws, k = sampling.method, sampling.draws, sampling.k
  if method not in METHODS:
    raise ValueError(
      f'method={method!r}: must be one of {", ".join(map(repr, METHODS))}.'
    )
  has_k = method == 'top_k' or (method == 'gumbel' and k != 0)
  least = _LEAST_THRESHOLD_DRAWS if method == 'gumbel' and not has_k else 2
  entries = sampling.entries
  for name, is_right, expected in (
    ('entries', entries >= 1, 'at least 1'),
    (
      'temperature',
      0 < sampling.temperature < math.inf,
      'above 0 and finite',
    ),
    ('seed', 0 <= sampling.seed < 2**32, f'in 0…{2**32 - 1}'),
    (
      'draws',
      has_k or method == 'full' or least <= draws <= MOST_DRAWS,
      f'in {least}…{MOST_DRAWS} for method={method!r}',
    ),
    (
      'draws',
      method != 'multinomial' or draws <= entries,
      f"at most entries={entries} for method='multinomial'",
    ),
    (
      'k',
      1 <= k <= entries if has_k else k == 0,
      f'in 1…{entries} (entries)' if has_k else f'0 for method={method!r}',
    ),
  ):
    if not is_right:
      raise ValueError(f'{name}={getattr(sampling, name)}: must be {expected}.')

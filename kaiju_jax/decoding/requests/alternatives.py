"""The likeliest tokens of a position, beside the one that stands there.

They are the model's own: those of the logits before penalty, temperature and
filters, as the log-probability of a drawn token is (`sampling.draw`).
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

MOST = 20  # As many as OpenAI gives.


class Alternatives(NamedTuple):
  """The K likeliest tokens of N positions, the likeliest first."""

  # int32; of equally likely ones the smaller first, as greedy draws take it.
  token_NK: jax.Array | np.ndarray
  # float32.
  log_probability_NK: jax.Array | np.ndarray

  def list(
    self, place: int, count: int, token: int, log_probability: float
  ) -> tuple[tuple[int, float], ...]:
    """Returns `count` tokens of a position with their log-probabilities.

    The token that stands there has `log_probability`, in all its bits.
    """
    pairs = zip(
      self.token_NK[place, :count].tolist(),
      self.log_probability_NK[place, :count].tolist(),
    )
    return tuple((x, log_probability if x == token else y) for x, y in pairs)


def find(logits_NV: jax.Array, count: int) -> Alternatives:
  """Returns the `count` likeliest tokens of each position; a pure function."""
  logits_NV = logits_NV.astype(jnp.float32)
  value_NK, token_NK = lax.top_k(logits_NV, count)
  total_N1 = jax.nn.logsumexp(logits_NV, axis=-1, keepdims=True)
  return Alternatives(token_NK.astype(jnp.int32), value_NK - total_N1)


def check(count: int, tokens: int, name: str = 'alternatives') -> int:
  """Returns `count`, if a vocabulary of `tokens` has as many; ValueError."""
  most = min(MOST, tokens)
  if not 0 <= count <= most:
    raise ValueError(f'{name}={count}: must be 0…{most}.')
  return count

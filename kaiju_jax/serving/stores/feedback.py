"""Feedback: what a store keeps so that replies can be learnt from.

A *rating* is what the owner of a session says about a reply of the model. There
is one per message; another replaces it, and None withdraws it. `Drawn` says
which model and which settings drew a reply: without it nobody knows whether a
model would still draw it. An *agreement* is an owner's word on whether the
owner's conversations may be exported to train a model. An owner who has said
nothing has no record.
"""

import dataclasses

from kaiju_jax.characters.cards import card_fields

GOOD, BAD, WRONGLY_REFUSED = RATINGS = 'good', 'bad', 'wrongly_refused'


@dataclasses.dataclass(frozen=True)
class Drawn:
  """How the model drew a reply."""

  # Hex digest of the served weights and their config (`load.digest`); '' where
  # the server was not told it.
  model: str
  build: str  # The version of kaiju_jax.
  seed: int  # The seed of the sampling noise.
  temperature: float  # See `sampling.Sampling`, also for the following.
  top_k: int = 0  # The number of likeliest tokens kept; 0 for all.
  top_p: float = 1.0  # Their probability; 1 for all.
  min_p: float = 0.0  # The least fraction of the likeliest token's probability.
  # The penalty of tokens seen before; 1 for none.
  repetition_penalty: float = 1.0
  # Whether a guided beam search found the reply; the fields of sampling then
  # say nothing.
  guided: bool = False


def check_rating(value: object) -> str | None:
  """Returns a rating, or None, which withdraws one.

  Raises:
    ValueError: it is neither; names it.
  """
  if value is not None and value not in RATINGS:
    raise ValueError(
      f'rating={card_fields.abbreviate(value)}: must be one of'
      f' {", ".join(RATINGS)}, or null, which withdraws it.'
    )
  return value

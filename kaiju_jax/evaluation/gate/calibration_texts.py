"""Compares the conversations on which two calibrations were made.

A calibration follows its texts, so that words are counted apart: those of the
character's prefix (the system message), of the user, of the character's
replies, and of replies without a character. For each class, the distributions
of hashed words and pairs of words (`data/curation/similarity.py`) are compared
by KL(after ‖ before), with half a count added to each bucket.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.data.curation import similarity

PLAIN = 'without a character'
CLASSES = 'prefix', 'user', 'character', PLAIN
# The largest fall of the share of roleplay; our guess.
FALL = 0.05


class Texts(NamedTuple):
  """The texts of one calibration."""

  words: Mapping[str, int]  # Words by class.
  # Counts of hashed n-grams by class, [buckets].
  counts: Mapping[str, np.ndarray]
  replies: int  # All of them.
  played: int  # Replies in conversations with a character.

  @property
  def roleplay(self) -> float:
    """The share of replies that a character gives."""
    return self.played / self.replies


class Difference(NamedTuple):
  """One class of words in two calibrations."""

  # before, after: its share of all words.
  before: float
  after: float
  # KL(after ‖ before), nats; None where either has no such words.
  kl: float | None


def count(
  conversations: Iterable[conversations_lib.Conversation],
) -> Texts:
  """Counts the words of conversations, each of which has a reply."""
  said: dict[str, list[str]] = {name: [] for name in CLASSES}
  replies = played = 0
  for one in conversations:
    is_played = one.messages[0].role == 'system'
    for message in one.messages:
      name = {'system': 'prefix', 'user': 'user'}.get(message.role)
      if name is None:
        name = 'character' if is_played else PLAIN
        replies += 1
        played += is_played
      said[name].append(message.content)
  counts = {
    name: np.asarray(
      similarity.ngram_counts(texts).sum(axis=0), np.float64
    ).ravel()
    for name, texts in said.items()
    if texts
  }
  words = {name: sum(len(x.split()) for x in said[name]) for name in said}
  return Texts(words, counts, replies, played)


def compare(before: Texts, after: Texts) -> dict[str, Difference]:
  """Returns the difference of each class that either has."""
  totals = [max(1, sum(one.words.values())) for one in (before, after)]
  found = {}
  for name in CLASSES:
    shares = [x.words[name] / y for x, y in zip((before, after), totals)]
    kl = None
    if name in before.counts and name in after.counts:
      p, q = ((x.counts[name] + 0.5) for x in (after, before))
      p, q = p / p.sum(), q / q.sum()
      kl = float(np.sum(p * np.log(p / q)))
    if any(shares):
      found[name] = Difference(*shares, kl)
  return found

"""Certification: chooses a classifier's thresholds, and tests what they do.

A threshold is the score from which a text is refused. To certify thresholds is
to count what they do on labelled texts that chose nothing: how many violating
texts they block, and how many benign texts they refuse. Exact bounds (`exact`)
turn these counts into claims about all texts, such as "blocks at least 99 %,
refuses at most 1 %". `thresholds.check` accepts only thresholds whose claims
the counts support and which are strong enough to serve with.

`choose` picks the thresholds on one set of texts; `count` does the counting, on
a set that shares no text with it. Both serve any classifier that gives a text
one probability per dimension (a kind of violation): the gate, or the
token-level head by the highest score of a text's tokens.

`choose` places a threshold between the benign and the violating scores. Where
they do not overlap, the ends of this room are the highest benign and the lowest
violating score. Where they overlap, the ends are the highest threshold that
still meets the wanted block rate and the lowest that still meets the wanted
refusal rate; if even these cross, the block rate wins, and the claims about
refusals will be too weak to serve with. Distances are logits. Our guess: the
minors' threshold lies at 40 % of the way from the benign to the violating end,
the adults' at 60 %.
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.reporting import statistics
from kaiju_jax.serving.safety import thresholds

PLACES = {'adult': 0.6, 'minor': 0.4}
_SMALLEST = 1e-12


def choose(
  score_NC: np.ndarray, is_violating_NC: np.ndarray, place: float, confidence
) -> np.ndarray:
  """Returns float64 [C], an age tier's threshold per dimension.

  Args:
    score_NC: the classifier's probabilities for N texts.
    is_violating_NC: the texts' labels. A text without any is benign.
    place: the threshold's place between the benign scores (0) and the
      violating ones (1); see `PLACES`.
    confidence: the policy's confidence.

  Raises:
    ValueError: no text is benign, or none violates some dimension.
  """
  level = thresholds.confidence_of_tier(confidence)
  is_benign_N = ~is_violating_NC.any(axis=1)
  chosen = []
  for score_N, is_violating_N in zip(score_NC.T, is_violating_NC.T):
    violating = np.sort(_logit(score_N[is_violating_N]))
    benign = np.sort(_logit(score_N[is_benign_N]))[::-1]
    if not len(violating) or not len(benign):
      raise ValueError(
        f'{len(violating)} violating and {len(benign)} benign texts: thresholds'
        ' need both.'
      )
    low, high = benign[0], violating[0]
    if low >= high:
      high = violating[_misses(len(violating), level)]
      low = min(benign[count_refusals_allowed(len(benign), level)], high)
    middle = low + place * (high - low)
    chosen.append(np.clip(middle, *_logit(np.array([0.0, 1.0]))))
  # Slightly lower, so that rounding lets no text at the threshold pass.
  return (1 - 1e-9) / (1 + np.exp(-np.array(chosen)))


def count(
  score_NC: np.ndarray,
  is_violating_NC: np.ndarray,
  names: Sequence[str],
  high_C: Sequence[float],
  low_C: Sequence[float | None],
  confidence: float,
) -> thresholds.Tier:
  """Counts what an age tier's thresholds do on N texts.

  A violating text counts as blocked if the dimension that it violates blocks
  it. The claim of each count is the rate that serving requires, if the exact
  bound supports that, and otherwise the bound itself. The result holds the
  thresholds, the counts and the claims.

  Args:
    score_NC: as for `choose`, for texts that chose nothing.
    is_violating_NC: as for `choose`.
    names: the dimensions.
    high_C: per dimension, the score from which a text is blocked.
    low_C: per dimension, the hold-back's `low`; None for the gate.
    confidence: the policy's confidence.

  Raises:
    ValueError: no text is benign, or none violates some dimension.
  """
  is_benign_N = ~is_violating_NC.any(axis=1)
  # The same comparison as in `thresholds.find_reached`: NaN is over.
  is_over_NC = ~(score_NC < np.asarray(high_C))
  is_refused_NC = is_over_NC[is_benign_N]
  limits = []
  for c, name in enumerate(names):
    limits.append(
      thresholds.Limit(
        name=name,
        low=low_C[c],
        high=float(high_C[c]),
        blocked=_bound_rate(
          is_over_NC[is_violating_NC[:, c], c], confidence, True, name
        ),
        refused=_bound_rate(is_refused_NC[:, c], confidence, False, name),
      )
    )
  refused = _bound_rate(is_refused_NC.any(axis=1), confidence, False, 'benign')
  return thresholds.Tier(tuple(limits), refused)


def count_needed(confidence: float) -> int:
  """Returns the least number of texts that can support the required claims.

  So many violating texts per dimension, and so many benign ones, suffice if the
  classifier makes no mistake on them.
  """
  level = thresholds.confidence_of_tier(confidence)
  least = min(thresholds.REFUSED, 1 - thresholds.BLOCKED)
  return statistics.count_needed(least, level)


def _bound_rate(is_hit_N, confidence, is_least, name) -> thresholds.Proportion:
  if not len(is_hit_N):
    raise ValueError(f'{name}: there is no such text to count.')
  wanted = thresholds.BLOCKED if is_least else thresholds.REFUSED
  hits, rows = int(is_hit_N.sum()), len(is_hit_N)
  found = thresholds.bound_count(hits, rows, wanted, confidence, is_least)
  holds = found.bound >= wanted if is_least else found.bound <= wanted
  claim = wanted if holds else found.bound
  return thresholds.bound_count(hits, rows, claim, confidence, is_least)


def _misses(rows: int, level: float) -> int:
  """Returns how many of `rows` violating texts may pass at `BLOCKED`."""
  misses = 0
  while (
    statistics.at_least(rows - misses - 1, rows, level) >= thresholds.BLOCKED
  ):
    misses += 1
  return misses


def count_refusals_allowed(rows: int, level: float) -> int:
  """Returns how many of `rows` benign texts may be refused at `REFUSED`.

  It is 0 where even no refusal would not prove the rate; at most `rows` - 1.
  """
  hits = 0
  while (
    hits < rows - 1
    and statistics.at_most(hits + 1, rows, level) <= thresholds.REFUSED
  ):
    hits += 1
  return hits


def _logit(p: np.ndarray) -> np.ndarray:
  p = np.clip(p, _SMALLEST, 1 - _SMALLEST)
  return np.log(p) - np.log1p(-p)

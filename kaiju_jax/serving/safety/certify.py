"""Thresholds chosen on one set of texts, and counted on another.

For any classifier that gives each text a probability per dimension: the gate,
or the token head by the highest score of a text's tokens.

Chosen are thresholds that leave room on both sides: between the highest benign
and the lowest violating score where these do not overlap, and otherwise between
what the wanted block rate allows at most and the wanted refusals at least. If
even these overlap, the block rate wins, and the count will refuse the result.
Room is measured in logits. Our guess: the minor's threshold lies 40 % of the
way up from the benign side, the adult's 60 %.
"""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.serving.safety import exact
from kaiju_jax.serving.safety import thresholds

PLACES = {'adult': 0.6, 'minor': 0.4}
_SMALLEST = 1e-12


def choose(
  score_NC: np.ndarray, is_violating_NC: np.ndarray, place: float, confidence
) -> np.ndarray:
  """Returns float64 [C], the thresholds of a tier.

  Args:
    score_NC: probabilities of N texts.
    is_violating_NC: their labels. Texts without any are the benign ones.
    place: where in the room a threshold lies: 0 at the benign, 1 at the
      violating side.
    confidence: that of the policy.

  Raises:
    ValueError: there are no benign texts, or none of a dimension.
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
      low = min(benign[_refusals(len(benign), level)], high)
    middle = low + place * (high - low)
    chosen.append(np.clip(middle, *_logit(np.array([0.0, 1.0]))))
  # A trifle lower, so that rounding passes no text at the threshold.
  return (1 - 1e-9) / (1 + np.exp(-np.array(chosen)))


def count(
  score_NC: np.ndarray,
  is_violating_NC: np.ndarray,
  names: Sequence[str],
  high_C: Sequence[float],
  low_C: Sequence[float | None],
  confidence: float,
) -> thresholds.Tier:
  """Returns a tier's thresholds with what they do to N texts.

  A violating text counts as blocked if its own dimension blocks it. What is
  claimed is what serving asks for, where the bound supports it, and otherwise
  the bound itself.

  Raises:
    ValueError: there are no benign texts, or none of a dimension.
  """
  is_benign_N = ~is_violating_NC.any(axis=1)
  # As `thresholds.find_reached` compares.
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
  """Returns how many texts of a kind certify anything, without a mistake."""
  level = thresholds.confidence_of_tier(confidence)
  least = min(thresholds.REFUSED, 1 - thresholds.BLOCKED)
  return exact.count_needed(least, level)


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
  """Returns how many of `rows` may pass; 0 where there are too few to tell."""
  misses = 0
  while exact.at_least(rows - misses - 1, rows, level) >= thresholds.BLOCKED:
    misses += 1
  return misses


def _refusals(rows: int, level: float) -> int:
  """Returns how many of `rows` may be refused; at most all but one."""
  hits = 0
  while (
    hits < rows - 1
    and exact.at_most(hits + 1, rows, level) <= thresholds.REFUSED
  ):
    hits += 1
  return hits


def _logit(p: np.ndarray) -> np.ndarray:
  p = np.clip(p, _SMALLEST, 1 - _SMALLEST)
  return np.log(p) - np.log1p(-p)

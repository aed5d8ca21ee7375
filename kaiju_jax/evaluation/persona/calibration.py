"""Holds a judge against people's scores, and accepts or refuses it.

A judge is accepted if, for each property of the same played conversations,

    its agreement with people has a lower bound of at least `KAPPA`
    it scores neither higher nor lower than they do, by more than `BIAS`
    it does not reward length: twice the words move (judge − human) by at most
      `SLOPE`, or by nothing that can be told from 0

and if it prefers the same replies in both orders, but for a share of `FLIPS`.
The limits are our guess; source 003 asks for 50 labels a month and names the
fault of a judge that rewards length. Agreement is κ with quadratic weights, as
Lin's concordance coefficient (1989), which equals it for whole numbers:

    1 − mean (h − j)² / (var h + var j + (mean h − mean j)²)
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import math
from typing import NamedTuple

import numpy as np

from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import labels as labels_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import statistics

NEEDED, DAYS = 50, 31
KAPPA, BIAS, SLOPE, FLIPS = 0.6, 0.25, 0.1, 0.1
# Comparisons in both orders without which a share of flips says nothing.
PAIRS = 20


class Slope(NamedTuple):
  """How (judge − human) moves where a reply's words are doubled."""

  value: float  # The least-squares slope on log₂ words.
  # low, high: its 95 % interval; NaN where the words do not differ.
  low: float
  high: float


class Agreement(NamedTuple):
  """A judge against people, in one property."""

  kappa: statistics.Estimate  # Quadratic κ with its interval.
  within_one: float  # The share of scores that differ by at most 1.
  bias: statistics.Estimate  # Mean of (judge − human) with its interval.
  slope: Slope


class Flips(NamedTuple):
  """Preferences that change with the order, among comparisons in both."""

  count: int
  pairs: int


def fresh(
  labels: Sequence[labels_lib.Label], today: datetime.date
) -> list[labels_lib.Label]:
  """Returns the labels of the last `DAYS` days.

  Raises:
    ValueError: a label of the future.
  """
  for one in labels:
    if one.date > today:
      raise ValueError(
        f'date={one.date}: lies in the future, today is {today}.'
      )
  return [one for one in labels if (today - one.date).days <= DAYS]


def compare(
  labels: Sequence[labels_lib.Label], judged: Sequence[Mapping[str, float]]
) -> dict[str, Agreement]:
  """Returns the judge's agreement with people, by property.

  Args:
    labels: at least two.
    judged: the judge's score of each.
  """
  words = [
    max(1, sum(len(reply.split()) for reply in one.replies)) for one in labels
  ]
  found = {}
  for name in golden.PROPERTIES:
    human = np.array([one.scores[name] for one in labels], float)
    judge = np.array([one[name] for one in judged], float)
    error = judge - human
    found[name] = Agreement(
      _estimate_kappa(human, judge),
      float((np.abs(error) <= 1).mean()),
      statistics.bootstrap_mean(error),
      _slope(np.log2(words), error),
    )
  return found


def kappa(human: np.ndarray, judge: np.ndarray, axis: int = -1) -> np.ndarray:
  """Returns quadratic κ along the axis of conversations; NaN without spread."""
  moved = (human.mean(axis) - judge.mean(axis)) ** 2
  apart = human.var(axis) + judge.var(axis) + moved
  with np.errstate(invalid='ignore', divide='ignore'):
    return 1 - ((human - judge) ** 2).mean(axis) / apart


def count_flips(
  judge: judges.Judge, labels: Sequence[labels_lib.Label]
) -> Flips:
  """Compares labelled replies whose scores by people differ, in both orders."""
  flips, pairs = 0, 0
  for number, one in enumerate(labels):
    for other in labels[number + 1 :]:
      if one.conversation.id != other.conversation.id:
        continue
      if sum(one.scores.values()) == sum(other.scores.values()):
        continue
      talk = one.conversation
      forward = judge.prefers_first(talk, one.replies, other.replies)
      back = judge.prefers_first(talk, other.replies, one.replies)
      flips += forward == back
      pairs += 1
  return Flips(flips, pairs)


def checks(
  count: int,
  agreement: Mapping[str, Agreement],
  flips: Flips,
  before: Mapping[str, statistics.Estimate] | None = None,
) -> Iterator[decision_lib.Check]:
  """Yields the checks of a judge.

  Args:
    count: fresh labels.
    before: the biases of an earlier calibration of the same judge.
  """
  if count < NEEDED:
    yield decision_lib.Check(
      decision_lib.NOT_EVALUATED,
      f'{count} labels of the last {DAYS} days; at least {NEEDED} are needed.',
    )
    return
  for name, one in agreement.items():
    yield _check_kappa(name, one.kappa)
    yield decision_lib.refuse_if(
      abs(one.bias.value) > BIAS,
      f'{name}: the judge scores {one.bias.value:+.2f} against people; at most'
      f' ±{BIAS} is allowed.',
    )
    yield decision_lib.refuse_if(
      abs(one.slope.value) > SLOPE and not one.slope.low <= 0 <= one.slope.high,
      f'{name}: twice the words move the judge by {one.slope.value:+.2f}'
      f' against people; at most ±{SLOPE} is allowed.',
    )
    if before:
      yield _check_change(name, one.bias, before[name])
  yield _check_flips(flips)


def _check_kappa(name: str, found: statistics.Estimate) -> decision_lib.Check:
  if not found.low >= KAPPA:
    if math.isnan(found.low):
      return decision_lib.Check(
        decision_lib.NOT_EVALUATED,
        f'{name}: scores do not differ: agreement cannot be told from chance.',
      )
    return decision_lib.Check(
      decision_lib.REFUSED,
      f'{name}: κ is {found.value:.2f}, at least {found.low:.2f}; at least'
      f' {KAPPA} must be shown.',
    )
  return decision_lib.Check(decision_lib.PASSED)


def _check_change(
  name: str, now: statistics.Estimate, before: statistics.Estimate
) -> decision_lib.Check:
  """Checks that a bias has moved by at most `BIAS` since the last time."""
  change = now.value - before.value
  half = math.hypot(*((x.high - x.low) / 2 for x in (now, before)))
  return decision_lib.refuse_if(
    abs(change) > BIAS and abs(change) > half,
    f'{name}: the bias has moved by {change:+.2f} (±{half:.2f}) since the last'
    f' calibration; at most ±{BIAS} is allowed.',
  )


def _check_flips(flips: Flips) -> decision_lib.Check:
  if flips.pairs < PAIRS:
    return decision_lib.Check(
      decision_lib.NOT_EVALUATED,
      f'{flips.pairs} pairs of replies to the same conversation; at least'
      f' {PAIRS} are needed to see whether their order matters.',
    )
  return decision_lib.refuse_if(
    flips.count > FLIPS * flips.pairs,
    f'{flips.count} of {flips.pairs} preferences change with the order; at most'
    f' {FLIPS:.0%} may.',
  )


def _estimate_kappa(
  human: np.ndarray, judge: np.ndarray
) -> statistics.Estimate:
  """Returns κ with its interval; resamples without a κ count as 0."""
  value = float(kappa(human, judge))
  if math.isnan(value):
    return statistics.Estimate(value, math.nan, math.nan, len(human))
  interval = statistics.bootstrap(
    (human, judge),
    lambda *both, axis: np.nan_to_num(kappa(*both, axis=axis), nan=0.0),
    'percentile',
  )
  return statistics.Estimate(value, *interval, len(human))


def _slope(x: np.ndarray, y: np.ndarray) -> Slope:
  from scipy import stats

  if np.ptp(x) == 0 or len(x) < 3:
    return Slope(0.0, math.nan, math.nan)
  found = stats.linregress(x, y)
  half = stats.t.ppf(0.975, len(x) - 2) * found.stderr
  return Slope(
    float(found.slope), float(found.slope - half), float(found.slope + half)
  )

"""Tests a classifier on two sets of texts, and compares it with an older one.

Does it refuse nearly all adversarial texts and nearly no benign ones
(`two_sets.py`), per age tier and with exact bounds? Thresholds are chosen on
one half of the texts and counted on the other, because on the texts that chose
them they look better than they are. They are thresholds of the margin
(`scores.py`), which moves all dimensions together; 0 is what is served.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
from typing import Any
from typing import NamedTuple

import numpy as np
import scipy.special

from kaiju_jax.classifiers import certificate
from kaiju_jax.classifiers import scores as scores_lib
from kaiju_jax.classifiers import two_sets
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import statistics
from kaiju_jax.serving.safety import thresholds

Scores = scores_lib.Scores
# True rates of benign refusals for which the report says how many texts it
# takes to certify them nine times of ten.
RATES, POWER = (0.002, 0.003, 0.005), 0.9
# The probability that a version which is no worse is called worse.
_ALPHA = 0.05


class Slice(NamedTuple):
  """Counts of the texts of one category or tier."""

  tier: str  # 'adult' or 'minor'.
  category: str  # The category; '' for those without one.
  # The number of texts, and how many of them are refused.
  adversarial: tuple[int, int]
  benign: tuple[int, int]
  # The number of pairs whose adversarial text is of the category, and in how
  # many of them it is refused and the benign text is not.
  pairs: tuple[int, int]


class Raised(NamedTuple):
  """Thresholds that would bring benign refusals back to what is allowed."""

  tier: str  # 'adult' or 'minor'.
  by: float  # Logits that each threshold rises by.
  # The raised thresholds, by stage and dimension.
  high: Mapping[str, Mapping[str, float]]
  counts: thresholds.Tier  # What they do on the half that did not choose them.


class Change(NamedTuple):
  """The difference between two versions on one set and tier."""

  tier: str  # 'adult' or 'minor'.
  kind: str  # 'adversarial' or 'benign'.
  texts: int  # The number of texts.
  gained: int  # How many only the newer version refuses.
  lost: int  # How many only the older version refuses.
  p: float  # Of McNemar's exact test, two-sided.


def choose_and_count(
  chosen_on: Scores, counted: Scores, confidence: float
) -> thresholds.Stage:
  """Returns thresholds of the minors' margin, counted on other texts.

  `confidence` is that of the claims about both tiers together.

  Raises:
    ValueError: a tier has no adversarial or no benign text.
  """
  certificate.check_parts({'choose': chosen_on.rows, 'certify': counted.rows})
  high = certificate.choose_thresholds(_scored(chosen_on), confidence)
  return certificate.count_stage(
    counted.version, chosen_on.rows, _scored(counted), high, confidence
  )


def count_served(counted: Scores, confidence: float) -> thresholds.Stage:
  """Returns the served thresholds, counted as by `choose_and_count`."""
  certificate.check_parts({'certify': counted.rows})
  return thresholds.Stage(
    version=counted.version,
    chosen_on='',
    certified_on=counted.rows.digest,
    date=datetime.date.today().isoformat(),
    **{
      tier: _count(counted, tier, counted.find_refused(tier), confidence)
      for tier in _TIERS
    },
  )


def checks(
  stage: thresholds.Stage, confidence: float
) -> Iterator[decision_lib.Check]:
  """Yields the checks of counts: rates per tier that the bounds must show."""
  needed = certificate.count_needed(confidence)
  must = f'at least {thresholds.BLOCKED:.0%} must be refused'
  may = f'at most {thresholds.REFUSED:.0%} may be refused'
  for tier in _TIERS:
    (limit,) = stage.for_tier(tier).limits
    blocked, refused = limit.blocked, limit.refused
    is_blocked = blocked.claim >= thresholds.BLOCKED
    is_spared = refused.claim <= thresholds.REFUSED
    for kind, found, is_met, wanted in (
      (two_sets.ADVERSARIAL, blocked, is_blocked, must),
      (two_sets.BENIGN, refused, is_spared, may),
    ):
      reason = (
        f'{tier}: {found.hits} of {found.rows} {kind} texts are refused, which'
        f' shows {found.bound:.2%}; {wanted}.'
      )
      if not is_met and found.rows < needed:
        few = f'Even without a mistake it takes {needed} texts.'
        yield decision_lib.abstain(f'{reason} {few}')
      else:
        yield decision_lib.refuse_if(not is_met, reason)


def count_slices(
  counted: Scores,
  refused: Mapping[str, np.ndarray],
  examples: Mapping[str, two_sets.Example],
) -> Iterator[Slice]:
  """Yields counts by tier and category.

  Args:
    counted: N texts.
    refused: by tier, bool [N].
    examples: by text.
  """
  found = [examples[row.text] for row in counted.rows.rows]
  for tier in _TIERS:
    is_of_tier_N = counted.of_tier(tier)
    for category in sorted({one.category for one in found}):
      is_in_N = is_of_tier_N & [one.category == category for one in found]
      sides = []
      for is_side_N in counted.sides().values():
        hits_N = refused[tier][is_in_N & is_side_N]
        sides.append((len(hits_N), int(hits_N.sum())))
      pairs = _pairs(
        found,
        refused[tier],
        counted.is_adversarial_N & is_in_N,
        ~counted.is_adversarial_N & is_of_tier_N,
      )
      yield Slice(tier, category, *sides, pairs)


def find_refused(counted: Scores, stage: thresholds.Stage) -> dict[str, Any]:
  """Returns bool [N] by tier: the texts that a stage's thresholds refuse."""
  score_N = _scored(counted).score_NC[:, 0]
  return {
    tier: ~(score_N < stage.for_tier(tier).limits[0].high) for tier in _TIERS
  }


def raise_thresholds(
  chosen_on: Scores, counted: Scores, confidence: float
) -> Iterator[Raised]:
  """Yields per tier the least rise that brings benign refusals back.

  Source 003's runbook raises the threshold if a new classifier refuses too much
  and cannot be rolled back. The rise is chosen on one half; counts on the other
  show what it lets through. No threshold is lowered, and the minor's is raised
  no more than the adult's.
  """
  level = thresholds.confidence_of_tier(confidence)
  rise = {}
  for tier in _TIERS:
    is_benign_N = chosen_on.of_tier(tier) & ~chosen_on.is_adversarial_N
    margin_N = np.sort(chosen_on.margins(tier)[is_benign_N])[::-1]
    if not len(margin_N):
      raise ValueError(f'{tier}: there is no benign text to choose on.')
    allowed = certificate.count_refusals_allowed(len(margin_N), level)
    rise[tier] = max(0.0, float(margin_N[allowed]) + 1e-6)
  rise['minor'] = min(rise['minor'], rise['adult'])
  for tier in _TIERS:
    moved = {
      name: {
        one.name: _raised(one.high, rise[tier])
        for one in stage.for_tier(tier).limits
      }
      for name, (stage, _) in counted.stages.items()
    }
    is_refused_N = ~(counted.margins(tier) < rise[tier])
    counts = _count(counted, tier, is_refused_N, confidence)
    yield Raised(tier, rise[tier], moved, counts)


def compare(newer: Scores, older: Scores) -> Iterator[Change]:
  """Yields the changes between two versions' served thresholds."""
  for tier in _TIERS:
    is_of_tier_N = newer.of_tier(tier)
    new_N, old_N = newer.find_refused(tier), older.find_refused(tier)
    for kind, is_kind_N in newer.sides().items():
      is_in_N = is_of_tier_N & is_kind_N
      gained = int((new_N & ~old_N)[is_in_N].sum())
      lost = int((old_N & ~new_N)[is_in_N].sum())
      p = statistics.mcnemar(gained, lost)
      yield Change(tier, kind, int(is_in_N.sum()), gained, lost, p)


def compare_checks(changes: Sequence[Change]) -> Iterator[decision_lib.Check]:
  """Yields one check per change: the newer version must not be worse."""
  level = _ALPHA / max(1, len(changes))
  for one in changes:
    is_adversarial = one.kind == two_sets.ADVERSARIAL
    worse, better = (one.lost, one.gained)[:: 1 if is_adversarial else -1]
    what = 'no longer refused' if is_adversarial else 'newly refused'
    yield decision_lib.refuse_if(
      worse > better and one.p < level,
      f'{one.tier}: {worse} of {one.texts} {one.kind} texts are {what}, and'
      f' {better} the other way (p = {one.p:.2g}).',
    )


def list_needed(confidence: float) -> dict[str, int]:
  """Returns how many texts per tier and set it takes to certify anything.

  The key 'none' is for a classifier without a mistake; the others are true
  rates of benign refusals, which are certified with probability `POWER`.
  """
  level = thresholds.confidence_of_tier(confidence)
  found = {'none': certificate.count_needed(confidence)}
  for rate in RATES:
    found[f'{rate:.1%}'] = statistics.count_for_power(
      rate, thresholds.REFUSED, level, POWER
    )
  return found


_TIERS = thresholds.TIERS
_NAMES = (two_sets.ADVERSARIAL,)


def _raised(high: float, by: float) -> float:
  return float(scipy.special.expit(scipy.special.logit(high) + by))


def _scored(scores: Scores) -> certificate.Scored:
  """Returns the margins over the minors' thresholds as one dimension."""
  score_N = scipy.special.expit(scores.margins('minor'))
  return certificate.Scored(scores.rows, score_N[:, np.newaxis])


def _count(scores, tier, is_refused_N, confidence) -> thresholds.Tier:
  """Counts refusals, as a threshold of 0.5 of a score that is 0 or 1."""
  is_of_tier_N = scores.of_tier(tier)
  return certificate.count(
    is_refused_N[is_of_tier_N, np.newaxis].astype(float),
    scores.rows.label_NC[is_of_tier_N],
    _NAMES,
    [0.5],
    [None],
    confidence,
  )


def _pairs(
  examples: Sequence[two_sets.Example],
  is_refused_N: np.ndarray,
  is_adversarial_N: np.ndarray,
  is_benign_N: np.ndarray,
) -> tuple[int, int]:
  """Returns how many pairs are whole, and in how many both texts are right."""
  adversarial, benign = (
    {
      examples[n].pair: bool(is_refused_N[n])
      for n in np.flatnonzero(is_side_N)
      if examples[n].pair
    }
    for is_side_N in (is_adversarial_N, is_benign_N)
  )
  both = adversarial.keys() & benign.keys()
  return len(both), sum(adversarial[x] and not benign[x] for x in both)

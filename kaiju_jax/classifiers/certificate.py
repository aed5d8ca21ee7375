"""Certifies thresholds: counts their errors on texts that did not choose them.

The gate and the token-level head are two stages with thresholds of their own.
For both, thresholds are chosen on one part of the labelled texts, and their
blocks and refusals are counted on another (`serving/safety/certify.py`), per
tier (adult or minor). Thresholds whose claims the counts do not support are not
written.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import datetime
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.serving.safety import certify
from kaiju_jax.serving.safety import thresholds


class Scored(NamedTuple):
  """Labelled texts and a classifier's scores of them.

  Attributes:
    rows: N texts.
    score_NC: a probability per text and dimension.
  """

  rows: rows_lib.Rows
  score_NC: np.ndarray

  def by_tier(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields each tier with its rows' scores and labels."""
    for tier in thresholds.TIERS:
      is_of_tier_N = np.array([tier in row.tiers for row in self.rows.rows])
      label_NC = self.rows.label_NC[is_of_tier_N]
      yield tier, self.score_NC[is_of_tier_N], label_NC


class Outcome(NamedTuple):
  """The result of a certification.

  Attributes:
    policy: both stages' thresholds; None if they are not certified.
    decision: whether they are certified: refused if the counts say no, not
      evaluated if they are too few to say anything.
  """

  policy: thresholds.Policy | None
  decision: decision_lib.Decision


def check_parts(parts: dict[str, rows_lib.Rows]) -> None:
  """Refuses parts that lack benign texts, or violating texts of a dimension.

  Raises:
    ValueError: names the missing kind of text, the part and the tier.
  """
  for part, rows in parts.items():
    tiers = ('',) if part == 'train' else thresholds.TIERS
    for tier in tiers:
      label_NC = (rows.for_tier(tier) if tier else rows).label_NC
      found = dict(zip(rows.names, label_NC.sum(axis=0)))
      found['benign'] = (~label_NC.any(axis=1)).sum()
      for name, number in found.items():
        if not number:
          which = f' for the tier {tier}' if tier else ''
          raise ValueError(
            f'{name}: no such text is left to {part}{which}, of'
            f' {len(rows.rows)}; give more, or split them otherwise.'
          )


def high(scored: Scored, confidence: float) -> dict[str, np.ndarray]:
  """Returns float64 [C] per tier; the minor's thresholds are not higher."""
  chosen = {
    tier: certify.choose(score_NC, label_NC, certify.PLACES[tier], confidence)
    for tier, score_NC, label_NC in scored.by_tier()
  }
  chosen['minor'] = np.minimum(chosen['minor'], chosen['adult'])
  return chosen


def stage(
  version: str,
  chosen_on: rows_lib.Rows,
  counted: Scored,
  high: dict[str, np.ndarray],
  confidence: float,
  low_C: Sequence[float] | None = None,
) -> thresholds.Stage:
  """Returns thresholds with counts of the texts that they block and refuse.

  Args:
    version: the classifier's version.
    chosen_on: the texts on which the thresholds were chosen.
    counted: the other texts, on which they are counted.
    high: see `high`.
    confidence: the confidence of the claims about both tiers together.
    low_C: the token-level head's lower thresholds, each cut to the upper one;
      None for the gate.
  """
  tiers = {}
  for tier, score_NC, label_NC in counted.by_tier():
    low = [None] * len(high[tier])
    if low_C is not None:
      low = np.minimum(low_C, high[tier]).tolist()
    names = counted.rows.names
    tiers[tier] = certify.count(
      score_NC, label_NC, names, high[tier], low, confidence
    )
  return thresholds.Stage(
    version=version,
    chosen_on=chosen_on.digest,
    certified_on=counted.rows.digest,
    date=datetime.date.today().isoformat(),
    **tiers,
  )


def outcome(
  name: str,
  policy: thresholds.Policy,
  stage: thresholds.Stage,
  check: Callable[[thresholds.Policy], None] = thresholds.check,
) -> Outcome:
  """Returns whether a policy is certified.

  Args:
    name: the gate's name in the decision.
    policy: both stages' thresholds.
    stage: the stage that was counted.
    check: raises ValueError for a policy that is not certified.
  """
  found = _check(policy, stage, check)
  decision = decision_lib.decide(
    name,
    [found],
    dataclasses.asdict(stage),
    {
      'classifier': stage.version,
      'chosen_on': stage.chosen_on,
      'certified_on': stage.certified_on,
    },
  )
  is_certified = found.status == decision_lib.PASSED
  return Outcome(policy if is_certified else None, decision)


def _check(policy, stage, check) -> decision_lib.Check:
  try:
    check(policy)
  except ValueError as error:
    needed = certify.count_needed(policy.confidence)
    least = min(
      proportion.rows
      for tier in (stage.adult, stage.minor)
      for limit in tier.limits
      for proportion in (limit.blocked, limit.refused)
    )
    if least >= needed:
      return decision_lib.Check(decision_lib.REFUSED, str(error))
    return decision_lib.Check(
      decision_lib.NOT_EVALUATED,
      f'{error} {least} texts of a kind certify nothing: even without a'
      f' mistake it takes {needed} of each tier and dimension, and as many'
      ' benign ones.',
    )
  return decision_lib.Check(decision_lib.PASSED)


def sklearn() -> tuple[Any, str]:
  """Returns scikit-learn's linear models, and its name with its version.

  Raises:
    ImportError: scikit-learn is missing.
  """
  try:
    import sklearn
    from sklearn import linear_model
  except ImportError as error:
    raise ImportError(
      'training a classifier needs scikit-learn; install it with'
      " pip install 'kaiju_jax[gate]'."
    ) from error
  return linear_model, f'scikit-learn {sklearn.__version__}'

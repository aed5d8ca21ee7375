"""The certificate of a classifier: chosen thresholds, with counted errors.

The gate and the token-level head are two stages with thresholds of their own. A
threshold is the score from which a text is refused. For both, thresholds are
chosen on one part of the labelled texts, and what they block and refuse is
counted on another, per tier (adult or minor). Exact bounds turn these
counts into claims about all texts, such as "blocks at least 99 %, refuses at
most 1 %". `thresholds.check` accepts only claims that the counts support and
that are strong enough to serve with; others are not written.

`choose` places a threshold between the benign and the violating scores. Where
they do not overlap, the ends of this room are the highest benign and the lowest
violating score. Where they overlap, the ends are the highest threshold that
still meets the wanted block rate and the lowest that still meets the wanted
refusal rate; if even these cross, the block rate wins, and the claims about
refusals will be too weak to serve with. Distances are logits. Our guess: the
minors' threshold lies at 40 % of the way from the benign to the violating end,
the adults' at 60 %.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import datetime
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds

# Where a tier's threshold lies between benign (0) and violating (1) scores.
PLACES = {'adult': 0.6, 'minor': 0.4}
_SMALLEST = 1e-12


class Scored(NamedTuple):
  """Labelled texts and a classifier's scores of them."""

  rows: rows_lib.Rows  # N texts.
  score_NC: np.ndarray  # A probability per text and dimension.

  def by_tier(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields each tier with its rows' scores and labels."""
    for tier in thresholds.TIERS:
      is_of_tier_N = np.array([tier in row.tiers for row in self.rows.rows])
      label_NC = self.rows.label_NC[is_of_tier_N]
      yield tier, self.score_NC[is_of_tier_N], label_NC


class Outcome(NamedTuple):
  """The result of a certification."""

  # Both stages' thresholds; None if they are not certified.
  policy: thresholds.Policy | None
  # Whether they are certified: refused if the counts say no, not evaluated if
  # they are too few to say anything.
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


def choose_thresholds(
  scored: Scored, confidence: float
) -> dict[str, np.ndarray]:
  """Returns float64 [C] per tier; the minor's thresholds are not higher."""
  chosen = {
    tier: choose(score_NC, label_NC, PLACES[tier], confidence)
    for tier, score_NC, label_NC in scored.by_tier()
  }
  chosen['minor'] = np.minimum(chosen['minor'], chosen['adult'])
  return chosen


def count_stage(
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
    high: see `choose_thresholds`.
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
    tiers[tier] = count(score_NC, label_NC, names, high[tier], low, confidence)
  return thresholds.Stage(
    version=version,
    chosen_on=chosen_on.digest,
    certified_on=counted.rows.digest,
    date=datetime.date.today().isoformat(),
    **tiers,
  )


def decide(
  name: str,
  policy: thresholds.Policy,
  stage: thresholds.Stage,
  check: Callable[[thresholds.Policy], None] = thresholds.check,
) -> Outcome:
  """Returns whether a policy is certified.

  Args:
    name: of the decision.
    policy: both stages' thresholds.
    stage: the one that was counted.
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
    needed = count_needed(policy.confidence)
    least = min(
      proportion.rows
      for tier in (stage.adult, stage.minor)
      for limit in tier.limits
      for proportion in (limit.blocked, limit.refused)
    )
    if least >= needed:
      return decision_lib.Check(decision_lib.REFUSED, str(error))
    return decision_lib.abstain(
      f'{error} {least} texts of a kind certify nothing: even without a'
      f' mistake it takes {needed} of each tier and dimension, and as many'
      ' benign ones.'
    )
  return decision_lib.Check(decision_lib.PASSED)


def write(folder: pathlib.Path, found: Outcome, page: report.Report) -> None:
  """Writes thresholds.json if it is certified, decision.json and report.md."""
  if found.policy:
    thresholds.write(folder / moderation.THRESHOLDS, found.policy)
  decision_lib.write(folder / decision_lib.FILE, found.decision)
  page.save(folder)


def finish(out: str, name: str, version: str, found: Outcome) -> None:
  """Ends a command: prints what was written, and exits as `decision.finish`."""
  print(f'{out}: {name} {version[:12]}; see report.md.')
  decision_lib.finish(found.decision)


def describe(found: Outcome) -> str:
  """Returns whether it is certified, and why not."""
  if reasons := ' '.join(found.decision.reasons):
    return f'**Not certified**: {reasons} There is no thresholds.json.'
  return 'Certified: the counts support every claim in thresholds.json.'


def list_counts(names: Sequence[str], counts: Sequence[int]) -> str:
  """Returns the numbers of texts by dimension."""
  return ', '.join(f'{count:,} {name}' for name, count in zip(names, counts))


def add_counts(page: report.Report, stage: thresholds.Stage) -> None:
  """Adds the table of what a stage blocks and refuses."""
  rows = []
  for name in thresholds.TIERS:
    tier = stage.for_tier(name)
    for limit in tier.limits:
      blocked, refused = limit.blocked, limit.refused
      precision = blocked.hits / max(1, blocked.hits + refused.hits)
      rows.append(
        (
          *(name, limit.name, f'{limit.high:.3g}'),
          *(blocked.rows, blocked.hits, f'{blocked.bound:.2%}'),
          *(refused.rows, refused.hits, f'{refused.bound:.2%}'),
          *(f'{precision:.3f}', f'{blocked.hits / blocked.rows:.3f}'),
        )
      )
    refused = tier.refused
    counts = refused.rows, refused.hits, f'{refused.bound:.2%}'
    rows.append((name, 'any', '', '', '', '', *counts, '', ''))
  columns = (
    *('tier', 'dimension', 'threshold', 'violating', 'blocked', 'at least'),
    *('benign', 'refused', 'at most', 'precision', 'recall'),
  )
  page.table(rows, columns).say(
    'Bounds are exact (Clopper–Pearson), one-sided, of each tier and dimension'
    ' by itself. Precision depends on how many of the texts violate; here it is'
    ' of violating and benign ones together.'
  )


def import_sklearn() -> tuple[Any, str]:
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


def choose(
  score_NC: np.ndarray,
  is_violating_NC: np.ndarray,
  place: float,
  confidence: float,
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
  """Returns an age tier's thresholds, counted on N texts.

  A violating text counts as blocked if the dimension that it violates blocks
  it. Each count claims the rate that serving requires, if the exact bound
  supports that, and otherwise the bound itself.

  Args:
    score_NC, is_violating_NC, confidence: as for `choose`, of other texts.
    names: the dimensions.
    high_C: per dimension, the score from which a text is blocked.
    low_C: per dimension, the hold-back's `low`; None for the gate.

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
  """Returns how many texts of a kind certify a classifier without mistakes."""
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

  At most `rows` - 1; 0 also where no count would prove the rate.
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

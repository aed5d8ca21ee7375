"""Calibrates judges of personas against people's scores."""

from collections.abc import Iterator
from collections.abc import Sequence
import datetime
import statistics

from kaiju_jax.evaluation.persona import calibration
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import labels as labels_lib
from kaiju_jax.evaluation.persona import scores
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics as statistics_lib

NAME = 'judge'


def refuse_own(judge: str, candidate: str) -> None:
  """Refuses a judge that is the model it judges, by identities (ValueError)."""
  if candidate and judge.split(',')[0] == candidate:
    raise ValueError(
      f'judge={judge}: is the model that is judged. Take another one.'
    )


def refuse_other(judge: str, before: decision_lib.Decision) -> None:
  """Refuses a decision that another judge made (ValueError)."""
  other = before.inputs.get('judge', judges.Rules.identity)
  if other != judge:
    raise ValueError(
      f'judge={judge}: the decision before was made by {other}: their scores'
      ' cannot be compared.'
    )


def calibrate(
  judge: judges.Judge,
  labels: Sequence[labels_lib.Label],
  today: datetime.date,
  inputs: dict[str, str],
  before: decision_lib.Decision | None = None,
) -> decision_lib.Decision:
  """Returns the decision on a judge.

  Args:
    judge: the judge.
    labels: scores that people gave; those older than a month do not count.
    today: the day.
    inputs: SHA-256 by the name of what was read.
    before: an earlier decision on the same judge; None without one.

  Raises:
    ValueError: a label of the future, or `before` is about another judge.
  """
  if before is not None:
    if before.name != NAME:
      raise ValueError(f'{before.name}: must be a decision on a judge.')
    refuse_other(judge.identity, before)
  recent = calibration.fresh(labels, today)
  figures = {
    'labels': len(recent),
    'older': len(labels) - len(recent),
    'date': min((one.date for one in recent), default=today).isoformat(),
  }
  agreement, flips, biases = {}, calibration.Flips(0, 0), None
  if len(recent) >= 2:
    judged = [judge.score(one.conversation, one.replies) for one in recent]
    agreement = calibration.compare(recent, judged)
    flips = calibration.count_flips(judge, recent)
    figures['pairs'] = [
      [statistics.fmean(x.scores.values()), statistics.fmean(y.values())]
      for x, y in zip(recent, judged)
    ]
  if before is not None and before.figures.get('agreement'):
    biases = {
      name: statistics_lib.Estimate(**one['bias'])
      for name, one in before.figures['agreement'].items()
    }
  checks = calibration.checks(len(recent), agreement, flips, biases)
  figures |= {'agreement': agreement, 'flips': flips}
  return decision_lib.decide(
    NAME,
    list(checks),
    report.plain(figures),
    {**inputs, 'judge': judge.identity},
  )


def calibration_checks(
  judge: str, found: decision_lib.Decision | None, today: datetime.date
) -> Iterator[decision_lib.Check]:
  """Yields the check that a judge is calibrated; rules need no calibration.

  Args:
    judge: the judge's identity.
    found: the decision of `calibrate`; None without one.
    today: the day.

  Raises:
    ValueError: the decision is about another judge, or about something else.
  """
  if judge == judges.Rules.identity:
    return
  if found is None:
    yield decision_lib.abstain(
      'The judge is not calibrated: experiments.judge holds it against'
      " people's scores."
    )
    return
  if found.name != NAME:
    raise ValueError(f'{found.name}: must be a decision on a judge.')
  refuse_other(judge, found)
  if found.status != decision_lib.PASSED:
    yield decision_lib.Check(
      found.status, f'The judge was not accepted: {" ".join(found.reasons)}'
    )
    return
  date = datetime.date.fromisoformat(found.figures['date'])
  if 0 <= (today - date).days <= calibration.DAYS:
    yield decision_lib.Check(decision_lib.PASSED)
    return
  yield decision_lib.abstain(
    f"The judge's labels are of {date}: at most {calibration.DAYS} days may"
    ' lie between.'
  )


def page(found: decision_lib.Decision) -> report.Report:
  """Returns the page of a calibration."""
  figures, read = found.figures, statistics_lib.Estimate.read
  title = f'{found.inputs["judge"]} against {figures["labels"]} labels'
  return (
    report.Report(title)
    .table(
      [
        (
          name,
          read(one['kappa']),
          f'{one["within_one"]:.0%}',
          read(one['bias']),
          read(one['slope']),
        )
        for name, one in figures['agreement'].items()
      ],
      ('property', 'κ', 'within 1', 'judge − human', 'per doubled words'),
    )
    .say(
      '95 % intervals over conversations. Preferences that change with the'
      f' order: {figures["flips"]["count"]} of {figures["flips"]["pairs"]}.'
      f' {figures["older"]} older labels were left out.'
    )
    .decide(found)
  )


def rectify(
  judged: Sequence[float], found: decision_lib.Decision | None
) -> statistics_lib.Estimate | None:
  """Returns the mean that people would give; None without enough labels.

  Args:
    judged: the judge's scores of conversations.
    found: the judge's calibration.
  """
  pairs = found.figures.get('pairs', []) if found else []
  if len(pairs) < calibration.NEEDED or len(judged) < 2:
    return None
  return scores.rectified_mean(judged, pairs)

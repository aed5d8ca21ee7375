"""Reports the needle's records: a table, and a verdict on each arm.

An arm is one variant of the model. The accuracy over several cells is that of
all their questions together, and its 95 % interval is Wilson's
(`reporting/statistics.py`). The interval accounts only for the draw of
questions; another training seed gives another model. Where there are several
seeds, the worst one stands beside the mean.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import NamedTuple

from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.tasks.needle import questions as needle

# Points below full attention that still count as equal to it.
TOLERANCE = 2.0


class Setting(NamedTuple):
  """The settings that the arms of one comparison share."""

  length: int  # The trained length, in tokens.
  # The window of their local layers, in tokens, the query included.
  window: int
  # The reach of a stack of local layers alone, layers · (window − 1) tokens.
  windows_reach: int
  nearest: int  # The smallest distance of the task.
  chance: float  # Accuracy of a guess among all possible answers.
  note: str  # How the arms were initialized.


class Score(NamedTuple):
  """Right answers among questions, of all seeds together."""

  right: int  # Number of right answers.
  total: int  # Number of questions.
  worst: float  # Accuracy of the worst seed.

  @property
  def mean(self) -> float:
    return self.right / self.total

  @property
  def interval(self) -> statistics.Interval:
    return statistics.wilson(self.right, self.total)


class AccuracyLoss(NamedTuple):
  """The accuracy that an arm lacks to full attention, over shared seeds."""

  # Percentage points of accuracy lost; negative where the arm is above.
  points: float
  # The 95 % interval of `points` (Newcombe's).
  low: float
  high: float
  most: float  # Points of the seed that loses most.


def note(inits: Mapping[str, str]) -> str:
  """Returns the caveat for every result, from {arm: init}."""
  others = [arm for arm, init in inits.items() if init != 'induction']
  if len(others) == len(inits):
    said = 'Trained from a standard initialization.'
  else:
    but = f' (all but {", ".join(others)})' if others else ''
    said = (
      f'Trained from an initialization that suggests induction{but}: what is'
      ' under test is reach, not how induction emerges.'
    )
  half = [arm for arm, init in inits.items() if init == 'previous']
  if half:
    said += f' Previous-token heads were suggested to {", ".join(half)}.'
  return said


def arms(records: Iterable[needle.Record]) -> list[str]:
  """Returns the arms' names, in the records' order."""
  return list(dict.fromkeys(record.arm for record in records))


def score(records: Iterable[needle.Record]) -> Score | None:
  """Returns the accuracy of all records' questions; None without records."""
  seeds = {}
  for record in records:
    right, total = seeds.get(record.seed, (0, 0))
    right += round(record.accuracy * record.count)
    seeds[record.seed] = right, total + record.count
  if not seeds:
    return None
  right, total = map(sum, zip(*seeds.values()))
  worst = min(right / total for right, total in seeds.values())
  return Score(right, total, worst)


def on_grid(
  records: Iterable[needle.Record], length: int, distractors: int
) -> list[needle.Record]:
  """Returns the records at the depths of one length."""
  return [
    record
    for record in records
    if record.length == length
    and record.distractors == distractors
    and record.depth in needle.DEPTHS
  ]


def on_curve(
  records: Iterable[needle.Record], length: int, distractors: int
) -> list[needle.Record]:
  """Returns the records along the distance at `length`, sorted."""
  return sorted(
    (
      record
      for record in records
      if record.length == length and record.distractors == distractors
    ),
    key=lambda record: record.distance,
  )


class Summary(NamedTuple):
  """One arm at the trained length; with eight distractors except for `easy`."""

  all: Score  # Score over the depths.
  easy: Score | None  # The same with one distractor.
  near: Score  # Score over the eight nearest distances.
  # Over the depths that windows without a global layer would reach.
  within: Score
  beyond: Score | None  # Over the other depths; None where there are none.
  lost: AccuracyLoss | None  # Loss against full attention; None without it.


def summarize(
  records: Sequence[needle.Record], arm: str, setting: Setting
) -> Summary:
  """Returns the figures that the table and the verdict quote."""
  most = max(needle.DISTRACTORS)
  own = [record for record in records if record.arm == arm]
  grid = on_grid(own, setting.length, most)
  full = [record for record in records if record.arm == _full(arm)]
  near = range(setting.nearest, setting.nearest + needle.NEAREST)
  return Summary(
    all=score(grid),
    easy=score(on_grid(own, setting.length, min(needle.DISTRACTORS))),
    near=score(
      record
      for record in on_curve(own, setting.length, most)
      if record.distance in near
    ),
    within=score(r for r in grid if r.distance <= setting.windows_reach),
    beyond=score(r for r in grid if r.distance > setting.windows_reach),
    lost=_loss(grid, on_grid(full, setting.length, most)),
  )


def _full(arm: str) -> str:
  """Returns the arm of full attention: 'full_toy' for 'kaiju_toy'."""
  _, line, variant = arm.partition('_')
  return f'full{line}{variant}'


def _loss(grid, full) -> AccuracyLoss | None:
  """Returns how far `grid`'s accuracy is below `full`'s, over shared seeds."""
  seeds = {record.seed for record in grid} & {record.seed for record in full}
  if not seeds:
    return None

  def scores(seeds):
    return (score(r for r in part if r.seed in seeds) for part in (full, grid))

  theirs, ours = scores(seeds)
  fraction, (low, high) = statistics.newcombe(theirs[:2], ours[:2])
  most = max(
    100 * (theirs.mean - ours.mean) for theirs, ours in map(scores, zip(seeds))
  )
  return AccuracyLoss(100 * fraction, 100 * low, 100 * high, most)


def table(records: Sequence[needle.Record], setting: Setting) -> report.Table:
  """Returns the comparison as a table for a terminal of 80 columns."""
  most, least = max(needle.DISTRACTORS), min(needle.DISTRACTORS)
  lengths = sorted({record.length for record in records})
  lengths = [n for n in lengths if on_grid(records, n, most)]
  caption = (
    f'Over all depths; trained at {setting.length}*, to which what follows'
    f' refers. {least} d.: with {least} distractor. near: distances'
    f' {_near(setting)}. >: beyond {setting.windows_reach} tokens, the windows'
    ' end to end. lost: points below full. Second lines: 95 % intervals of the'
    ' questions, rounded outwards.'
  )
  if len({record.seed for record in records}) > 1:
    caption += ' Third lines: the worst seed.'
  rows = []
  for arm in arms(records):
    own = [record for record in records if record.arm == arm]
    found = summarize(records, arm, setting)
    rows.append(
      (
        arm.replace('_', '\n_'),
        *(_percent(score(on_grid(own, n, most))) for n in lengths),
        _percent(found.easy),
        _percent(found.near),
        _percent(found.beyond),
        _points(found.lost),
      )
    )
  return report.Table(
    rows,
    (
      'arm',
      *(f'{n}*' if n == setting.length else f'{n}' for n in lengths),
      *(f'{least} d.', 'near', f'> {setting.windows_reach}', 'lost'),
    ),
    f'Needle: accuracy in % by length, {most} distractors',
    f'{caption} {setting.note}',
    look='narrow',
  )


def _near(setting: Setting) -> str:
  return f'{setting.nearest}–{setting.nearest + needle.NEAREST - 1}'


def _percent(score: Score | None) -> str:
  """Returns the accuracy, its interval, and the worst seed if it differs."""
  if score is None:
    return ''
  mean, worst = (
    f'{100 * value:.1f}'.replace('100.0', '100')
    for value in (score.mean, score.worst)
  )
  lines = [mean, _outwards(*(100 * x for x in score.interval))]
  return '\n'.join(lines + [worst] * (worst != mean))


def _points(lost: AccuracyLoss | None) -> str:
  if lost is None:
    return ''
  points, most = (
    f'{value + 0.0:.1f}'.replace('-', '−') for value in (lost.points, lost.most)
  )
  lines = [points, _outwards(lost.low, lost.high)]
  return '\n'.join(lines + [most] * (most != points))


def _outwards(low: float, high: float) -> str:
  """Returns an interval of whole numbers that holds the exact one."""
  low, high = math.floor(low), math.ceil(high)
  return f'{low}–{high}'.replace('-', '−')


def verdict(
  records: Sequence[needle.Record],
  arm: str,
  setting: Setting,
  reach: int | None,
) -> str:
  """Returns one line on one arm, each accuracy with its interval.

  Args:
    records: the records of all arms.
    arm: the arm of the verdict.
    setting: the comparison's setting.
    reach: tokens that the arm looks back; None for everything.
  """
  found = summarize(records, arm, setting)
  sees = 'the whole row' if reach is None else f'{reach} tokens'
  line = f'{arm}, which sees {sees}: {_quote(found.all)}'
  if found.lost is not None and arm != _full(arm):
    line += f'; {_against_full(found.lost)}'
  line += f'; {_quote(found.within)} within {setting.windows_reach} tokens'
  if found.beyond:
    line += (
      f', {_quote(found.beyond)} beyond (chance {100 * setting.chance:.1f} %)'
    )
  return f'{line}; {_quote(found.near)} at distances {_near(setting)}.'


def _quote(score: Score) -> str:
  low, high = score.interval
  return f'{100 * score.mean:.1f} % ({100 * low:.1f}–{100 * high:.1f})'


def _against_full(lost: AccuracyLoss) -> str:
  """Returns the loss, and whether its interval lies within 2 points."""
  sign = 'below' if lost.points >= 0 else 'above'
  bounds = f'{lost.low:.1f} … {lost.high:.1f}'.replace('-', '−')
  if lost.high <= TOLERANCE:
    found = f'within {TOLERANCE:g} points'
  elif lost.low > TOLERANCE:
    found = f'more than {TOLERANCE:g} points below'
  else:
    found = f'undecided whether within {TOLERANCE:g}; ask more questions'
  return f'{abs(lost.points):.1f} points {sign} full ({bounds}): {found}'

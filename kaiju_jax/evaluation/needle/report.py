"""What the needle's records say: a table, and a verdict on each arm.

Accuracies of several cells are means over the cells; those of several seeds
are means over the seeds, their range beside them.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import rich.box
import rich.table

from kaiju_jax.evaluation.needle import questions as needle


class Setting(NamedTuple):
  """What the arms of one comparison have in common.

  Attributes:
    length: the trained one.
    window: of their local layers.
    windows_reach: tokens that a stack of nothing but local layers looks back,
      layers · (window − 1).
    nearest: the smallest distance of the task.
    chance: accuracy of a guess among all possible answers.
    note: how the arms were initialized.
  """

  length: int
  window: int
  windows_reach: int
  nearest: int
  chance: float
  note: str


class Score(NamedTuple):
  """An accuracy over seeds: mean, and range."""

  mean: float
  low: float
  high: float


def note(inits: Mapping[str, str]) -> str:
  """Returns what must be said beside every result, of {arm: init}."""
  standard = [arm for arm, init in inits.items() if init == 'standard']
  if len(standard) == len(inits):
    return 'Trained from a standard initialization.'
  others = f' (all but {", ".join(standard)})' if standard else ''
  return (
    f'Trained from an initialization that suggests induction{others}: what is'
    ' under test is reach, not how induction emerges.'
  )


def arms(records: Iterable[needle.Record]) -> list[str]:
  """Returns the arms' names, in the records' order."""
  return list(dict.fromkeys(record.arm for record in records))


def score(records: Iterable[needle.Record]) -> Score | None:
  """Returns the mean over cells of each seed, over seeds; None of nothing."""
  seeds = {}
  for record in records:
    seeds.setdefault(record.seed, []).append(record.accuracy)
  if not seeds:
    return None
  means = [float(np.mean(cells)) for cells in seeds.values()]
  return Score(float(np.mean(means)), min(means), max(means))


def on_grid(
  records: Iterable[needle.Record], length: int, distractors: int
) -> list[needle.Record]:
  """Returns the records of one length's depths."""
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
  """Returns the records along the distance at the trained length, sorted."""
  return sorted(
    (
      record
      for record in records
      if record.length == length and record.distractors == distractors
    ),
    key=lambda record: record.distance,
  )


class Summary(NamedTuple):
  """One arm at the trained length; with eight distractors but for `easy`.

  Attributes:
    all: over the depths.
    easy: the same with one distractor.
    near: over the eight nearest distances.
    within: over the depths that windows alone would reach.
    beyond: over the other depths; None where there are none.
    lost: points below full attention, of the same seeds; None without it.
    most_lost: of the seed that loses most.
  """

  all: Score
  easy: Score | None
  near: Score
  within: Score
  beyond: Score | None
  lost: float | None
  most_lost: float | None


def summarize(
  records: Sequence[needle.Record], arm: str, setting: Setting
) -> Summary:
  """Returns the figures that the table and the verdict quote."""
  most = max(needle.DISTRACTORS)
  own = [record for record in records if record.arm == arm]
  grid = on_grid(own, setting.length, most)
  full = [record for record in records if record.arm == _full(arm)]
  lost = _lost(grid, on_grid(full, setting.length, most))
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
    lost=float(np.mean(lost)) if lost else None,
    most_lost=max(lost) if lost else None,
  )


def _full(arm: str) -> str:
  """Full attention of the same variant: 'full_toy' for 'kaiju_toy'."""
  _, line, variant = arm.partition('_')
  return f'full{line}{variant}'


def _lost(grid, full) -> list[float]:
  """Points below full attention of each seed that both have."""
  lost = []
  for seed in sorted({record.seed for record in grid}):
    ours, theirs = (
      score(r for r in part if r.seed == seed) for part in (grid, full)
    )
    if theirs:
      lost.append(100 * (theirs.mean - ours.mean))
  return lost


def table(
  records: Sequence[needle.Record], setting: Setting
) -> rich.table.Table:
  """Returns the comparison as a table for a terminal of 80 columns."""
  most, least = max(needle.DISTRACTORS), min(needle.DISTRACTORS)
  lengths = sorted({record.length for record in records})
  lengths = [n for n in lengths if on_grid(records, n, most)]
  caption = (
    f'Means over depths; trained at {setting.length}*, to which what follows'
    f' refers. {least} distr.: with {least} distractor. near: distances'
    f' {_near(setting)}. ≤, >: within and beyond {setting.windows_reach}'
    ' tokens, the windows end to end. lost: points below full.'
  )
  if len({record.seed for record in records}) > 1:
    caption += ' Second lines: the worst seed.'
  result = rich.table.Table(
    title=f'Needle: accuracy in % by length, {most} distractors',
    caption=f'{caption} {setting.note}',
    box=rich.box.SIMPLE_HEAD,
    padding=(0, 1, 0, 0),
  )
  result.add_column('arm', no_wrap=True)
  for name in (
    *(f'{n}*' if n == setting.length else f'{n}' for n in lengths),
    f'{least} distr.',
    'near',
    f'≤ {setting.windows_reach}',
    f'> {setting.windows_reach}',
    'lost',
  ):
    result.add_column(name, justify='right', no_wrap=True)
  for arm in arms(records):
    own = [record for record in records if record.arm == arm]
    found = summarize(records, arm, setting)
    result.add_row(
      arm,
      *(_percent(score(on_grid(own, n, most))) for n in lengths),
      _percent(found.easy),
      _percent(found.near),
      _percent(found.within),
      _percent(found.beyond),
      _points(found),
    )
  return result


def _near(setting: Setting) -> str:
  return f'{setting.nearest}–{setting.nearest + needle.NEAREST - 1}'


def _percent(score: Score | None) -> str:
  if score is None:
    return ''
  mean, low = (
    f'{100 * value:.1f}'.replace('100.0', '100')
    for value in (score.mean, score.low)
  )
  return mean if mean == low else f'{mean}\n{low}'


def _points(found: Summary) -> str:
  if found.lost is None:
    return ''
  mean, most = f'{found.lost + 0.0:.1f}', f'{found.most_lost + 0.0:.1f}'
  return mean if mean == most else f'{mean}\n{most}'


def verdict(
  records: Sequence[needle.Record],
  arm: str,
  setting: Setting,
  reach: int | None,
) -> str:
  """Returns one line on one arm.

  Args:
    records: of all arms.
    arm: whose verdict.
    setting: of the comparison.
    reach: tokens that the arm looks back; None for everything.
  """
  found = summarize(records, arm, setting)
  sees = 'the whole row' if reach is None else f'{reach} tokens'
  line = f'{arm}, which sees {sees}: {100 * found.all.mean:.1f} %'
  if found.lost is not None and arm != _full(arm):
    sign = 'below' if found.lost >= 0 else 'above'
    line += f', {abs(found.lost):.1f} points {sign} full'
  line += (
    f'; {100 * found.within.mean:.1f} % within {setting.windows_reach} tokens'
  )
  if found.beyond:
    line += (
      f', {100 * found.beyond.mean:.1f} % beyond (chance'
      f' {100 * setting.chance:.1f} %)'
    )
  return f'{line}; {100 * found.near.mean:.1f} % at distances {_near(setting)}.'

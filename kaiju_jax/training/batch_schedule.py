"""The batch schedule: microbatches per step, and the number of steps of a run.

From the sources: batch sizes were "warmed up gradually", with no number. Our
guess is a table over fractions of the run's tokens,

    optimizer.batch = '0:2 0.1:4 0.3:8'

that is, 2 microbatches per step from the beginning, 4 from the first step that
begins at a tenth of the run's tokens or later, and 8 from three tenths on. The
step is compiled once, for data.microbatches microbatches.

The number of rows before a step determines its microbatches, and a row has L
tokens. The loader looks them up by the number of its next row, the step on the
device by its exact count of tokens, both in one table of integers. So the two
never disagree, nor do several processes. Fractions are parsed as exact
decimals, not as floats.

The end of a run:

    loop.tokens = 0   loop.steps. Stages are rounded to whole steps.
    loop.tokens = T   the first whole microbatch at T row tokens or after. The
                      last step takes the microbatches that remain, so that runs
                      with different batches end at the same token.
"""

import bisect
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import fractions
import itertools
from typing import NamedTuple

from kaiju_jax.training import experiment as experiment_lib

_FORM = "as in '0:2 0.1:4 0.3:8' (fraction of the run's tokens : microbatches)"


class Stage(NamedTuple):
  """A stretch of steps with equally many microbatches."""

  # Rows before the stage; steps that begin there or later belong to it.
  first: int
  count: int  # Microbatches per step.


@dataclasses.dataclass(frozen=True)
class BatchSchedule:
  """The table of stages, and the length of the run."""

  stages: tuple[Stage, ...]  # By rising `first`, from row 0 on.
  rows: int  # Rows of the whole run.
  batch: int  # B, rows per microbatch.
  length: int  # L, tokens per row.
  # (step, rows) before the run's own first step; not (0, 0) if the run branched
  # off another.
  begins: tuple[int, int] = (0, 0)

  @property
  def tokens(self) -> int:
    """Row tokens of the whole run."""
    return self.rows * self.length

  @property
  def steps(self) -> int:
    """The number of the run's last step."""
    step, row = self.begins
    return step + sum(steps for steps, _ in self._legs(row))

  def count(self, row: int) -> int:
    """Returns the microbatches of the step that begins at `row`."""
    firsts = [stage.first for stage in self.stages]
    return self.stages[bisect.bisect_right(firsts, row) - 1].count

  def row_after(self, row: int, steps: int = 1) -> int:
    """Returns the row that follows `steps` steps from `row` on.

    After the end of the run the last stage continues.
    """
    for taken, count in self._legs(row):
      taken = min(steps, taken)
      row += taken * count * self.batch
      steps -= taken
    return row + steps * self.stages[-1].count * self.batch

  def row_of(self, step: int) -> int:
    """Returns the number of rows in the run's first `step` steps."""
    first, row = self.begins
    return self.row_after(row, step - first)

  def branch(self, begins: tuple[int, int]) -> 'BatchSchedule':
    """Returns the schedule of a run that begins at (step, rows).

    Raises:
      ValueError: the run ends there or before.
    """
    if begins[1] >= self.rows:
      raise ValueError(
        f'loop.tokens: the run ends at row token {self.tokens:,}, but its'
        f' branch begins at {begins[1] * self.length:,}. It counts from the'
        " other run's beginning."
      )
    return dataclasses.replace(self, begins=begins)

  def _legs(self, row: int) -> Iterator[tuple[int, int]]:
    """Yields (steps, microbatches per step) from `row` to the run's end."""
    ends = [*(stage.first for stage in self.stages[1:]), self.rows]
    for (_, count), end in zip(self.stages, ends):
      steps = max(0, _ceil(end - row, count * self.batch))
      row += steps * count * self.batch
      yield steps, count


def schedule_of(experiment: experiment_lib.Experiment) -> BatchSchedule:
  """Returns an experiment's schedule; `loop.branch` is ignored.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  data, loop = experiment.data, experiment.loop
  wanted = _parse(experiment.optimizer.batch, data.microbatches)
  if not loop.tokens:
    return _of_steps(wanted, loop.steps, data.batch, data.length)
  batches = _ceil(loop.tokens, data.batch * data.length)
  rows = batches * data.batch
  stages = [Stage(_ceil(at * rows, 1), count) for at, count in wanted]
  return BatchSchedule(
    _with_the_rest(stages, rows, data.batch), rows, data.batch, data.length
  )


def is_full(experiment: experiment_lib.Experiment) -> bool:
  """Returns whether the config alone makes each step take all microbatches."""
  loop = experiment.loop
  return not (experiment.optimizer.batch or loop.tokens or loop.branch)


def _parse(text: str, most: int) -> list[tuple[fractions.Fraction, int]]:
  """Returns [(fraction of the run, microbatches)]; refuses wrong ones."""
  if not text:
    return [(fractions.Fraction(0), most)]
  field = f'optimizer.batch={text!r}'
  stages = []
  for part in text.split():
    at, _, count = part.partition(':')
    try:
      stages.append((fractions.Fraction(at), int(count)))
    except (ValueError, ZeroDivisionError):
      raise ValueError(f'{field}: {part!r} must be {_FORM}.') from None
  if not stages:
    raise ValueError(f"{field}: must be '' or {_FORM}.")
  if stages[0][0] != 0:
    raise ValueError(
      f'{field}: the first fraction must be 0, where a run begins.'
    )
  for (one, _), (next_one, _) in itertools.pairwise(stages):
    if not one < next_one < 1:
      raise ValueError(
        f'{field}: fractions must rise and stay below 1; after'
        f' {float(one):g} comes {float(next_one):g}.'
      )
  for _, count in stages:
    if not 1 <= count <= most:
      raise ValueError(
        f'{field}: {count} microbatches must lie in 1…{most},'
        f' data.microbatches={most} being the largest batch.'
      )
  return stages


def _of_steps(
  wanted: Sequence[tuple[fractions.Fraction, int]],
  steps: int,
  batch: int,
  length: int,
) -> BatchSchedule:
  """Returns the schedule of `steps` steps, with whole steps in each stage.

  It drops stages without a step.
  """
  ends = [*(at for at, _ in wanted[1:]), fractions.Fraction(1)]
  shares = [(end - at) / count for (at, count), end in zip(wanted, ends)]
  sums = list(itertools.accumulate(shares))
  borders = [0, *(round(steps * one / sums[-1]) for one in sums)]
  stages, row = [], 0
  for (_, count), (begin, end) in zip(wanted, itertools.pairwise(borders)):
    if end > begin:
      stages.append(Stage(row, count))
      row += (end - begin) * count * batch
  return BatchSchedule(_with_the_rest(stages, row, batch), row, batch, length)


def _with_the_rest(
  stages: Sequence[Stage], rows: int, batch: int
) -> tuple[Stage, ...]:
  """Returns the stages, with smaller steps where fewer rows remain."""
  most = max(stage.count for stage in stages)
  rest = (rows - left * batch for left in range(1, most + 1))
  firsts = sorted({one.first for one in stages} | set(rest))
  table = []
  for first in (one for one in firsts if 0 <= one < rows):
    count = [stage.count for stage in stages if stage.first <= first][-1]
    count = min(count, _ceil(rows - first, batch))
    if not table or table[-1].count != count:
      table.append(Stage(first, count))
  return tuple(table)


def _ceil(a, b: int) -> int:
  return int(-(-a // b))

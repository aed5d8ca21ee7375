"""Decides whether a run may be extended to more steps.

It may if its steps so far are those of the longer run, but for the length of
the warm-up: the rate is at its peak and stays there, each step has as many
rows, and the rows do not depend on the run's length. Otherwise the longer run
is another one, which a branch can begin (`loop.branch`).
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
import os

from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

CommonRows = Callable[[experiment_lib.Experiment], float]
# The fields that say how long a run is.
FIELDS = frozenset({'loop.steps', 'loop.tokens'})


def all_rows(_: experiment_lib.Experiment) -> float:
  """Returns the `common_rows` of rows that depend on no length."""
  return math.inf


@dataclasses.dataclass(frozen=True)
class Extension:
  """A run, and the same experiment with another length."""

  held: experiment_lib.Experiment  # The experiment of the workdir.
  wanted: experiment_lib.Experiment  # The same with another length.
  # (step, rows) before the run's own first step, as in
  # `batch_schedule.BatchSchedule`.
  begins: tuple[int, int] = (0, 0)
  # Returns how many of a run's first rows are those of every longer run.
  common_rows: CommonRows = all_rows

  def find_obstacle(self, step: int) -> str:
    """Returns why the run cannot be extended at a checkpoint; '' if it can.

    Args:
      step: of the checkpoint; that of `begins` for none.
    """
    held, optimizer = self.held, self.held.optimizer
    before, after = map(batch_schedule.schedule_of, (held, self.wanted))
    if step <= self.begins[0] or after.rows == before.rows:
      return ''
    if after.rows < before.rows:
      return 'a run can be made longer, not shorter.'
    before, after = before.branch(self.begins), after.branch(self.begins)
    row, common = before.row_of(step), self.common_rows(held)
    if row > common:
      return (
        f'data.task={held.data.task!r}: rows depend on the length of the run; a'
        f' longer one has others from row {common:,} on, and step {step:,}'
        f' begins at row {row:,}.'
      )
    if after.row_of(step) != row:
      return (
        f'optimizer.batch={optimizer.batch!r}: step {step:,} of the longer run'
        f' begins at row {after.row_of(step):,}, and here at row {row:,}.'
      )
    ours, theirs = (
      share_of_peak(optimizer, one.tokens, row * one.length)
      for one in (before, after)
    )
    if optimizer.schedule != 'cosine' and ours == theirs == 1:
      return ''
    return (
      f'optimizer.schedule={optimizer.schedule!r}: after step {step:,} the rate'
      f' is {ours:.3g} of its peak, and {theirs:.3g} in the longer run.'
    )

  def advise(
    self,
    path: str | os.PathLike[str],
    free: str | os.PathLike[str],
    steps: Sequence[int],
  ) -> str:
    """Returns how to train longer all the same, in lines for the user.

    Args:
      path: the workdir.
      free: another one that is free.
      steps: those of its checkpoints.
    """
    held, wanted = self.held, self.wanted
    anew = f'For the longer run from its beginning: --workdir={free}'
    before, after = map(batch_schedule.schedule_of, (held, wanted))
    if after.rows < before.rows:
      return f'For the shorter run: --workdir={free}'
    if held.lora.rank:
      return (
        f'{anew}\nFor a run that begins with these adapters:'
        f' --workdir={free} --config.begin_with={path}'
      )
    if held.objective.name == 'attention_alignment':
      return anew
    exact = [one for one in steps if not self.find_obstacle(one)]
    if held.data.sources and not exact:
      return anew  # A mixture resumes only with the rows that it has given.
    step = (exact or steps)[-1]
    row = before.branch(self.begins).row_of(step)
    share = share_of_peak(wanted.optimizer, after.tokens, row * after.length)
    return (
      f'{anew}\nFor a branch from step {step:,} of this run, whose rate begins'
      f' at {share:.3g} of its peak:'
      f' --workdir={free} --config.loop.branch={path}@{step}'
    )


def share_of_peak(
  config: training_config.OptimizerConfig, total: int, tokens: int
) -> float:
  """Returns `optimizer.shape_of_rate` of a count of tokens, without jax."""
  warmup = config.warmup * total
  if tokens < warmup:
    return tokens / warmup
  decay = config.decay * total
  if config.schedule == 'constant' or (config.schedule == 'wsd' and not decay):
    return 1.0
  if config.schedule == 'wsd':
    part = min(max((tokens - (total - decay)) / decay, 0.0), 1.0)
    return 1.0 + (config.final - 1.0) * part
  part = min((tokens - warmup) / (total - warmup), 1.0)
  return config.final + (1 - config.final) * (1 + math.cos(math.pi * part)) / 2

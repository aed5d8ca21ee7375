"""Trained arms that answer questions: the needle's and recall's comparisons.

Each run's answers are in a file in its workdir, whose name says which questions
were asked. Arms of one seed get the same questions, and every seed others, so
that the answers of several seeds are independent.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import pathlib
import sys
import time
from typing import Any
from typing import ClassVar

from kaiju_jax.evaluation import answers
from kaiju_jax.runs import grid
from kaiju_jax.runs import slurm
from kaiju_jax.storage import files
from kaiju_jax.tasks import curricula
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows as recall
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step


@dataclasses.dataclass(frozen=True)
class Questions:
  """A task's questions, which runs are asked once they are trained."""

  questions: int  # Of each cell, at the trained length.
  seed: int  # The questions' seed.
  name: ClassVar[str]  # Of the task, and of its command below `experiments`.
  record: ClassVar[type]  # Of a cell's answers.

  @property
  def file(self) -> str:
    """Name of the file of answers in a run's workdir."""
    return f'{self.name}.questions{self.questions}.seed{self.seed}.json'

  def run(
    self,
    jobs: Sequence[grid.Job],
    how: slurm.Launch,
    out: pathlib.Path,
    **flags: object,
  ) -> None:
    """Trains and asks what is missing; a process leaves the report to this one.

    Args:
      jobs: the runs.
      how: as in `grid.run`.
      out: the folder of all runs.
      **flags: of the command, which all runs share; None for their defaults.
    """
    flags |= {'questions': self.questions, 'evaluation_seed': self.seed}
    flags |= {'jobs': 1, 'report': 'false'}
    module = f'experiments.{self.name}'

    def words(job: grid.Job) -> tuple[str, ...]:
      own = {'arms': job.arm, 'seeds': job.experiment.seed, 'out': out}
      named = {**own, **flags}.items()
      settings = (f'--{name}={x}' for name, x in named if x is not None)
      return sys.executable, '-m', module, *settings

    grid.run(jobs, how, self.finish(), words, out)

  def finish(self) -> grid.Finish:
    """Returns how a run finishes; the seeds of an arm share one program."""
    predictors = {}

    def answer(job: grid.Job, state: Any) -> list[dict[str, Any]]:
      if job.arm not in predictors:
        model = step.model_of(job.experiment)
        predictors[job.arm] = answers.predictor(model)
      started = time.monotonic()
      found = self.answer(job, predictors[job.arm], state.params)
      total, seconds = sum(x.count for x in found), time.monotonic() - started
      print(f'{job.arm}: {total:,} questions in {seconds:.0f} s.', flush=True)
      return [record._asdict() for record in found]

    return grid.Finish(self.file, answer)

  def read(self, jobs: Sequence[grid.Job]) -> list[Any]:
    """Returns the records of all runs, which must all have answers."""
    return [
      self.record(**row)
      for job in jobs
      for row in files.read_json(job.folder / self.file)
    ]

  def answer(
    self, job: grid.Job, predict: answers.Predict, params: Any
  ) -> list[Any]:
    """Returns a record per cell of trained parameters' answers.

    Args:
      job: what was trained.
      predict: what `answers.predictor` returns for the job's model.
      params: the model's parameters.
    """
    cells, ask = self._prepare(job.experiment)
    read = answers.reader(predict, params, {cell.length for cell in cells})
    seed = job.experiment.seed
    return [
      self.record(job.arm, seed, *cell[:-1], *right, cell.count)
      for cell, *right in ask(read, cells, (self.seed, seed))
    ]

  def _prepare(
    self, experiment: experiment_lib.Experiment
  ) -> tuple[Sequence[Any], Callable]:
    """Returns the cells, and (read, cells, seeds) → their answers."""
    raise NotImplementedError


class NeedleQuestions(Questions):
  """The questions of `tasks/needle`."""

  name, record = 'needle', needle.Record

  def _prepare(self, experiment):
    task = tasks.questions(experiment.data)
    cells = needle.cells(task, experiment.data.length, self.questions)
    return cells, lambda read, *asked: needle.ask(read, task, *asked)


class RecallQuestions(Questions):
  """The questions of `tasks/recall`."""

  name, record = 'recall', recall.Record

  def _prepare(self, experiment):
    kinds, length = list_kinds(experiment), experiment.data.length
    return recall.cells(kinds, length, self.questions), recall.ask


def list_kinds(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns the kinds of recall that a run trains on, and one step more."""
  stages = curricula.curriculum_of(experiment)
  trained = {kind for stage in stages for kind in stage.kinds}
  steps = max((problems.hops_of(kind) or 0 for kind in trained), default=0)
  if steps:
    trained.add(f'hops_{min(steps + 1, problems.MOST_HOPS)}')
  return [kind for kind in problems.KINDS if kind in trained]

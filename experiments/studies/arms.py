"""Trained arms that answer questions: the needle's and recall's comparisons.

Each run's answers are in a file in its workdir, whose name says which questions
were asked. Arms of one seed get the same questions, and every seed others, so
that the answers of several seeds are independent.
"""

from collections.abc import Callable
from collections.abc import Sequence
import pathlib
import sys
import time
from typing import Any
from typing import NamedTuple

from kaiju_jax.evaluation import answers
from kaiju_jax.runs import grid
from kaiju_jax.storage import files
from kaiju_jax.tasks import curricula
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows as recall
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step


class NeedleQuestions(NamedTuple):
  """The questions of `tasks/needle`."""

  questions: int  # Questions per cell that a verdict quotes.
  seed: int  # The questions' seed.

  @property
  def file(self) -> str:
    """Name of the file of answers in a run's workdir."""
    return f'needle.questions{self.questions}.seed{self.seed}.json'

  def answer(
    self, job: grid.Job, predict: answers.Predict, params: Any
  ) -> list[needle.Record]:
    """Returns a record per cell of trained parameters' answers.

    Args:
      job: what was trained.
      predict: what `answers.predictor` returns for the job's model.
      params: the model's parameters.
    """
    data = job.experiment.data
    task = tasks.questions(data)
    cells = needle.cells(task, data.length, self.questions)
    read = answers.reader(predict, params, {cell.length for cell in cells})
    seeds = self.seed, job.experiment.seed
    return [
      needle.Record(job.arm, seeds[1], *cell[:-1], accuracy, cell.count)
      for cell, accuracy in needle.ask(read, task, cells, seeds)
    ]


class RecallQuestions(NamedTuple):
  """The questions of `tasks/recall`; see `NeedleQuestions`."""

  questions: int  # Questions per kind at the trained length.
  seed: int  # The questions' seed.

  @property
  def file(self) -> str:
    return f'recall.questions{self.questions}.seed{self.seed}.json'

  def answer(
    self, job: grid.Job, predict: answers.Predict, params: Any
  ) -> list[recall.Record]:
    length = job.experiment.data.length
    cells = recall.cells(list_kinds(job.experiment), length, self.questions)
    read = answers.reader(predict, params, {cell.length for cell in cells})
    seeds = self.seed, job.experiment.seed
    return [
      recall.Record(
        job.arm, seeds[1], cell.kind, cell.length, right, share, cell.count
      )
      for cell, right, share in recall.ask(read, cells, seeds)
    ]


def list_kinds(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns the kinds of recall that a run trains on, and one step more."""
  stages = curricula.curriculum_of(experiment)
  trained = {kind for stage in stages for kind in stage.kinds}
  steps = max((problems.hops_of(kind) or 0 for kind in trained), default=0)
  if steps:
    trained.add(f'hops_{min(steps + 1, problems.MOST_HOPS)}')
  return [kind for kind in problems.KINDS if kind in trained]


Questions = NeedleQuestions | RecallQuestions


def asks(questions: Questions) -> grid.Finish:
  """Returns how a run finishes; the seeds of an arm share one program."""
  predictors = {}

  def answer(job: grid.Job, state: Any) -> list[dict[str, Any]]:
    if job.arm not in predictors:
      model = step.model_of(job.experiment)
      predictors[job.arm] = answers.predictor(model)
    started = time.monotonic()
    found = questions.answer(job, predictors[job.arm], state.params)
    total, seconds = sum(x.count for x in found), time.monotonic() - started
    print(f'{job.arm}: {total:,} questions in {seconds:.0f} s.', flush=True)
    return [record._asdict() for record in found]

  return grid.Finish(questions.file, answer)


def read_records(
  jobs: Sequence[grid.Job], questions: Questions, record: type
) -> list[Any]:
  """Returns the records of all runs, which must all have answers."""
  return [
    record(**row)
    for job in jobs
    for row in files.read_json(job.folder / questions.file)
  ]


def command(
  module: str, out: pathlib.Path, **flags: object
) -> Callable[[grid.Job], tuple[str, ...]]:
  """Returns the words of one run, which leaves the report to this command.

  Args:
    module: the command's, below `experiments`.
    out: the folder of all runs.
    flags: those that all runs share; None for their defaults.
  """
  shared = {name: one for name, one in flags.items() if one is not None}

  def words(job: grid.Job) -> tuple[str, ...]:
    own = {'arms': job.arm, 'seeds': job.experiment.seed, 'out': out}
    named = {**own, **shared, 'jobs': 1, 'report': 'false'}
    settings = (f'--{name}={value}' for name, value in named.items())
    return sys.executable, '-m', f'experiments.{module}', *settings

  return words

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
from typing import Protocol

from kaiju_jax.evaluation import answers
from kaiju_jax.runs import grid
from kaiju_jax.storage import files
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step


class Questions(Protocol):
  """Questions that every run answers, of `tasks/needle` or `tasks/recall`."""

  file: str  # Name of the file of answers in a run's workdir.

  def answer(
    self,
    arm: str,
    experiment: experiment_lib.Experiment,
    predict: answers.Predict,
    params: Any,
  ) -> Sequence[Any]:
    """Returns the records of trained parameters' answers, NamedTuples.

    Args:
      arm: the arm's name, for the records.
      experiment: what was trained.
      predict: what `answers.predictor` returns for the experiment's model.
      params: the model's parameters.
    """


def asks(questions: Questions) -> grid.Finish:
  """Returns how a run finishes; the seeds of an arm share one program."""
  predictors = {}

  def answer(job: grid.Job, state: Any) -> list[dict[str, Any]]:
    if job.arm not in predictors:
      model = step.model_of(job.experiment)
      predictors[job.arm] = answers.predictor(model)
    started = time.monotonic()
    found = questions.answer(
      job.arm, job.experiment, predictors[job.arm], state.params
    )
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

"""Trains the runs of a comparison and asks them questions, such as needles.

A run is one arm (one layout) on one seed, with its own workdir. Its answers are
in a file there whose name says which questions were asked, so that a second
call repeats nothing. Runs go one after the other in this process, or side by
side in processes that share the cores, because a small model hardly uses two
cores.
"""

from collections.abc import Callable
from collections.abc import Sequence
import pathlib
import sys
import time
from typing import Any
from typing import NamedTuple
from typing import Protocol

from kaiju_jax.evaluation import answers
from kaiju_jax.runs import jobs
from kaiju_jax.runs import train
from kaiju_jax.runs import watch
from kaiju_jax.storage import files
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step


class Questions(NamedTuple):
  """The questions that every run answers.

  Attributes:
    questions: questions per cell that a verdict quotes (`questions.cells`).
    seed: the questions' seed.
  """

  questions: int
  seed: int

  @property
  def file(self) -> str:
    return f'needle.questions{self.questions}.seed{self.seed}.json'

  def answer(
    self, run: 'Run', predict: answers.Predict, params: Any
  ) -> list[needle.Record]:
    """See `Asking.answer`."""
    data = run.experiment.data
    task = tasks.questions(data)
    cells = needle.cells(task, data.length, self.questions)
    read = answers.reader(predict, params, {cell.length for cell in cells})
    # Arms of one seed get the same questions. Each seed gets others, so that
    # the answers of several seeds are independent.
    seeds = self.seed, run.experiment.seed
    return [
      needle.Record(run.arm, seeds[1], *cell[:-1], accuracy, cell.count)
      for cell, accuracy in needle.ask(read, task, cells, seeds)
    ]


class Asking(Protocol):
  """Questions that every run answers: `Questions`, or `recall.Questions`."""

  file: str  # Name of the file of answers in a run's workdir.

  def answer(
    self, run: 'Run', predict: answers.Predict, params: Any
  ) -> Sequence[Any]:
    """Returns the records of trained parameters' answers, NamedTuples.

    Args:
      run: the run of the parameters.
      predict: what `answers.predictor` returns for the run's model.
      params: the model's parameters.
    """


class Run(NamedTuple):
  """One arm on one seed.

  Attributes:
    arm: name of the arm.
    experiment: its experiment.
    folder: its workdir.
  """

  arm: str
  experiment: experiment_lib.Experiment
  folder: pathlib.Path
  skipped = 0

  @property
  def name(self) -> str:
    return f'{self.arm} seed {self.experiment.seed}'


def missing(runs: Sequence[Run], questions: Asking) -> list[Run]:
  """Returns the runs that have no answers yet."""
  return [run for run in runs if not (run.folder / questions.file).exists()]


def records(
  runs: Sequence[Run], questions: Asking, record: type = needle.Record
) -> list[Any]:
  """Returns the records of all runs, which must all have answers."""
  return [
    record(**row)
    for run in runs
    for row in files.read_json(run.folder / questions.file)
  ]


def run_serially(runs: Sequence[Run], questions: Asking) -> None:
  """Trains and asks in this process; the seeds of an arm share one call.

  Raises:
    SystemExit: status 130 after an interruption; the same call resumes.
    OSError, ValueError: see `train.train`.
  """
  predictors = {}
  for run in runs:
    print(f'{run.folder}: {run.name}.', flush=True)
    state = train.train(run.experiment, run.folder)
    if int(state.step) < batch_schedule.schedule_of(run.experiment).steps:
      raise SystemExit(130)  # The training loop has said how to go on.
    if run.arm not in predictors:
      model = step.model_of(run.experiment)
      predictors[run.arm] = answers.predictor(model)
    started = time.monotonic()
    found = questions.answer(run, predictors[run.arm], state.params)
    total, seconds = sum(x.count for x in found), time.monotonic() - started
    print(f'{run.arm}: {total:,} questions in {seconds:.0f} s.', flush=True)
    files.write_json(
      run.folder / questions.file, [record._asdict() for record in found]
    )


def places(count: int) -> int:
  """Returns how many of `count` runs should go side by side.

  One per core on a CPU; an accelerator holds one process at a time.
  """
  if count < 2:
    return 1
  import jax

  if jax.default_backend() != 'cpu':
    return 1
  return min(count, jobs.count_cores())


def side_by_side(
  runs: Sequence[Run],
  questions: Asking,
  at_once: int,
  command: Callable[[Run], tuple[str, ...]],
) -> None:
  """Trains and asks each run in its own process, with a log in its workdir.

  Args:
    runs: the runs.
    questions: the questions.
    at_once: the number of processes at a time.
    command: returns the command that does `in_turn` for one run.

  Raises:
    SystemExit: status 130 after an interruption; the same call resumes.
    ValueError: runs ended without answers; the message names their logs.
  """
  print(f'{len(runs)} runs, {at_once} at a time.', flush=True)
  planned = {
    jobs.Job(run.name, command(run), run.folder / 'log.txt'): run
    for run in runs
  }
  statuses, completed = watch.run(
    {job: [run] for job, run in planned.items()},
    at_once,
    lambda run: not missing([run], questions),
  )
  if not completed:
    print('Interrupted. The same command goes on.', file=sys.stderr)
    raise SystemExit(130)
  failed = [
    f'{job.name} ({statuses.get(job.name, "not run")}), see {job.log}'
    for job, run in planned.items()
    if missing([run], questions)
  ]
  if failed:
    raise ValueError(f'failed: {"; ".join(failed)}.')

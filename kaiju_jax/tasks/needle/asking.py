"""The questions that trained arms answer about needles."""

from typing import Any
from typing import NamedTuple

from kaiju_jax.evaluation import answers
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import experiment as experiment_lib


class Questions(NamedTuple):
  """The questions of trained arms.

  Attributes:
    questions: questions per cell that a verdict quotes (`questions.cells`).
    seed: the questions' seed.
  """

  questions: int
  seed: int

  @property
  def file(self) -> str:
    """Name of the file of answers in a run's workdir."""
    return f'needle.questions{self.questions}.seed{self.seed}.json'

  def answer(
    self,
    arm: str,
    experiment: experiment_lib.Experiment,
    predict: answers.Predict,
    params: Any,
  ) -> list[needle.Record]:
    """Returns a record per cell of the answers of trained parameters."""
    task = tasks.questions(experiment.data)
    cells = needle.cells(task, experiment.data.length, self.questions)
    read = answers.reader(predict, params, {cell.length for cell in cells})
    seeds = self.seed, experiment.seed
    return [
      needle.Record(arm, seeds[1], *cell[:-1], accuracy, cell.count)
      for cell, accuracy in needle.ask(read, task, cells, seeds)
    ]

"""Checks the experiments of the needle tasks and of recall; reads no text."""

from typing import Any

from kaiju_jax.training import experiment as experiment_lib


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses an experiment whose model or curriculum does not fit the rows.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  from kaiju_jax.tasks.needle import questions as needle

  data, model = experiment.data, experiment.model
  if data.tokenizer:
    raise ValueError(
      f"data.tokenizer={data.tokenizer!r}: must be '' for the needle tasks,"
      ' which have their own vocabulary of 256.'
    )
  if model.vocab_size < needle.VOCAB_SIZE:
    raise ValueError(
      f'model.vocab_size={model.vocab_size}: must be at least'
      f' {needle.VOCAB_SIZE} for the needle tasks.'
    )
  if model.max_length < 2 * data.length:
    raise ValueError(
      f'model.max_length={model.max_length}: must be at least'
      f' {2 * data.length}, because questions are asked at twice data.length.'
    )
  if data.task != 'needle_text':
    curriculum_of(experiment)


def check_text(experiment: experiment_lib.Experiment) -> None:
  """Refuses what `check` refuses, and a path without text.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  from kaiju_jax.data import documents

  check(experiment)
  if experiment.data.path:
    documents.files(experiment.data.path)


def curriculum_of(experiment: experiment_lib.Experiment) -> tuple[Any, ...]:
  """Returns the stages on which a run of 'needle' or 'recall' trains.

  Raises:
    ValueError: `data.curriculum` names none.
  """
  if experiment.data.task == 'recall':
    from kaiju_jax.tasks.recall import rows

    curricula, default = rows.CURRICULA, rows.DEFAULT
  else:
    from kaiju_jax.tasks.needle import curriculum

    curricula = curriculum.CURRICULA
    default = 'induction' if experiment.init == 'induction' else 'standard'
  name = experiment.data.curriculum or default
  if name not in curricula:
    raise ValueError(
      f'data.curriculum={name!r}: must be one of'
      f' {", ".join(map(repr, curricula))}.'
    )
  return curricula[name]

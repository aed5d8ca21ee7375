"""The needle tasks by the name that a config gives them.

`data.task` is 'needle' (synthetic) or 'needle_text' (in natural text).
"""

import functools

from kaiju_jax import config as config_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents
from kaiju_jax.data import loader
from kaiju_jax.evaluation import needle
from kaiju_jax.evaluation import needle_curriculum
from kaiju_jax.evaluation import needle_text

_haystacks = functools.lru_cache(maxsize=1)(needle_text.haystacks)

CHANCE = {'needle': needle.CHANCE, 'needle_text': needle_text.CHANCE}


def rows(experiment: config_lib.Experiment) -> loader.RowSource:
  """Returns the training rows of a whole run.

  Raises:
    OSError, ValueError: see `check` and `needle_text.haystacks`.
  """
  data = experiment.data
  check(experiment)
  count = experiment.loop.steps * data.microbatches * data.batch
  if data.task == 'needle':
    curriculum = needle_curriculum.CURRICULA[experiment.init]
    return needle_curriculum.Rows(
      count, data.length, experiment.seed, curriculum
    )
  training, _ = _haystacks(data.path, data.held_out)
  return needle_text.Rows(training, count, data.length, experiment.seed)


def questions(data: data_config.DataConfig) -> needle.Task:
  """Returns the task whose questions are asked, in held-out text if any."""
  if data.task == 'needle':
    return needle.Pairs()
  _, unseen = _haystacks(data.path, data.held_out)
  return needle_text.Sentences(unseen)


def check(experiment: config_lib.Experiment) -> None:
  """Refuses a config whose task does not fit its model.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  data, model = experiment.data, experiment.model
  if data.task not in CHANCE:
    raise ValueError(
      f'data.task={data.task!r}: must be one of {", ".join(map(repr, CHANCE))}.'
    )
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
      f' {2 * data.length}, for questions are asked at twice data.length.'
    )
  if data.task == 'needle_text' and data.path:
    documents.files(data.path)

"""The needle tasks by the name that a config gives them.

`data.task` is 'needle' (synthetic) or 'needle_text' (in natural text).
"""

import functools

import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents
from kaiju_jax.data import loader
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer
from kaiju_jax.evaluation.needle import curriculum as needle_curriculum
from kaiju_jax.evaluation.needle import questions as needle
from kaiju_jax.evaluation.needle import text as needle_text
from kaiju_jax.training import experiment as experiment_lib

_haystacks = functools.lru_cache(maxsize=1)(needle_text.haystacks)

CHANCE = {'needle': needle.CHANCE, 'needle_text': needle_text.CHANCE}


def rows(experiment: experiment_lib.Experiment) -> loader.RowSource:
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


def check(experiment: experiment_lib.Experiment) -> None:
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


def texts(experiment: experiment_lib.Experiment, rows: int) -> np.ndarray:
  """Returns int32 [B, L]: the first documents of a run's held-out text.

  As long as its rows. Of a run without held-out text, those that it trained on;
  of a needle run, questions.

  Raises:
    OSError, ValueError: the text is missing, or has too few long documents.
  """
  data = experiment.data
  if data.task != 'text':
    task = questions(data)
    nearest, farthest = task.distances(data.length)
    rng = np.random.default_rng(0)
    return task.questions(
      rng, rows, data.length, (nearest + farthest) // 2, 1
    ).tokens_BL
  tokens = tokenizer.load(data.tokenizer, experiment.model.vocab_size)
  training, unseen = text.load(data, tokens)
  corpus = training if unseen is None else unseen
  first = corpus.begins[:-1][np.diff(corpus.begins) >= data.length][:rows]
  if len(first) < rows:
    raise ValueError(
      f'rows={rows}: only {len(first)} documents have data.length={data.length}'
      ' tokens or more.'
    )
  return np.stack(
    [corpus.tokens[begin : begin + data.length] for begin in first]
  ).astype(np.int32)

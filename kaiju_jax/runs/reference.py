"""Writes a reference model's log-probabilities of the replies in choices.

    reference.write(load.from_anywhere('exports/sft'), 'swipes.jsonl', OUT)

Numbers that OUT has of the same model are kept, so that only new conversations
are read. The forward pass of an int8 export is that of its training, so that a
policy which begins with the reference's parameters begins at the loss log n.
"""

import os
import pathlib

import jax
import numpy as np

from kaiju_jax.data import choices as choices_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.data import documents
from kaiju_jax.data import loader
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data import turns
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import preference
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import start as start_lib
from kaiju_jax.tasks import conversations as task
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib


def write(
  loaded: load.Loaded,
  path: str,
  out: str | os.PathLike[str],
  length: int = 1024,
  batch: int = 2,
  reader: 'Reader | None' = None,
  digest: str = '',
) -> tuple[int, int]:
  """Writes the log-probabilities of a file's replies.

  Args:
    loaded: the reference model.
    path: conversations with choices (`data/conversations.py`).
    out: the file; numbers of the same model that it holds are kept.
    length: tokens of the rows in which the model reads.
    batch: rows that it reads at a time.
    reader: reads instead, so that several calls compile once.
    digest: of the model; by default `load.digest`.

  Returns:
    How many conversations the file has, and how many were read for it.

  Raises:
    OSError, ValueError: `path` cannot be read or has no choice, a tree is
      longer than a row, or `out` is another file.
  """
  if not 2 <= length <= loaded.config.max_length:
    raise ValueError(
      f'length={length}: must lie in 2…{loaded.config.max_length}, the'
      " model's max_length."
    )
  data = data_config.DataConfig(
    tokenizer=loaded.tokenizer, chat_template=loaded.chats
  )
  experiment = experiment_lib.Experiment(model=loaded.config, data=data)
  format = task.format_of(experiment)
  digest = digest or load.digest(loaded)
  hashes = digest, tokenizer_lib.hash_use(format.tokenizer)
  known = {}
  if pathlib.Path(out).exists():
    found = choices_lib.read_reference(out, 'out')
    if (found.model, found.tokenizer) == hashes:
      known = dict(found.log_p)
  said = list(conversations_lib.read(path))
  corpus, _ = turns.choices(said, format)
  if corpus is None:
    raise ValueError(f'data={path!r}: no conversation has a choice.')
  names = list(choices_lib.hash_documents(corpus))
  fresh = [n for n, one in enumerate(names) if one not in known]
  if fresh:
    # The same conversations again: only those that are new.
    wanted = {corpus.names[n] for n in fresh}
    corpus, _ = turns.choices(
      [one for one in said if one.name in wanted], format
    )
    reader = reader or Reader(loaded.config, length, batch)
    values = reader.read(loaded, corpus)
    known |= dict(zip((names[n] for n in fresh), values, strict=True))
  choices_lib.write_reference(out, choices_lib.Reference(*hashes, known))
  return len(names), len(fresh)


def check_start(experiment: experiment_lib.Experiment) -> None:
  """Refuses a reference that is not of the model that a run begins with.

  That model is what `begin_with` or `loop.branch` names, or the base of its
  adapters. It may itself be a run with the same reference.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: the model cannot be read, or
      is another one.
  """
  path, start = experiment.data.reference, experiment.begin_with
  if experiment.loop.branch:
    start = str(start_lib.origin(experiment).workdir)
  model = choices_lib.read_reference(path).model
  if start and (_has_reference(start, model) or model in _list(start)):
    return
  fix = f'--model={start}' if start else '--model=MODEL, and set begin_with'
  data, more = experiment.data.path, ''
  if documents.is_store(data):
    data, more = 'FILES', f', of the files of which {data} was made'
  raise ValueError(
    f'data.reference={path!r}: was not made by the model of'
    f' begin_with={start!r}, from which the policy starts. Make it anew:'
    f' experiments.align {fix} --data={data} --reference={path}{more}'
  )


def _has_reference(path: str, model: str) -> bool:
  """Returns whether a path is a run whose reference is a model."""
  try:
    before = workdir_lib.load_experiment(path).data.reference
    return bool(before) and choices_lib.read_reference(before).model == model
  except (OSError, ValueError):
    return False


def _list(path: str) -> list[str]:
  return exchange.list_digests(path, load.from_anywhere(path))


class Reader:
  """Reads log-probabilities of replies; compiles once for models of a kind."""

  def __init__(
    self, config: model_config.ModelConfig, length: int, batch: int = 2
  ):
    """Compiles nothing.

    Args:
      config: the models' config.
      length: tokens per row.
      batch: rows at a time.
    """
    model = transformer.Transformer(config)
    z = objective_lib.ZReg(0.0, 0.0)
    self._length, self._batch = length, batch
    self._answer = jax.jit(
      lambda variables, batch: preference.log_probabilities(
        model, variables, batch, z
      )
    )

  def read(
    self,
    loaded: load.Loaded,
    corpus: text.Corpus,
  ) -> list[np.ndarray]:
    """Returns the log-probability of each document's replies, float32.

    Args:
      loaded: the model.
      corpus: trees of `turns.choices`.

    Raises:
      ValueError: a tree that is longer than a row, or numbers that are not
        finite.
    """
    rows = text.Rows(corpus, self._length, shuffle=False)
    variables = load.variables(loaded)
    found = []
    for one in loader.epoch(
      choices_lib.ChoiceRows(rows, corpus.choices), self._batch
    ):
      log_p_BY = np.asarray(self._answer(variables, one))
      for log_p_Y, group_Y in zip(log_p_BY, one.extras[choices_lib.GROUP]):
        found.append(log_p_Y[group_Y > 0])
    flat = np.concatenate(found)
    if not np.isfinite(flat).all():
      raise ValueError(
        f'{loaded.origin}: its log-probabilities are not finite: it cannot be a'
        ' reference.'
      )
    sizes = [sum(len(one.spans) for one in own) for own in corpus.choices]
    return np.split(flat, np.cumsum(sizes)[:-1])

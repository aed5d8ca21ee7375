"""Checks and opens a teacher's targets, the store that `data.teacher` names."""

import hashlib
import json
from typing import Any

from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses a store that does not fit, before any text is read.

  Raises:
    FileNotFoundError: there is no store.
    ValueError: names the field, its value and what would be right.
  """
  data, objective = experiment.data, experiment.objective
  if objective.name != 'distillation':
    if data.teacher:
      raise ValueError(
        f'data.teacher={data.teacher!r}: is read by'
        f" objective.name='distillation' alone, not by {objective.name!r}."
      )
    return
  if not data.teacher:
    raise ValueError(
      "data.teacher='': must name the folder of a teacher's targets, which"
      " experiments.teach writes, for objective.name='distillation'."
    )
  from kaiju_jax.data import tokenizer
  from kaiju_jax.distillation import read

  read.check(
    data.teacher,
    entries=objective.distillation.entries,
    temperature=objective.distillation.temperature,
    vocab_size=experiment.model.vocab_size,
    tokenizer=tokenizer.hash_use(tokenizer.load(data.tokenizer)),
  )


def hash_store(experiment: experiment_lib.Experiment) -> str:
  """Returns a hash of the teacher and the sampling; '' without a teacher.

  Raises:
    FileNotFoundError, ValueError: `data.teacher` is no store.
  """
  if not experiment.data.teacher:
    return ''
  from kaiju_jax.distillation import store

  settings = store.read_manifest(experiment.data.teacher).settings
  fields = strict.dump(settings)
  del fields['shard']  # It changes no target.
  text = json.dumps(fields, sort_keys=True).encode()
  return hashlib.blake2b(text, digest_size=16).hexdigest()


def read_beside(experiment: experiment_lib.Experiment, corpus: Any) -> Any:
  """Returns the `beside` of `text.Rows` for a training corpus, if any.

  Raises:
    FileNotFoundError: a shard is missing.
    ValueError: the store is of another corpus, or a shard is damaged.
  """
  if not experiment.data.teacher:
    return None
  from kaiju_jax.data import text
  from kaiju_jax.distillation import read

  entries = experiment.objective.distillation.entries
  return read.Reader(experiment.data.teacher, text.digest(corpus), entries)

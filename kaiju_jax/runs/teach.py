"""Writes a teacher's sampled distributions (targets) of a corpus to a store.

    plan = teach.plan(load.from_anywhere('runs/big'), experiment, sampling)
    teach.teach(plan, 'runs/targets')        writes, or resumes

It reads only training text, because a student is evaluated on held-out
documents.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import os
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.distillation import store
from kaiju_jax.distillation import teach as teach_lib
from kaiju_jax.distillation import write
from kaiju_jax.evaluation import kl_divergence
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.tasks import texts
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import interrupt as interrupt_lib
from kaiju_jax.training import progress


def load_teacher(path: str | os.PathLike[str]) -> load.Loaded:
  """Returns a teacher of any kind, a Hugging Face folder's as int8 codes.

  The codes are used as floats (`matmul='weights'`), one byte per weight; keys,
  values and activations stay floats.

  Raises:
    OSError, ValueError: see `load.from_anywhere`.
  """
  codes = quantization_config.for_serving('weights', kv='none')
  return load.from_anywhere(path, quantization=codes, stacked=True)


class Plan(NamedTuple):
  """The teacher, its text and the store's settings."""

  teacher: load.Loaded  # The model.
  corpora: Mapping[str, text.Corpus]  # The training text, by name.
  settings: store.Settings  # The settings of the store.


def plan(
  teacher: load.Loaded,
  experiment: experiment_lib.Experiment,
  sampling: distillation_config.Sampling,
  length: int = 0,
  batch: int = 0,
  overlap: float = 0.25,
  shard: int = 256,
) -> Plan:
  """Reads the text, and refuses settings that do not fit the teacher.

  Args:
    teacher: the model.
    experiment: the student's experiment, which names the training text.
    sampling: the sampling of the teacher's distributions.
    length: tokens of a row that the teacher reads; 0 for the experiment's.
    batch: rows that it reads at a time; 0 for the experiment's.
    overlap: see `distillation/teach.windows`.
    shard: records of 1,024 tokens per shard.

  Raises:
    OSError, ValueError: names the value and what would be right.
  """
  data = experiment.data
  distillation_config.check(sampling)
  for name, value in (
    ('length', length),
    ('batch', batch),
    ('shard', shard - 1),
  ):
    if value < 0:
      raise ValueError(f'{name}={value}: must be positive.')
  length, batch = length or data.length, batch or data.batch
  if length > teacher.config.max_length:
    raise ValueError(
      f'length={length}: rows are longer than the positions of the teacher,'
      f' model.max_length={teacher.config.max_length}. Name shorter ones.'
    )
  if sampling.method == 'full' and sampling.entries < teacher.config.vocab_size:
    raise ValueError(
      f'entries={sampling.entries}: must be at least'
      f" {teacher.config.vocab_size}, the teacher's vocabulary, for"
      " method='full'."
    )
  ours = tokenizer_lib.load(data.tokenizer, teacher.config.vocab_size)
  theirs = tokenizer_lib.load(teacher.tokenizer, teacher.config.vocab_size)
  digest = tokenizer_lib.hash_use(ours)
  if digest != tokenizer_lib.hash_use(theirs):
    raise ValueError(
      f'data.tokenizer={data.tokenizer!r}: must be that of the teacher,'
      f' {teacher.tokenizer!r}: targets are probabilities of its tokens.'
    )
  settings = store.Settings(
    sampling=sampling,
    vocab_size=teacher.config.vocab_size,
    tokenizer=digest,
    teacher=load.digest(teacher),
    length=length,
    batch=batch,
    overlap=overlap,
    shard=shard,
  )
  corpora = {
    source.config.name or 'text': source.training
    for source in texts.read(_with_vocabulary(experiment, teacher))
  }
  for corpus in corpora.values():
    teach_lib.check(corpus, length, overlap)
  return Plan(teacher, corpora, settings)


def compare(plan: Plan, floats: load.Loaded) -> tuple[float, int]:
  """Returns what the teacher's codes change of its distributions.

  Args:
    plan: the teacher and its text, whose first row is read.
    floats: the same teacher in float32.

  Returns:
    The mean KL divergence of the codes' distributions from those of the floats,
    in nats per token, and the number of tokens.
  """
  corpus = next(iter(plan.corpora.values()))
  settings = plan.settings
  rows = teach_lib.read_batches(corpus, settings.length, 1, settings.overlap)
  batch = next(rows).batch
  is_token_BL = batch.source_BL >= 0
  nats_BL = kl_divergence.compare(
    *((one.config, load.variables(one)) for one in (floats, plan.teacher))
  )(batch.tokens_BL, batch.visibility())
  return float(nats_BL[is_token_BL].mean()), int(is_token_BL.sum())


def _with_vocabulary(experiment, teacher):
  """Returns the experiment with the teacher's vocabulary size."""
  model = dataclasses.replace(
    experiment.model, vocab_size=teacher.config.vocab_size
  )
  return dataclasses.replace(experiment, model=model)


def teach(
  plan: Plan, out: str | os.PathLike[str], console: Any = None
) -> store.Manifest | None:
  """Writes the targets of every corpus, or resumes after an interruption.

  Ctrl-C and SIGTERM save the targets so far. The same call then resumes, and
  gives the bytes of an uninterrupted call.

  Args:
    plan: the teacher, text and settings.
    out: folder of the store.
    console: shows the progress; stderr by default.

  Returns:
    The store's manifest; None after an interruption.

  Raises:
    ValueError: the folder holds a store of other settings, or the teacher's
      logits are not finite.
    OSError: the folder cannot be written.
    KeyboardInterrupt: at a second Ctrl-C.
  """
  write.check(out, plan.settings)
  answer = teach_lib.answering(
    transformer.Transformer(plan.teacher.config), plan.settings.sampling
  )
  variables = load.variables(plan.teacher)
  total = sum(len(corpus.tokens) for corpus in plan.corpora.values())
  done = 0
  with (
    interrupt_lib.Interrupt() as interrupt,
    progress.Progress('taught tokens', total, console) as bar,
  ):
    for name, corpus in plan.corpora.items():
      with write.Writer(
        out, plan.settings, text.digest(corpus), name, len(corpus.tokens)
      ) as writer:
        begin = writer.next
        done += begin
        bar.update(done)
        batches = teach_lib.read_batches(
          corpus,
          plan.settings.length,
          plan.settings.batch,
          plan.settings.overlap,
          begin,
        )
        for windows, drawn in answers(answer, variables, batches):
          targets = teach_lib.targets(windows, drawn, begin)
          writer.add(targets)
          done += len(targets.ids_NT)
          bar.update(done)
          if interrupt.requested:
            writer.save()
            return None
  return store.read_manifest(out)


def answers(
  answer: teach_lib.Answer,
  variables: Mapping[str, Any],
  batches: Iterable[teach_lib.TeacherBatch],
) -> Iterator[tuple[teach_lib.TeacherBatch, Any]]:
  """Yields each batch with its answer, while the device computes the next."""
  waiting = None
  for windows in batches:
    number_BL = (windows.number_BL % 2**32).astype(np.uint32)
    drawn = answer(variables, windows.batch, number_BL)
    if waiting is not None:
      yield waiting
    waiting = windows, drawn
  if waiting is not None:
    yield waiting

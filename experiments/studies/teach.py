"""Writes a teacher's distributions of a training text, and says their size."""

import dataclasses
from typing import Any

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.runs import load
from kaiju_jax.runs import teach


def run(settings: Any, sampling: distillation_config.Sampling) -> None:
  """Writes a teacher's targets, and prints what they are.

  Args:
    settings: those of `experiments.teach`.
    sampling: how entries are drawn.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  loaded = teach.load_teacher(settings.teacher)
  if sampling.method == 'full' and not settings.sampling.entries:
    sampling = dataclasses.replace(sampling, entries=loaded.config.vocab_size)
  experiment = settings.config or loaded.experiment
  if experiment is None:
    raise ValueError(
      f'--config is missing: {settings.teacher} is no workdir, and does not say'
      ' what text to teach.'
    )
  plan = teach.plan(
    loaded,
    experiment,
    sampling,
    length=settings.length,
    batch=settings.batch,
    overlap=settings.overlap,
    shard=settings.shard,
  )
  if settings.compare and not loaded.is_ours:
    floats = load.from_anywhere(settings.teacher)
    divergence, tokens = teach.compare(plan, floats)
    del floats
    print(
      f'{settings.teacher}: KL divergence of the int8 weights from float32:'
      f' {divergence:.2e} nats per token, over {tokens} tokens.'
    )
  manifest = teach.teach(plan, settings.out)
  if manifest is None:
    print('Interrupted and saved. The same command goes on.')
    return
  print(
    f'{settings.out}: {sampling.method} targets of'
    f' {sum(one.tokens for one in manifest.corpora.values()):,} tokens,'
    f' {manifest.bytes_per_token():.1f} bytes per token.'
  )

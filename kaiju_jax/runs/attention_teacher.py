"""Runs whose attention learns to do as a teacher's (`attention_alignment.py`).

The step's state holds student and teacher; the loop, and with it a checkpoint,
sees the student alone, as it sees adapters alone (`adapters.hide_base`). The
teacher is read again whenever the run starts or resumes.

    teacher.json    in the run's workdir: the teacher's digest, which a resumed
                    run compares
"""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import jax

from kaiju_jax.interchange import plain
from kaiju_jax.interchange.surgery import check
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.objectives import attention_alignment
from kaiju_jax.runs import begin
from kaiju_jax.runs import load
from kaiju_jax.runs import same_model
from kaiju_jax.sharding import rules
from kaiju_jax.training import experiment as experiment_lib


def read(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike,
  mesh: jax.sharding.Mesh,
) -> dict[str, Any]:
  """Returns the teacher's float32 parameters on `mesh`, under their name.

  Raises:
    OSError, ValueError: the teacher cannot be read, is not the one that the
      config describes or with which the workdir's run began, is none of the
      student, or has another tokenizer.
  """
  given = experiment.objective.attention_alignment
  found = load.from_anywhere(given.teacher)
  check.check(found.config, experiment.model)
  if found.tokenizer:
    begin.check_tokenizer(
      pathlib.Path(found.tokenizer), experiment.data.tokenizer
    )
  config = attention_alignment.teacher_of(given, experiment.model)
  for name, theirs, ours in (
    ('layout', *(_draw(one) for one in (found.config, config))),
    ('num_kv_heads', found.config.num_kv_heads, config.num_kv_heads),
    ('window', *(_windows(one) for one in (found.config, config))),
  ):
    if theirs != ours:
      raise ValueError(
        f'objective.attention_alignment.{name}={ours!r}: must be {theirs!r},'
        f' as {given.teacher} has.'
      )
  teacher = load.digest(found), found.origin
  start = pathlib.Path(experiment.begin_with)
  # Starts of an earlier version have no digest.
  if begin.is_export(start) and (start / 'teacher.json').is_file():
    same_model.check(start, *teacher, is_new=False, role='teacher')
  same_model.check(workdir, *teacher, is_new=True, role='teacher')
  weights = plain.weights(found.params, found.config, found.replica)
  params = plain.params(weights, config)
  stored = jax.device_put(params, rules.shardings(params, mesh))
  return {attention_alignment.TEACHER: stored}


def split(params: Mapping[str, Any]) -> tuple[dict, dict]:
  """Returns the student's parameters and the teacher's, by top-level name."""
  name = attention_alignment.TEACHER
  student = {key: params[key] for key in params if key != name}
  return student, {name: params[name]}


def _draw(config) -> str:
  return layers_lib.draw(config.layers())


def _windows(config) -> list[int]:
  return sorted({one.window for one in config.layers() if one.window})

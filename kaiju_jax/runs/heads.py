"""Loads a token-level head, without the model that it reads."""

import os
import pathlib
from typing import Any

import jax

from kaiju_jax.model import token_head as token_head_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.training import checkpoint
from kaiju_jax.training import state
from kaiju_jax.training import workdir as workdir_lib


def load_run(path: str | os.PathLike) -> tuple[Any, Any]:
  """Returns the parameters and `TokenHeadConfig` of a run's token-level head.

  Raises:
    FileNotFoundError, checkpoint.RestoreError: as `from_workdir`.
    ValueError: as `from_workdir`, or the run trains no token-level head.
  """
  experiment = workdir_lib.load_experiment(path)
  if experiment.objective.name != 'token_head':
    raise ValueError(
      f'{path}: objective.name={experiment.objective.name!r}: only a run of'
      " 'token_head' has a head."
    )
  shapes = jax.eval_shape(state.objective_of(experiment).parameters)
  found, _ = checkpoint.load(path, {'params': shapes})
  names = experiment.objective.token_head.names
  return found['params']['token_head'], token_head_lib.TokenHeadConfig(names)


def load(path: str | os.PathLike, d_model: int) -> tuple[Any, Any]:
  """Returns the parameters and the `TokenHeadConfig` of a token-level head.

  Args:
    path: a file of `model/token_head.save`, or the workdir of a run that
      trained one.
    d_model: D of the model whose hidden states the head will read.

  Raises:
    FileNotFoundError, checkpoint.RestoreError, ValueError: as `load_run`
      and `model/token_head.load`.
  """
  if pathlib.Path(path).is_dir():
    return load_run(path)
  return token_head_lib.load(path, d_model=d_model)


def find(
  head: str, safety: str, d_model: int
) -> tuple[Any, token_head_lib.TokenHeadConfig] | None:
  """Returns the head that a server runs; None for none.

  Args:
    head: a path as in `load`; '' for the head in `safety`, if there is one.
    safety: the folder of a gate; '' for none.
    d_model: as in `load`.

  Raises:
    OSError, ValueError: see `load`.
  """
  beside = pathlib.Path(safety) / moderation.HEAD
  if head:
    return load(head, d_model)
  if safety and beside.is_file():
    return load(beside, d_model)
  return None

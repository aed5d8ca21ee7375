"""Loads a token-level head, without the model that it reads."""

import os
import pathlib
from typing import Any

import jax

from kaiju_jax.model import token_head as token_head_lib
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load as load_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.training import checkpoint
from kaiju_jax.training import state
from kaiju_jax.training import workdir as workdir_lib


def digest(loaded: load_lib.Loaded) -> str:
  """Returns the digest that a head's file must have, '' for any.

  Models of other libraries are quantized in several ways, on each of which a
  head may be used.
  """
  return load_lib.digest(loaded) if loaded.is_ours else ''


def list_digests(
  path: str | os.PathLike[str], loaded: load_lib.Loaded
) -> list[str]:
  """Returns the digests that a head's file gets; none as for `digest`.

  `path` is where the model was loaded from.
  """
  if not loaded.is_ours:
    return []
  has_adapters = loaded.experiment is not None and loaded.experiment.lora.rank
  if has_adapters:
    return [load_lib.digest(loaded)]
  return exchange.list_digests(path, loaded)


def load_run(path: str | os.PathLike[str]) -> tuple[Any, Any]:
  """Returns the parameters and `TokenHeadConfig` of a run's token-level head.

  Raises:
    FileNotFoundError, checkpoint.RestoreError, ValueError: as `from_workdir`,
      or the run trains no token-level head.
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


def load(
  path: str | os.PathLike[str], d_model: int, model: str = ''
) -> tuple[Any, Any]:
  """Returns the parameters and the `TokenHeadConfig` of a token-level head.

  Args:
    path: a file of `model/token_head.save`, or the workdir of a run that
      trained one.
    d_model: D of the model whose hidden states the head reads.
    model: the model's digest, which must be that of the run, and of the file if
      it has one; '' for any.

  Raises:
    FileNotFoundError, checkpoint.RestoreError, ValueError: as `load_run`
      and `model/token_head.load`.
  """
  if pathlib.Path(path).is_dir():
    found = load_run(path)
    if model:
      _check_run(path, model)
    return found
  return token_head_lib.load(path, d_model=d_model, model=model)


def _check_run(path: str | os.PathLike[str], model: str) -> None:
  """Refuses a run whose model, with the head or frozen, is another one."""
  theirs = load_lib.from_workdir(path)
  if model not in exchange.list_digests(path, theirs):
    raise ValueError(
      f'{path}: its head reads the hidden states of another model, of digest'
      f' {load_lib.digest(theirs)}, not {model}.'
    )


def find(
  head: str, safety: str, d_model: int, model: str = ''
) -> tuple[Any, token_head_lib.TokenHeadConfig] | None:
  """Returns the head that a server runs, as `load`; None for none.

  Args:
    head: its path; '' for the head in `safety`, if there is one.
    safety: the folder of a gate; '' for none.
    d_model, model: as in `load`.
  """
  beside = pathlib.Path(safety) / moderation.HEAD
  if not head and not (safety and beside.is_file()):
    return None
  return load(head or beside, d_model, model)

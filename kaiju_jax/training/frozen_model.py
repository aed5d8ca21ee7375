"""Refuses another frozen model than the one that a run began with.

base.json       in the workdir of a run with adapters: the base's digest
teacher.json    in that of a run that aligns attention, and in the folder of
                a start that `experiments.uptrain` wrote: the teacher's
"""

import json
import os
import pathlib

from kaiju_jax.storage import files
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib


def check(
  path: str | os.PathLike[str],
  digest: str,
  origin: str,
  is_new: bool,
  role: str = 'base',
) -> None:
  """Refuses a frozen model of other bytes than a run began with.

  Args:
    path: the workdir of the run.
    digest: that of the model, `load.digest`.
    origin: where it lies.
    is_new: whether the run may just begin; then this function writes the
      model's digest, if no checkpoint is saved or there is none.
    role: what the run reads it as: the 'base' of adapters, or a 'teacher'. The
      digest is in ROLE.json.

  Raises:
    FileNotFoundError: the workdir has no digest.
    ValueError: the digests differ.
  """
  file = pathlib.Path(path) / f'{role}.json'
  if is_new and not (file.is_file() and workdir_lib.checkpoints(path)):
    files.write_json(file, {'digest': digest, 'path': origin})
    return
  kept = files.read_json(file)
  if kept['digest'] != digest:
    raise ValueError(
      f'{origin}: is another {role} than that of {path}, which'
      f' began with {kept["path"]}: digest {digest}, not {kept["digest"]}.'
    )


def describe(digest: str, origin: str, role: str = 'teacher') -> dict[str, str]:
  """Returns {name: content} of the file that `check` compares."""
  content = json.dumps({'digest': digest, 'path': origin}, indent=1)
  return {f'{role}.json': f'{content}\n'}


def refuse_adapters(
  path: str | os.PathLike[str], experiment: experiment_lib.Experiment
) -> None:
  """Raises ValueError where the run in a workdir has adapters."""
  if experiment.lora.rank:
    raise ValueError(
      f'begin_with={str(path)!r}: is itself a run with adapters; merge them'
      ' first (experiments.convert), and begin with that export.'
    )

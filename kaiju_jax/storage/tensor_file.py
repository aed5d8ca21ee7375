"""Writes and reads named tensors and their metadata in one safetensors file.

A kill or a full disk leaves the old file or the new one, whole.
"""

from collections.abc import Mapping
import os
import pathlib

import numpy as np
import safetensors
import safetensors.numpy

from kaiju_jax.storage import files


def write(
  path: str | os.PathLike[str],
  tensors: Mapping[str, np.ndarray],
  metadata: Mapping[str, str],
) -> None:
  """Replaces a file; `metadata['format']` names its format.

  Raises:
    OSError: the file cannot be written.
  """
  path = pathlib.Path(path)
  tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
  with files.replacing(path) as partial:
    safetensors.numpy.save_file(tensors, partial, dict(metadata))


def read(
  path: str | os.PathLike[str], form: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Returns a file's tensors and metadata.

  Args:
    path: the file.
    form: the expected `metadata['format']`.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: the file is not a safetensors file, or has another format.
  """
  metadata = read_metadata(path, form)
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  except safetensors.SafetensorError as error:
    raise ValueError(f'{path}: not a whole safetensors file: {error}') from None
  return tensors, metadata


def read_metadata(path: str | os.PathLike[str], form: str) -> dict[str, str]:
  """Returns a file's metadata, and reads no tensor; arguments as `read`.

  Raises:
    OSError, ValueError: as `read`.
  """
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      metadata = file.metadata() or {}
  except safetensors.SafetensorError as error:
    raise ValueError(f'{path}: not a whole safetensors file: {error}') from None
  if metadata.get('format') != form:
    raise ValueError(
      f'{path}: format is {metadata.get("format")!r}, expected {form!r}.'
    )
  return metadata

"""Reads folders of `transformers`' models; writes its `ArceeForCausalLM`.

config.json            read by `families/`, written by `arcee.py`
model.safetensors      `tensors.py`, float32
tokenizer.json, tokenizer_config.json    `tokens.py`
lost.json              the losses that the caller accepted: what the model does
                       and this folder cannot express (`lost.py`)

Another tool's folder may hold its weights in several files, with an index, and
in bfloat16 or float16. `write` makes one file of any size, which every reader
accepts.
"""

from collections.abc import Collection
import dataclasses
import os
import pathlib
from typing import Any

from absl import logging
import numpy as np
import safetensors
import safetensors.numpy

from kaiju_jax.interchange import arcee
from kaiju_jax.interchange import lost as lost_lib
from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange import tensors as tensors_lib
from kaiju_jax.interchange import tokens
from kaiju_jax.interchange.families import arcee as arcee_family
from kaiju_jax.interchange.families import family as family_lib
from kaiju_jax.interchange.families import registry
from kaiju_jax.model import config as model_config
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import folders as folder_lib
from kaiju_jax.wire import ternary_plan

_CONFIG = 'config.json'
_WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_DTYPES = ('F32', 'BF16', 'F16')


def write(
  folder: str | os.PathLike,
  params: Any,
  config: model_config.ModelConfig,
  tokenizer: str = '',
  accepted: Collection[str] = (),
  replica: ternary_plan.State | None = None,
) -> dict[str, str]:
  """Writes a model as an Arcee folder; whole or not at all.

  Args:
    folder: path of a new folder.
    params: trained float32 masters, or an export's tree (`own.load`).
    config: the model's config.
    tokenizer: path of a `tokenizer.json`, '' for bytes.
    accepted: those of `lost.NAMES` that the folder may lose.
    replica: the training state's replica, where its updates were ternary.

  Returns:
    The losses, {name: a sentence}; empty where logits are the same.

  Raises:
    ValueError: a loss was not accepted, heads do not divide the width, or the
      tokenizer or the replica is not the model's.
    OSError: the folder exists, or cannot be written.
  """
  lost = lost_lib.list_losses(config)
  lost_lib.refuse(lost, accepted)
  arcee.fields(config, bos_id=0)  # Raises before anything is written.
  with folder_lib.write_whole(folder) as path:
    bos_id = tokens.write(path, tokenizer, config)
    weights = plain_lib.weights(params, config, replica)
    named = tensors_lib.name_tensors(
      weights, arcee_family.FAMILY.tensors, config.scaled_embedding
    )
    with files.writing(str(folder)):
      safetensors.numpy.save_file(named, path / _WEIGHTS, {'format': 'pt'})
    files.write_json(path / _CONFIG, arcee.fields(config, bos_id))
    if lost:
      files.write_json(path / 'lost.json', lost)
  return lost


def read(
  folder: str | os.PathLike, accepted: Collection[str] = ()
) -> tuple[Any, model_config.ModelConfig]:
  """Returns the parameters and the config of a folder of a known family.

  No layers share keys and values, and nothing is int8. Activations are bfloat16
  where all of the folder's weights are, otherwise float32.

  Args:
    folder: path of the folder.
    accepted: unknown fields of config.json that the caller lets pass.

  Raises:
    FileNotFoundError: there is no such folder, or a file of it is missing.
    ValueError: names the field or the tensor that our model cannot take, its
      value and what would be right.
  """
  addresses.refuse(folder, f'folder {folder}')
  folder = pathlib.Path(folder)
  if not (folder / _CONFIG).is_file():
    raise FileNotFoundError(
      f'{folder / _CONFIG}: not found; expected a folder of Hugging Face files.'
    )
  fields = files.read_json(folder / _CONFIG)
  if not isinstance(fields, dict):
    raise ValueError(f'{folder / _CONFIG}: must hold an object.')
  try:
    reading = registry.read(fields, accepted)  # Before a long read.
  except ValueError as error:
    raise ValueError(f'{folder}: {_CONFIG}: {error}') from error
  try:
    found, dtype = _tensors(folder, reading.family)
    reading = _tie(found, reading)
    config = dataclasses.replace(reading.config, dtype=dtype)
    plain = tensors_lib.plain(found, reading)
    return plain_lib.params(plain, config), config
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from error


def _tie(
  found: dict[str, np.ndarray], reading: family_lib.Reading
) -> family_lib.Reading:
  """Returns the reading with what the tensors say about the head.

  A folder that ties its tables needs no head, and we drop one. A folder that we
  wrote holds √D in its embedding, so that its tied tables become two.
  """
  is_tied = reading.config.tied_embedding
  table = found.get(tensors_lib.EMBEDDING)
  if is_tied and table is not None:
    head = found.setdefault(tensors_lib.HEAD, table)
    if not np.array_equal(head, table):
      raise ValueError(
        f'{tensors_lib.HEAD}: differs from {tensors_lib.EMBEDDING}, though'
        ' tie_word_embeddings=True.'
      )
    if not reading.is_ours:
      del found[tensors_lib.HEAD]
  if reading.is_ours:
    is_tied = tensors_lib.is_ours_tied(found)
  config = dataclasses.replace(reading.config, tied_embedding=is_tied)
  return reading._replace(config=config)


def _tensors(
  folder: pathlib.Path, family: family_lib.Family
) -> tuple[dict[str, np.ndarray], str]:
  """Returns the model's tensors in float32, and the dtype for activations."""
  found, dtypes, skipped = {}, set(), []
  for file in _files(folder):
    try:
      with safetensors.safe_open(file, framework='flax') as opened:
        for name in opened.keys():  # noqa: SIM118
          ours = tensors_lib.rename(name, family)
          if ours is None:
            skipped.append(name)
            continue
          dtype = opened.get_slice(name).get_dtype()
          if dtype not in _DTYPES:
            raise ValueError(
              f'{name}: holds {dtype}, must be one of {", ".join(_DTYPES)}.'
            )
          dtypes.add(dtype)
          if ours in found:
            raise ValueError(f'{name}: is there twice, as {ours} too.')
          found[ours] = np.asarray(opened.get_tensor(name), np.float32)
          _refuse_not_finite(name, found[ours])
    except safetensors.SafetensorError as error:
      raise ValueError(
        f'{file.name}: not a whole safetensors file: {error}'
      ) from None
  if skipped:
    logging.warning(
      '%s: %d tensors are no part of the language model and are skipped, such'
      ' as %s.',
      folder,
      len(skipped),
      skipped[0],
    )
  return found, 'bfloat16' if dtypes == {'BF16'} else 'float32'


def _refuse_not_finite(name: str, tensor: np.ndarray) -> None:
  """Refuses NaN and infinities, which would silently reach every logit."""
  bad = ~np.isfinite(tensor)
  if not np.any(bad):
    return
  place = [int(index) for index in np.argwhere(bad)[0]]
  raise ValueError(
    f'{name}: holds {tensor[tuple(place)]} at {place} ({np.sum(bad):,} of'
    f' {bad.size:,} elements are not finite); must be finite everywhere.'
  )


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files with weights: one, or those that the index names."""
  names = [_WEIGHTS]
  if not (folder / _WEIGHTS).exists() and (folder / _INDEX).exists():
    names = _list_shards(folder / _INDEX)
  paths = [folder / name for name in names]
  for path in paths:
    if not path.is_file():
      raise FileNotFoundError(
        f'{path}: not found; weights must be safetensors, {_WEIGHTS} or the'
        f' files of {_INDEX}.'
      )
  return paths


def _list_shards(index: pathlib.Path) -> list[str]:
  """Returns the names of the files that an index lists, sorted."""
  data = files.read_json(index)
  if not isinstance(data, dict):
    raise ValueError(f'{index.name}: must hold an object with weight_map.')
  names = data.get('weight_map')
  if not isinstance(names, dict) or not names:
    raise ValueError(
      f'{index.name}: weight_map={names!r}: must be an object that names the'
      ' file of each tensor.'
    )
  for tensor, name in names.items():
    if not isinstance(name, str) or not _is_beside(name):
      raise ValueError(
        f'{index.name}: weight_map[{tensor!r}]={name!r}: must be the name of a'
        ' file in the same folder.'
      )
  return sorted(set(names.values()))


def _is_beside(name: str) -> bool:
  """Returns whether a name is a plain file name: no path, and not empty."""
  return bool(name) and pathlib.PurePath(name).name == name

"""Reads folders of `transformers`' models; writes them, by default Arcee's.

Wherever a folder is read, it may be a GGUF file (`gguf/folder.py`).

config.json            read by `families/`, written by `arcee.py`, or another
                       folder's
model.safetensors      `tensors.py`, float32
tokenizer.json, tokenizer_config.json    `tokens.py`
lost.json              the losses that the caller accepted: what the model does
                       and this folder cannot express (`losses.py`)

Another tool's folder may hold its weights in several files, with an index, and
in bfloat16 or float16. `write` makes one file of any size, which every reader
accepts.
"""

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

from absl import logging
import safetensors.numpy

from kaiju_jax.interchange import arcee
from kaiju_jax.interchange import gguf_names
from kaiju_jax.interchange import losses as losses_lib
from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange import scale
from kaiju_jax.interchange import shards
from kaiju_jax.interchange import stream
from kaiju_jax.interchange import tensors as tensors_lib
from kaiju_jax.interchange import tokens
from kaiju_jax.interchange.families import arcee as arcee_family
from kaiju_jax.interchange.families import family as family_lib
from kaiju_jax.interchange.families import registry
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import folders as folder_lib
from kaiju_jax.storage import strict
from kaiju_jax.wire import ternary_plan

_CONFIG = 'config.json'


def write(
  folder: str | os.PathLike[str],
  params: Any,
  config: model_config.ModelConfig,
  tokenizer: str = '',
  accepted: Collection[str] = (),
  replica: ternary_plan.State | None = None,
  beside: Mapping[str, str] | None = None,
  like: str | os.PathLike[str] = '',
) -> dict[str, str]:
  """Writes a model as a Hugging Face folder; whole or not at all.

  Args:
    folder: path of a new folder.
    params: trained float32 masters, or an export's tree (`own.load`).
    config: the model's config.
    tokenizer: path of a `tokenizer.json`, '' for bytes.
    accepted: those of `lost.NAMES` that the folder may lose.
    replica: the training state's replica, where its updates were ternary.
    beside: texts of further files, by name, such as a chat template's.
    like: a folder of the same family and shapes; '' to write Arcee's.

  Returns:
    The losses, {name: a sentence}; empty where logits are the same.

  Raises:
    ValueError: a loss was not accepted, heads do not divide Arcee's width, or
      the tokenizer, the replica or `like` is not the model's.
    OSError: the folder exists, or cannot be written.
  """
  family, scaled, query_scale = arcee_family.FAMILY, config.scaled_embedding, 1
  if like:
    fields, reading = _read_like(pathlib.Path(like), config)
    family, scaled, query_scale = reading.family, False, reading.query_scale
    lost = losses_lib.list_losses(config, losses_lib.ROUNDED)
  else:
    fields = arcee.fields(config, 0)  # Raises before anything is written.
    lost = losses_lib.list_losses(config)
  losses_lib.refuse(lost, accepted)
  with folder_lib.write_whole(folder) as path:
    bos_id = tokens.write(path, tokenizer, config)
    weights = plain_lib.weights(params, config, replica)
    named = tensors_lib.name_tensors(weights, family, scaled, query_scale)
    with files.writing(str(folder)):
      safetensors.numpy.save_file(
        named, path / shards.WEIGHTS, {'format': 'pt'}
      )
    bos = {} if like else {'bos_token_id': bos_id}
    files.write_json(path / _CONFIG, fields | bos)
    if lost:
      files.write_json(path / 'lost.json', lost)
    for name, text in (beside or {}).items():
      files.write_text(path / name, text)
  return lost


def _read_like(
  folder: pathlib.Path, config: model_config.ModelConfig
) -> tuple[dict[str, Any], family_lib.Reading]:
  """Returns another folder's config.json; refuses one of another model."""
  fields = files.read_json(gguf_folder.small_files(folder) / _CONFIG)
  reading = registry.read(fields)
  if reading.is_ours or fields['model_type'] in reading.family.wrappings:
    raise ValueError(
      f'{folder}: must be a folder of others, of a language model alone.'
    )
  same = dict.fromkeys(
    ('dtype', 'quantization', 'attention', 'remat', 'unroll')
  )
  apart = strict.differences(
    *(dataclasses.asdict(x) | same for x in (config, reading.config))
  )
  if apart:
    name, (ours, theirs) = next(iter(apart.items()))
    raise ValueError(f'{folder}: {name} is {theirs!r}, the model has {ours!r}.')
  return fields | {'dtype': 'float32', 'torch_dtype': 'float32'}, reading


def read(
  folder: str | os.PathLike[str],
  accepted: Collection[str] = (),
  form: str = stream.MASTERS,
  quantization: quantization_config.QuantizationConfig | None = None,
  dtype: str = '',
  rotated: bool = False,
) -> tuple[Any, model_config.ModelConfig]:
  """Returns the parameters and the config of a folder of a known family.

  No layers share keys and values. All names, dtypes and shapes are checked
  before any data is read.

  Args:
    folder: path of the folder.
    accepted: unknown fields of config.json that the caller lets pass.
    form: the form of the parameters, one of `stream.FORMS`.
    quantization: how the model is quantized; None for not at all.
    dtype: of activations, and of the weights of `stream.DECODING` that are not
      codes; '' for bfloat16 where all of the folder's weights are, otherwise
      float32.
    rotated: as `stream.fill`.

  Raises:
    FileNotFoundError: there is no such folder, or a file of it is missing.
    ValueError: names the field or the tensor that our model cannot take, its
      value and what would be right.
  """
  found, reading = _open(folder, accepted, quantization, dtype)
  try:
    return stream.fill(found, reading, form, rotated), reading.config
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from error


def read_config(
  folder: str | os.PathLike[str],
  quantization: quantization_config.QuantizationConfig | None = None,
  dtype: str = '',
) -> model_config.ModelConfig:
  """Returns the config that `read` returns, without the parameters.

  Raises:
    FileNotFoundError, ValueError: as `read`.
  """
  return _open(folder, (), quantization, dtype)[1].config


def _open(
  folder: str | os.PathLike[str],
  accepted: Collection[str],
  quantization,
  dtype: str,
) -> tuple[dict[str, shards.Stored], family_lib.Reading]:
  """Returns a folder's tensors, not yet read, and its config."""
  addresses.refuse(folder, f'folder {folder}')
  folder = pathlib.Path(folder)
  held = gguf_folder.small_files(folder)
  if not (held / _CONFIG).is_file():
    raise FileNotFoundError(
      f'{held / _CONFIG}: not found; expected a folder of Hugging Face files or'
      ' a GGUF file.'
    )
  try:
    shards.refuse_links(held)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from None
  fields = files.read_json(held / _CONFIG)
  if not isinstance(fields, dict):
    raise ValueError(f'{held / _CONFIG}: must hold an object.')
  try:
    reading = registry.read(fields, accepted)
  except ValueError as error:
    raise ValueError(f'{folder}: {_CONFIG}: {error}') from error
  try:
    if held == folder:
      stored = shards.list_tensors(folder)
    else:
      unpacked = gguf_folder.unpack(folder)
      stored, reading = gguf_names.read(unpacked, reading)
    found = _name(folder, stored, reading.family)
    reading = _tie(found, reading)
    config = dataclasses.replace(
      reading.config,
      dtype=dtype or shards.dtype_of(found),
      quantization=quantization or reading.config.quantization,
    )
    model_config.check(config)
    return found, reading._replace(config=config)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from error


def _tie(
  found: dict[str, shards.Stored], reading: family_lib.Reading
) -> family_lib.Reading:
  """Checks the tensors; returns the reading with what they say about the head.

  A folder that ties its tables needs no head, and we drop one. A folder that we
  wrote holds √D in its embedding, so that its tied tables become two.
  """
  is_tied = reading.config.tied_embedding
  table = found.get(tensors_lib.EMBEDDING)
  head = found.get(tensors_lib.HEAD)
  if is_tied and table is not None:
    if reading.is_ours:
      found.setdefault(tensors_lib.HEAD, table)
    else:
      found.pop(tensors_lib.HEAD, None)
  tensors_lib.check(found, reading)
  if is_tied and head is not None and not shards.equals(head, table):
    raise ValueError(
      f'{tensors_lib.HEAD}: differs from {tensors_lib.EMBEDDING}, though'
      ' tie_word_embeddings=True.'
    )
  if reading.is_ours:
    is_tied = shards.equals(
      table,
      found[tensors_lib.HEAD],
      lambda x: scale.scale(x, reading.config.d_model),
    )
  config = dataclasses.replace(reading.config, tied_embedding=is_tied)
  return reading._replace(config=config)


def _name(
  folder: pathlib.Path,
  stored: list[shards.Stored],
  family: family_lib.Family,
) -> dict[str, shards.Stored]:
  """Returns the model's tensors by our names for them."""
  found, skipped = {}, []
  for one in stored:
    ours = tensors_lib.rename(one.name, family)
    if ours is None:
      skipped.append(one.name)
    elif ours in found:
      raise ValueError(f'{one.name}: is there twice, as {ours} too.')
    else:
      found[ours] = one
  if skipped:
    logging.warning(
      '%s: %d tensors are no part of the language model and are skipped, such'
      ' as %s.',
      folder,
      len(skipped),
      skipped[0],
    )
  return found

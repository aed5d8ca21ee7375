"""Writes and reads our own format of a trained model, which loses nothing.

An *export* is one safetensors file: a deployed model (`model/deployed.py`) with
its config. Tensors have the names of the parameters' paths, joined by dots, and
are stacked over the N repeats of the layer block as in training:

    blocks.layer_0.feedforward.w_in_DF.codes        int8     [N, D, F]
    blocks.layer_0.feedforward.w_in_DF.scales       float32  [N, 1, F]
    blocks.layer_0.feedforward.hidden_limit         float32  [N]
    blocks.layer_0.attention_norm.gain_D            float32  [N, D]
    embedding.embedding_DV                          float32  [D, V]

Keys and values with a scale per token need no tensor. With a scale per channel,
the file holds its running limits (`k_limit_K`, `v_limit_K`). The file's
metadata holds the model's config as JSON, under `config`, and the format's name
under `format`.

`write` makes a folder with an export and a tokenizer:

    model.safetensors                        the export
    tokenizer.json, tokenizer_config.json    see `tokens.py`

With `masters=True` the file keeps the float32 masters instead of codes, under
the same names, so that training can continue; the metadata then says `masters`
under `weights`.

An import's codes (`coded.py`) come with digests in the metadata: `source` of
the files that they are made of, `content` of all else in the file.

This format expresses everything that the model has: windows, shared keys and
values, clamps. Other libraries' folders express less. A model that was imported
from such a folder is written in this format, and read like an export of a
training run.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import hashlib
import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.interchange import tokens
from kaiju_jax.model import config as model_config
from kaiju_jax.model import deployed
from kaiju_jax.model import lora
from kaiju_jax.model import transformer
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import rotation
from kaiju_jax.storage import files
from kaiju_jax.storage import folders as folder_lib
from kaiju_jax.storage import strict
from kaiju_jax.storage import strict_json
from kaiju_jax.storage import tensor_file
from kaiju_jax.wire import ternary_plan

WEIGHTS = 'model.safetensors'
# Metadata of an import's codes (`coded.py`).
SOURCE, CONTENT = 'source', 'content'
FORMAT = 'kaiju_jax 2'
_MASTERS = 'masters'
_ROTATION = f'{rotation.NAME}.{rotation.SIGNS}'


def write(
  folder: str | os.PathLike[str],
  params: Any,
  config: model_config.ModelConfig,
  tokenizer: str | None = '',
  replica: ternary_plan.State | None = None,
  masters: bool = False,
  beside: Mapping[str, str] | None = None,
  source: str = '',
) -> None:
  """Writes a model in our own format; whole or not at all.

  Args:
    folder: path of a new folder.
    params: as in `save`.
    config: the model's config.
    tokenizer: path of a `tokenizer.json`, '' for bytes, None for none.
    replica: the training state's replica, where its updates were ternary.
    masters: whether to write the masters instead of codes.
    beside: {name: text} of further files in the folder.
    source: as in `save`.

  Raises:
    ValueError: the tokenizer's vocabulary is not the model's, or see
      `deployed.quantize`.
    OSError: the folder exists, or cannot be written.
  """
  with folder_lib.write_whole(folder) as path:
    if tokenizer is not None:
      tokens.write(path, tokenizer, config)
    with files.writing(str(folder)):
      save(path / WEIGHTS, params, config, replica, masters, source)
      for name, text in (beside or {}).items():
        files.write_text(path / name, text)


def save(
  path: str | os.PathLike[str],
  params: Any,
  config: model_config.ModelConfig,
  replica: ternary_plan.State | None = None,
  masters: bool = False,
  source: str = '',
) -> None:
  """Writes the export of `params` to a file; whole or not at all.

  Args:
    path: the file's path.
    params: float32 master weights, or a deployed tree.
    config: the model's config.
    replica: the training state's replica, where its updates were ternary.
    masters: whether to write the masters instead of codes.
    source: a digest of the files that an import's codes are made of; '' if it
      is none. The file then has a digest of its content, too.

  Raises:
    ValueError: see `deployed.quantize`; or the parameters hold adapters, or the
      model has a function of one's own, for which the format has no place.
    OSError: the file cannot be written.
  """
  lora.refuse(params)
  strict.check_choices(
    config, {'feedforward': model_config.FEEDFORWARDS}, 'model'
  )
  tree = params
  if not (masters or deployed.is_deployed(params)):
    tree = deployed.quantize(params, config, replica)
  tensors = {}
  for tree_path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    tensors[_name(tree_path)] = np.asarray(jax.device_get(leaf))
  metadata = {
    'format': FORMAT,
    'config': json.dumps(dataclasses.asdict(config), sort_keys=True),
  }
  if masters:
    metadata['weights'] = _MASTERS
  if source:
    metadata[SOURCE] = source
    metadata[CONTENT] = hash_content(metadata, _list_parts(tensors))
  tensor_file.write(path, tensors, metadata)


def load(path: str | os.PathLike[str]) -> tuple[Any, model_config.ModelConfig]:
  """Returns the parameters and the model's config of an export.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: the file is no export of this format, its config has fields or
      values that this code does not know, or its tensors do not fit the config.
  """
  tensors, metadata = tensor_file.read(path, FORMAT)
  found = {name: (x.dtype.name, x.shape) for name, x in tensors.items()}
  config = read_config(path, metadata, found)
  if CONTENT in metadata:
    refuse_change(path, metadata, hash_content(metadata, _list_parts(tensors)))
  return build_tree(tensors), config


def hash_content(metadata: Mapping[str, str], parts: Iterable[Any]) -> str:
  """Returns the digest of an export's metadata and tensors.

  Args:
    metadata: those of the file; `CONTENT` is left out.
    parts: of each tensor, in the order of their names, `describe_tensor` and
      its bytes, in one or more buffers.
  """
  named = {k: v for k, v in metadata.items() if k != CONTENT}
  sums = hashlib.sha256(json.dumps(named, sort_keys=True).encode())
  for part in parts:
    sums.update(part)
  return sums.hexdigest()


def describe_tensor(name: str, dtype: str, shape: Sequence[int]) -> bytes:
  """Returns what the digest of the content takes before a tensor's bytes."""
  return f'{name} {dtype} {list(shape)}'.encode()


def _list_parts(tensors: Mapping[str, np.ndarray]) -> Iterator[Any]:
  for name, x in sorted(tensors.items()):
    yield describe_tensor(name, x.dtype.name, x.shape)
    yield np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def refuse_change(
  path: str | os.PathLike[str], metadata: Mapping[str, str], found: str
) -> None:
  """Raises ValueError if a file's content has not the digest that it names."""
  if metadata[CONTENT] != found:
    raise ValueError(
      f'{path}: content={metadata[CONTENT]!r}, but its bytes have {found!r}: it'
      ' is damaged; import the model again.'
    )


def read_config(
  path: str | os.PathLike[str],
  metadata: Mapping[str, str],
  found: Mapping[str, tuple[str, tuple[int, ...]]],
) -> model_config.ModelConfig:
  """Returns the config that an export's metadata hold.

  Args:
    path: the file.
    metadata: its metadata.
    found: its tensors' dtypes and shapes, which must be those of the config.

  Raises:
    ValueError: as `load`.
  """
  try:
    config = _config(metadata)
    _check(found, config, metadata.get('weights') == _MASTERS)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return config


def load_config(path: str | os.PathLike[str]) -> model_config.ModelConfig:
  """Returns the model's config of an export, without its parameters.

  Raises:
    OSError, ValueError: as `load`.
  """
  try:
    return _config(tensor_file.read_metadata(path, FORMAT))
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _config(metadata: Mapping[str, str]) -> model_config.ModelConfig:
  if 'config' not in metadata:
    raise ValueError('config: missing.')
  fields = strict_json.parse(metadata['config'])
  config = strict.parse(model_config.ModelConfig, fields)
  model_config.check(config)
  return config


def _check(
  found: Mapping[str, tuple[str, tuple[int, ...]]],
  config: model_config.ModelConfig,
  masters: bool,
) -> None:
  """Refuses tensors that `save` would not write for this config."""
  tree = shapes(config, masters)
  if _ROTATION in found and not masters:
    held = rotation.parameters(config.d_model)
    mix_JJ = rotation.mixing(config.feedforward, config.d_ff)
    tree = jax.eval_shape(lambda x: rotation.add(x, held, mix_JJ), tree)
  wanted = {
    _name(path): (leaf.dtype.name, leaf.shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
  for name in sorted(wanted.keys() | found.keys()):
    if found.get(name) != wanted.get(name):
      has, is_due = (
        'nothing' if one is None else f'{one[0]} {list(one[1])}'
        for one in (found.get(name), wanted.get(name))
      )
      raise ValueError(f'{name}: holds {has}, the config asks for {is_due}.')


def shapes(config: model_config.ModelConfig, masters: bool = False) -> Any:
  """Returns the tree of an export's shapes and dtypes, without computing it."""
  config = dataclasses.replace(
    config,
    quantization=dataclasses.replace(config.quantization, wire_weights='int8'),
  )
  params = transformer.parameter_shapes(config)
  if masters:
    return params
  return jax.eval_shape(lambda x: deployed.quantize(x, config), params)


def _name(tree_path) -> str:
  return '.'.join(
    str(getattr(key, 'key', getattr(key, 'name', key))) for key in tree_path
  )


def build_tree(tensors: Mapping[str, np.ndarray | jax.Array]) -> Any:
  """Returns the tree of an export's tensors; `Quantized` where it has codes."""
  tree: dict[str, Any] = {}
  for name, tensor in tensors.items():
    *parents, last = name.split('.')
    if last in int8.Quantized._fields:
      *parents, last = parents
      node = _descend(tree, parents)
      weight = node.get(last, int8.Quantized(None, None))
      field = name.rpartition('.')[2]
      node[last] = weight._replace(**{field: jnp.asarray(tensor)})
    else:
      _descend(tree, parents)[last] = jnp.asarray(tensor)
  return tree


def _descend(tree: dict[str, Any], parents: list[str]) -> dict[str, Any]:
  for name in parents:
    tree = tree.setdefault(name, {})
  return tree

"""Int8 codes of another library's model, kept in an export for quicker starts.

The file is an export (`own.py`), whose metadata hold a digest of the files that
the codes are made of and one of its own content. The codes have the bits of
those that `stream.py` makes of the folder itself. `--int8=weights` and `all`
share them.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import hashlib
import os
import pathlib
from typing import Any

import jax
import numpy as np

from kaiju_jax.interchange import generation
from kaiju_jax.interchange import own
from kaiju_jax.interchange import shards
from kaiju_jax.interchange import stream
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.sharding import rules
from kaiju_jax.storage import tensor_file

_DTYPES = {'I8': 'int8', 'F32': 'float32'}
_BLOCK = 2**22  # Bytes that are read, and then hashed, at once.


def hash_source(folder: pathlib.Path) -> str:
  """Returns the digest of the bytes of a folder's config and weights."""
  if gguf_folder.is_gguf(folder):
    sources = [folder]
  else:
    weights = {one.file for one in shards.list_tensors(folder)}
    sources = [folder / generation.CONFIG, *sorted(weights)]
  sums = hashlib.sha256()
  for path in sources:
    with open(path, 'rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
    sums.update(f'{path.name} {digest}\n'.encode())
  return sums.hexdigest()


def is_coded(path: str | os.PathLike[str]) -> bool:
  """Returns whether an export's file holds an import's codes.

  Raises:
    OSError, ValueError: see `own.load`.
  """
  return own.SOURCE in tensor_file.read_metadata(path, own.FORMAT)


def read(
  path: str | os.PathLike[str],
  quantization: quantization_config.QuantizationConfig,
  dtype: str = '',
) -> tuple[Any, model_config.ModelConfig, str]:
  """Returns parameters as decoding reads them, the config, and a digest.

  The parameters are as in `stream.py`. The digest is that of all the file's
  content; it is taken of the very bytes that the parameters hold, while they
  are read.

  Args:
    path: the file; `is_coded`.
    quantization: how the model is served.
    dtype: of activations; '' for that of the file.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is damaged, or the model is to be served in floats.
  """
  if not quantization_config.has_codes(quantization):
    raise ValueError(
      f"{path}: holds int8 codes alone, not for --int8='none': serve it as"
      ' weights or all, or the folder that it was imported from.'
    )
  metadata = tensor_file.read_metadata(path, own.FORMAT)
  stored = {one.name: one for one in shards.read_header(pathlib.Path(path))}
  found = {
    name: (_DTYPES.get(one.dtype, one.dtype), one.shape)
    for name, one in stored.items()
  }
  config = own.read_config(path, metadata, found)
  arrays: dict[str, np.ndarray] = {}
  digest = own.hash_content(metadata, _fill(stored, config, arrays))
  own.refuse_change(path, metadata, digest)
  # One at a time: a device that is no CPU takes a copy.
  tree = own.build_tree({k: jax.device_put(arrays.pop(k)) for k in [*arrays]})
  config = dataclasses.replace(
    config, quantization=quantization, dtype=dtype or config.dtype
  )
  model_config.check(config)
  return tree, config, digest


def _fill(
  stored: Mapping[str, shards.Stored],
  config: model_config.ModelConfig,
  arrays: dict[str, np.ndarray],
) -> Iterator[Any]:
  """Reads tensors, a layer's apart from the others'; yields what is hashed."""
  period = len(layers_lib.repeating_block(config.layers()))
  for name, one in sorted(stored.items()):
    yield own.describe_tensor(name, _DTYPES[one.dtype], one.shape)
    with open(one.file, 'rb', buffering=0) as file:
      file.seek(one.offset)
      for part, shape in _unstack(name, one.shape, period):
        dtype = _DTYPES[one.dtype]
        arrays[_turn(part)], view = _allocate(part, shape, dtype)
        rows = max(1, _BLOCK // max(1, view[:1].nbytes))
        for first in range(0, len(view), rows):
          place = view[first : first + rows]
          is_whole = place.flags.c_contiguous
          block = place if is_whole else np.empty(place.shape, dtype)
          shards.fill(file, block, one)
          yield block.reshape(-1).view(np.uint8)
          if not is_whole:
            place[...] = block


def _allocate(part: str, shape, dtype: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns an array as decoding reads it, and a view in the file's order."""
  if _turn(part) == part:
    leaf = stream.allocate(jax.ShapeDtypeStruct(shape, dtype))
    return leaf, leaf.reshape(-1)
  leaf = stream.allocate(jax.ShapeDtypeStruct((*shape[1:], shape[0]), dtype))
  return leaf, np.moveaxis(leaf, -1, 0)


def _turn(part: str) -> str:
  """Returns the name of a part of a weight in the form that decoding reads."""
  if stream.form_for_decoding() != stream.TURNED:
    return part
  return '.'.join(
    rules.turn(word) if word in rules.CONTRACTED else word
    for word in part.split('.')
  )


def _unstack(
  name: str, shape: tuple[int, ...], period: int
) -> list[tuple[str, tuple[int, ...]]]:
  """Returns names and shapes of the parts of a tensor, a layer each."""
  blocks, _, rest = name.partition('.')
  if blocks != 'blocks':
    return [(name, shape)]
  layer, _, rest = rest.partition('.')
  first = int(layer.removeprefix('layer_'))
  return [
    (f'blocks.layer_{first + repeat * period}.{rest}', shape[1:])
    for repeat in range(shape[0])
  ]

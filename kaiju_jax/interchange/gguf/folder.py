"""Writes what a GGUF file says beside its weights as a folder's small files.

    config.json              `metadata.py`
    tokenizer.json, tokenizer_config.json    `vocabulary.py`
    generation_config.json   the tokens that end a reply, and how its authors
                             draw text (`general.sampling`)

The folder lies in the user's cache, under a digest of its content, so that the
config of a run may name it. It has the file's name, so that errors show it.
"""

import atexit
from collections.abc import Mapping
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any
from typing import NamedTuple

from kaiju_jax.interchange import shards
from kaiju_jax.interchange.gguf import header as header_lib
from kaiju_jax.interchange.gguf import metadata
from kaiju_jax.interchange.gguf import vocabulary
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

SUFFIX = '.gguf'
_LICENSE = 64  # The most characters of its name.
_SAMPLING = {
  'temp': 'temperature',
  'penalty_repeat': 'repetition_penalty',
  'penalty_last_n': 'repeat_last_n',
}
# The most of a window; a larger one is the whole text.
_LAST = 1024


class Unpacked(NamedTuple):
  """What reading a file's model needs; its lists of tokens are not kept."""

  architecture: str  # `general.architecture`.
  tensors: Mapping[str, shards.Stored]  # As in `header.Header`.
  folder: pathlib.Path  # The folder of its small files.
  license: str  # `general.license`, such as 'apache-2.0'; '' for none.


def is_gguf(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is that of a GGUF file."""
  path = pathlib.Path(path)
  return path.suffix.lower() == SUFFIX and path.is_file()


def small_files(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the folder of a GGUF file's small files; another path as it is.

  Raises:
    OSError, ValueError: as `unpack`.
  """
  return unpack(path).folder if is_gguf(path) else pathlib.Path(path)


def license_of(path: str | os.PathLike[str]) -> str:
  """Returns the license that a GGUF file names; '' for none, or another path.

  Raises:
    OSError, ValueError: as `unpack`.
  """
  return unpack(path).license if is_gguf(path) else ''


def unpack(path: str | os.PathLike[str]) -> Unpacked:
  """Returns where a file's tensors lie, and its folder of small files.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the file, and the key or the tensor that is wrong.
  """
  path = pathlib.Path(path).resolve()
  status = path.stat()
  return _unpack(path, status.st_mtime_ns, status.st_size)


@functools.cache
def _unpack(path: pathlib.Path, changed: int, size: int) -> Unpacked:
  header = header_lib.read(path)
  try:
    contents = {
      'config.json': metadata.read(header),
      'generation_config.json': _generation(header.fields),
    }
    if metadata.TOKENS in header.fields:
      tokenizer, settings = vocabulary.files(header.fields)
      contents['tokenizer.json'] = tokenizer
      contents['tokenizer_config.json'] = settings
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None
  texts = {
    name: json.dumps(content, ensure_ascii=False)
    for name, content in contents.items()
  }
  folder = _write(path.name, texts)
  architecture = header.fields['general.architecture']
  named = str(header.fields.get('general.license', ''))[:_LICENSE]
  return Unpacked(architecture, header.tensors, folder, named)


def _write(name: str, texts: dict[str, str]) -> pathlib.Path:
  """Returns a folder of these files, in the cache, or else for this process."""
  digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode())
  cache = folders.user_cache()
  if cache is not None:
    folder = cache / 'gguf' / digest.hexdigest()[:32] / name
    try:
      with folders.write_whole(folder) as partial:
        _write_files(partial, texts)
      return folder
    except FileExistsError:
      return folder
    except OSError:  # Such as a file system that is only read.
      pass
  top = tempfile.mkdtemp(prefix='kaiju_gguf_')
  atexit.register(shutil.rmtree, top, ignore_errors=True)
  folder = pathlib.Path(top) / name
  folder.mkdir()
  _write_files(folder, texts)
  return folder


def _write_files(folder: pathlib.Path, texts: dict[str, str]) -> None:
  for name, text in texts.items():
    files.write_text(folder / name, text)


def _generation(fields: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields of generation_config.json."""
  count = len(fields.get(metadata.TOKENS, ()))
  ends = [vocabulary.token(fields, key, count) for key in ('eos', 'eot', 'eom')]
  # Others keep their names, by which they are told to be ignored.
  drawn = {
    _SAMPLING.get(name, name): value
    for key, value in fields.items()
    if (name := key.removeprefix('general.sampling.')) != key
  }
  if fields.get('general.sampling.penalty_last_n', 0) > _LAST:
    drawn['repeat_last_n'] = -1
  ends = [*dict.fromkeys(one for one in ends if one is not None)]
  return {**drawn, 'eos_token_id': ends}

"""Reads the corpora of a run: from text, in memory, or from a token store."""

import dataclasses
import os
import pathlib
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import holdout
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.store import shards as shards_lib
from kaiju_jax.storage import files
from kaiju_jax.storage import strict

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Settings:
  """What decides the bytes of a store."""

  data: str  # Hash of the text's files, their names and contents.
  tokenizer: str  # `tokenizer.digest`.
  held_out: float  # As `data.held_out`.
  column: str  # Of tables.
  shard: int  # Characters of a shard.
  version: int = VERSION


@dataclasses.dataclass(frozen=True)
class Manifest:
  """A store's settings; once it is whole, its shards."""

  settings: Settings
  sizes: tuple[int, ...] | None = None  # Bytes of each shard.
  # {part: `text.Corpus.record`}.
  records: Any = None

  @property
  def is_whole(self) -> bool:
    return self.sizes is not None


def check(config: data_config.DataConfig, vocab_size: int) -> None:
  """Refuses text, a store or a tokenizer that does not fit; reads no token.

  Raises:
    OSError, ValueError: see `documents.files`, `tokenizer.load` and
      `open_store`.
  """
  tokenizer = tokenizer_lib.load(config.tokenizer, vocab_size)
  if documents_lib.is_store(config.path):
    _open_for(config, tokenizer)
  elif config.path:
    documents_lib.files(config.path)


def load(
  config: data_config.DataConfig, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[text.Corpus, text.Corpus | None]:
  """Returns the training and the held-out corpus of `config.path`.

  Text is encoded in memory; a token store is read as its rows are.

  Returns:
    Both; the second is measured, and None where `config.held_out` is 0.

  Raises:
    OSError: a path that is missing, or a file that cannot be read.
    ValueError: files that are not text, or a single document that cannot be
      cut into training and held-out text; a store as in `open_store`.
  """
  if documents_lib.is_store(config.path):
    manifest, shards = _open_for(config, tokenizer)
    return read(shards, manifest.records)
  training, held_out = holdout.read(config.path, config.held_out)
  if not training:
    raise ValueError(f'data.path={config.path!r}: the files hold no text.')
  return (
    text.corpus(training, tokenizer),
    text.corpus(held_out, tokenizer, measured=True) if held_out else None,
  )


def read(
  shards: list[shards_lib.Shard], records: Any
) -> tuple[text.Corpus, text.Corpus | None]:
  """Returns the two corpora of a store's shards, with what it recorded."""
  return tuple(
    shards_lib.read_corpus(shards, part, records and records.get(part))
    for part in (shards_lib.TRAINING, shards_lib.HELD_OUT)
  )


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
  """Returns the manifest of a store, whole or begun.

  Raises:
    OSError: it cannot be read.
    ValueError: it is no manifest, or of another version.
  """
  path = pathlib.Path(os.path.expanduser(folder)) / documents_lib.STORE
  data = files.read_json(path)
  try:
    settings = data['settings']
    if settings['version'] != VERSION:
      raise ValueError(
        f'is a store of version {settings["version"]!r}, and this code reads'
        f' version {VERSION}. Make the store anew'
      )
    sizes = data['sizes']
    return Manifest(
      strict.parse(Settings, settings),
      None if sizes is None else tuple(map(int, sizes)),
      data['records'],
    )
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path}: {error}.') from error


def open_store(
  folder: str | os.PathLike[str], field: str
) -> tuple[Manifest, list[shards_lib.Shard]]:
  """Returns a whole store's manifest and shards, whose sizes are checked.

  Raises:
    OSError: a shard is missing, or cannot be read.
    ValueError: the store is not whole or of another version, or a shard is cut;
      names it.
  """
  manifest = read_manifest(folder)
  return manifest, _open_shards(manifest, folder, field)


def _open_shards(
  manifest: Manifest, folder: str | os.PathLike[str], field: str
) -> list[shards_lib.Shard]:
  """Returns the shards of a manifest, whose sizes are checked."""
  if manifest.sizes is None:
    raise ValueError(
      f'{field}={os.fspath(folder)!r}: is a token store that is not whole yet:'
      ' the command that began it goes on with it.'
    )
  found = []
  for number, size in enumerate(manifest.sizes):
    path = shard_path(folder, number)
    if not path.exists():
      raise FileNotFoundError(
        f'{field}={os.fspath(folder)!r}: {path.name} is missing, one of'
        f' {len(manifest.sizes)} shards. Bring it back, or make the store anew.'
      )
    shard = shards_lib.Shard(path)
    if shard.size != size:
      raise ValueError(
        f'{shard.path}: has {shard.size:,} bytes, and {size:,} when it was'
        ' written.'
      )
    found.append(shard)
  return found


def shard_path(folder: str | os.PathLike[str], number: int) -> pathlib.Path:
  """Returns the file of a shard."""
  root = pathlib.Path(os.path.expanduser(folder))
  return root / f'{number:06}.safetensors'


def _open_for(
  config: data_config.DataConfig, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[Manifest, list[shards_lib.Shard]]:
  """Returns a store; refuses one of another tokenizer or fraction."""
  manifest = read_manifest(config.path)
  settings = manifest.settings
  if settings.tokenizer != tokenizer_lib.digest(tokenizer):
    raise ValueError(
      f'data.tokenizer={config.tokenizer!r}: is not the tokenizer by which'
      f' data.path={config.path!r} was made.'
    )
  if settings.held_out != config.held_out:
    raise ValueError(
      f'data.held_out={config.held_out}: data.path={config.path!r} was made for'
      f' {settings.held_out}. Set that, or make another store.'
    )
  return manifest, _open_shards(manifest, config.path, 'data.path')

"""Reads the corpora of a run: from files, in memory, or from a token store."""

import dataclasses
import os
import pathlib
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text
from kaiju_jax.data import turns
from kaiju_jax.data.store import encoders
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
  # The encoder's (`encoders.py`); those that it has not are as here.
  task: str = 'text'  # As `data.task`.
  chat_template: str = ''  # `chat.Format.digest`.
  length: int = 0  # As `data.length`, if conversations are cut to it.
  end_weight: float = 1.0  # As `data.end_weight`.


@dataclasses.dataclass(frozen=True)
class Manifest:
  """A store's settings; once it is whole, its shards."""

  settings: Settings
  sizes: tuple[int, ...] | None = None  # Bytes of each shard.
  # {part: `text.Corpus.record`}, and `counts`, of `turns.Counts`.
  records: Any = None

  @property
  def is_whole(self) -> bool:
    return self.sizes is not None

  @property
  def counts(self) -> turns.Counts:
    """What was left out."""
    return turns.Counts(*self.records.get('counts', ()))


def check(config: data_config.DataConfig, encoder: encoders.Encoder) -> None:
  """Refuses files or a store that does not fit; reads no token.

  Raises:
    OSError, ValueError: see `documents.files` and `open_store`; or a setting of
      the store is another one, by its field.
  """
  if documents_lib.is_store(config.path):
    _open_for(config, encoder)
  elif config.path:
    documents_lib.files(config.path)


def load(
  config: data_config.DataConfig, encoder: encoders.Encoder | None = None
) -> tuple[text.Corpus, text.Corpus | None]:
  """Returns the training and the held-out corpus of `config.path`.

  Files are encoded in memory; a token store is read as its rows are. The
  default encodes text.

  Returns:
    Both; the second is None where `config.held_out` is 0, and measured of text.

  Raises:
    OSError: a path that is missing, or a file that cannot be read.
    ValueError: files that cannot be encoded, or too little in them to train on
      some and hold some out; a store as in `check`.
  """
  encoder = encoder or encoders.text_of(config)
  if documents_lib.is_store(config.path):
    manifest, shards = _open_for(config, encoder)
    parts, counts = read(shards, manifest.records), manifest.counts
  else:
    sides: tuple[list[Any], list[Any]] = [], []
    for one, is_held in encoder.stream(
      config.path, config.held_out, 'data.path', 'text'
    ):
      sides[is_held].append(one)
    (training, ours), (held_out, theirs) = (
      encoder.encode(own, measured)
      for own, measured in zip(sides, (False, True))
    )
    parts, counts = (training, held_out), ours + theirs
  check_parts(*parts, config.held_out, encoder, f'data.path={config.path!r}')
  encoder.say(counts)
  return parts


def check_parts(
  training: text.Corpus | None,
  held_out: text.Corpus | None,
  fraction: float,
  encoder: encoders.Encoder,
  place: str,
) -> None:
  """Refuses too little to train on some and to hold a fraction out.

  Raises:
    ValueError: names `place`, and what files must hold.
  """
  if training is None or (fraction and held_out is None):
    side = 'train on' if training is None else 'hold out'
    raise ValueError(f'{place}: the files hold no {encoder.unit}, to {side}.')


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
  config: data_config.DataConfig, encoder: encoders.Encoder
) -> tuple[Manifest, list[shards_lib.Shard]]:
  """Returns a store; refuses one of other settings or another fraction."""
  manifest = read_manifest(config.path)
  for name, ours in {**encoder.settings, 'held_out': config.held_out}.items():
    theirs = getattr(manifest.settings, name)
    if theirs != ours:
      hashed = name in encoders.HASHED
      raise ValueError(
        f'data.{name}={getattr(config, name)!r}: data.path={config.path!r} was'
        f' made for {"another one" if hashed else repr(theirs)}. Set that, or'
        ' make another store.'
      )
  return manifest, _open_shards(manifest, config.path, 'data.path')

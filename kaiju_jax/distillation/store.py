"""Keeps a teacher's sampled distributions of corpora in a folder, the store.

    manifest.json                 `Settings`; per corpus its shards
    CORPUS-00000.array_record     records (`record.py`), 256 in a shard, then
                                  its label
    .lock                         held by the process that writes

A shard's label is its own line of the manifest, with the settings, so that a
lost manifest is rebuilt from the shards.

The distribution that predicts corpus token t lies at t, so that a student may
read it in rows of any length, order and mix. A corpus is known by the hash of
its tokens (`data/text.digest`); one store may hold several. `write.py` adds to
a store, `read.py` reads it.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
from typing import Any
import zlib

from array_record.python import array_record_module
import zstandard

from kaiju_jax.distillation import config as config_lib
from kaiju_jax.distillation import record as record_lib
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.storage import strict_json

FILE = 'manifest.json'
FORMAT = 'kaiju_jax targets 1'
LOCK = '.lock'
_SUFFIX = '.array_record'
_BLOCK = 2**20
_LABEL = 2**24  # Most bytes of a label.
_REMEDY = 'The command that wrote the store makes it anew from the shards.'


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a store, which decide its bytes for a given corpus."""

  sampling: config_lib.Sampling  # How distributions are sampled.
  vocab_size: int  # V of the teacher.
  tokenizer: str  # Hash of the tokenizer (`data/tokenizer.hash_use`).
  teacher: str  # Hash of the teacher's parameters and config.
  length: int  # Tokens of a row that the teacher read.
  batch: int  # Rows that it read at a time.
  # The fraction of a row that is context for a long document's tokens.
  overlap: float = 0.25
  shard: int = 256  # Records in a whole shard.

  @property
  def form(self) -> record_lib.Form:
    return record_lib.form_of(self.sampling, self.vocab_size)


@dataclasses.dataclass(frozen=True)
class Shard:
  """One file of records."""

  file: str
  first: int  # Number of its first corpus token.
  end: int  # One past its last.
  size: int
  crc32: int  # The CRC-32 of these bytes.


@dataclasses.dataclass(frozen=True)
class CorpusEntry:
  """A store's entry for one corpus."""

  name: str  # For people.
  tokens: int  # Of the whole corpus.
  shards: tuple[Shard, ...] = ()  # The shards so far, in order, without gaps.

  @property
  def end(self) -> int:
    """One past the last token that the shards hold."""
    return self.shards[-1].end if self.shards else 0


@dataclasses.dataclass(frozen=True)
class Manifest:
  """A store's settings, and its corpora by their hashes."""

  settings: Settings
  corpora: Mapping[str, CorpusEntry]

  def bytes_per_token(self) -> float:
    """Returns the size of all shards over the number of their tokens."""
    shards = [shard for one in self.corpora.values() for shard in one.shards]
    tokens = sum(shard.end - shard.first for shard in shards)
    return sum(shard.size for shard in shards) / max(tokens, 1)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
  """Returns the manifest of a store.

  Raises:
    FileNotFoundError: the folder is no store.
    ValueError: an address, or a manifest that this code cannot read.
  """
  addresses.refuse(folder, str(folder))
  file = pathlib.Path(folder) / FILE
  if not file.exists():
    remedy = f' {_REMEDY}' if _shards(pathlib.Path(folder)) else ''
    raise FileNotFoundError(
      f'{file}: not found. A store is a folder that experiments.teach wrote.'
      f'{remedy}'
    )
  try:
    data = files.read_json(file)
  except ValueError as error:
    raise ValueError(f'{error} {_REMEDY}') from error
  try:
    return _parsed(data)
  except ValueError as error:
    raise ValueError(f'{file}: {error}') from error


def find(folder: pathlib.Path) -> Manifest | None:
  """Returns a store's manifest, rebuilt if it is lost; None for no store.

  Raises:
    ValueError: see `read_manifest`; or shards of several settings.
  """
  if is_lost(folder) and (rebuilt := _rebuilt(folder)) is not None:
    return rebuilt
  return read_manifest(folder) if (folder / FILE).exists() else None


def is_lost(folder: pathlib.Path) -> bool:
  """Returns whether the manifest is missing or no JSON."""
  try:
    files.read_json(folder / FILE)
  except (FileNotFoundError, ValueError):
    return True
  return False


def _shards(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.glob(f'[!.]*{_SUFFIX}'))


def _rebuilt(folder: pathlib.Path) -> Manifest | None:
  """Returns the manifest of all whole shards; None where there is none."""
  found = []
  for file in _shards(folder):
    with contextlib.suppress(ValueError):
      found.append(_labelled(file))
  if not found:
    return None
  settings = found[0].settings
  if any(one.settings != settings for one in found):
    raise ValueError(f'{folder}: holds shards of several settings.')
  corpora: dict[str, CorpusEntry] = {}
  for one in found:
    ((digest, taught),) = one.corpora.items()
    known = corpora.get(digest, dataclasses.replace(taught, shards=()))
    if known.end == taught.shards[0].first:
      shards = *known.shards, *taught.shards
      corpora[digest] = dataclasses.replace(known, shards=shards)
  return Manifest(settings, corpora)


def _labelled(file: pathlib.Path) -> Manifest:
  """Returns a manifest of one shard, from its label (ValueError: damaged)."""
  try:
    reader = array_record_module.ArrayRecordReader(str(file))
    try:
      *_, label = reader.read_all()  # Checks the library's own sums.
    finally:
      reader.close()
    manifest = _parsed(strict_json.parse(record_lib.inflate(label, _LABEL)))
  except (RuntimeError, zstandard.ZstdError) as error:
    raise ValueError(f'{file}: {error}') from error
  ((digest, taught),) = manifest.corpora.items()
  shard = dataclasses.replace(
    taught.shards[0], size=file.stat().st_size, crc32=crc32(file)
  )
  taught = dataclasses.replace(taught, shards=(shard,))
  return Manifest(manifest.settings, {digest: taught})


def label(settings: Settings, digest: str, taught: CorpusEntry) -> bytes:
  """Returns the label of a shard, the record behind its other records.

  Args:
    settings: the store's.
    digest: the corpus's hash.
    taught: the corpus's entry with this shard alone. The shard's size and
      CRC-32 are 0, because they are those of the file that will hold the label.
  """
  data = _dumped(Manifest(settings, {digest: taught}))
  return zstandard.compress(json.dumps(data, sort_keys=True).encode())


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> None:
  """Replaces a store's manifest in one step."""
  files.write_json(folder / FILE, _dumped(manifest))


def _dumped(manifest: Manifest) -> dict[str, Any]:
  corpora = {
    digest: strict.dump(one) for digest, one in manifest.corpora.items()
  }
  settings = strict.dump(manifest.settings)
  return {'format': FORMAT, 'settings': settings, 'corpora': corpora}


def _parsed(data: Any) -> Manifest:
  """Returns the manifest from which `_dumped` made `data`."""
  if not isinstance(data, dict) or data.get('format') != FORMAT:
    raise ValueError(f'format: must be {FORMAT!r}.')
  settings = strict.parse(Settings, data.get('settings'), 'settings')
  config_lib.check(settings.sampling)
  corpora = data.get('corpora', {})
  if not isinstance(corpora, dict):
    raise ValueError(f'corpora: must be an object, not {corpora!r}.')
  corpora = {
    digest: strict.parse(CorpusEntry, one, f'corpora.{digest}')
    for digest, one in corpora.items()
  }
  return Manifest(settings, corpora)


def check(folder: str | os.PathLike[str], taught: CorpusEntry) -> None:
  """Refuses a corpus with a shard that is missing or damaged.

  Raises:
    FileNotFoundError: a shard is missing; names it.
    ValueError: a shard is damaged, or some are not written yet.
  """
  for shard in taught.shards:
    if trouble := find_fault(pathlib.Path(folder), shard):
      kind = FileNotFoundError if trouble == 'missing' else ValueError
      raise kind(
        f'{pathlib.Path(folder) / shard.file}: {trouble}. The command that'
        ' wrote the store makes it anew, with the shards after it.'
      )
  if taught.end < taught.tokens:
    raise ValueError(
      f'{folder}: has {taught.end:,} of {taught.tokens:,} tokens of'
      f' {taught.name!r}. The command that began it goes on.'
    )


def find_fault(folder: pathlib.Path, shard: Shard) -> str:
  """Returns what is wrong with a shard's file; '' for nothing."""
  file = folder / shard.file
  if not file.is_file():
    return 'missing'
  size = file.stat().st_size
  if size != shard.size:
    return f'damaged: {size:,} bytes, {shard.size:,} were written'
  if (found := crc32(file)) != shard.crc32:
    return f'damaged: CRC-32 {found:08x}, {shard.crc32:08x} was written'
  return ''


def crc32(file: pathlib.Path) -> int:
  """Returns the CRC-32 of a file's bytes."""
  value = 0
  with open(file, 'rb') as opened:
    while block := opened.read(_BLOCK):
      value = zlib.crc32(block, value)
  return value


def records(
  file: str | os.PathLike[str], numbers: Sequence[int]
) -> list[bytes]:
  """Returns records of a shard by their numbers in it."""
  reader = array_record_module.ArrayRecordReader(str(file))
  try:
    return reader.read(list(numbers))
  finally:
    reader.close()

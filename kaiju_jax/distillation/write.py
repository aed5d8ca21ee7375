"""Writes a store shard by shard, so that a kill loses one shard at most.

One process writes at a time. Each shard is written beside its place and renamed
once it is whole; then the manifest names its range of tokens, its size and the
CRC-32 of its bytes. A process that stops early calls `save`, which leaves a
shorter shard. The next writer takes up that shard's records, so that the store
ends with the bytes of a run without interruption.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import os
import pathlib
from typing import Self

from array_record.python import array_record_module
import numpy as np

from kaiju_jax.distillation import record as record_lib
from kaiju_jax.distillation import store
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from kaiju_jax.storage import strict

# Records are compressed already, and read one by one.
_OPTIONS = 'group_size:1,uncompressed'


class Writer:
  """Adds one corpus's targets to a store, in the order of its tokens.

  A shard becomes visible when it is whole, or when `save` is called. The writer
  holds the store's lock until it is closed; use it in a `with`.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    settings: store.Settings,
    digest: str,
    name: str,
    tokens: int,
  ):
    """Makes or reopens a store.

    A damaged or missing shard is written again, and so are those after it. A
    lost manifest is rebuilt from the shards.

    Args:
      folder: the store; made where it does not exist.
      settings: the store's.
      digest, name, tokens: of the corpus, as in `store.CorpusEntry`.

    Raises:
      ValueError: see `check`.
      BlockingIOError: another process writes there.
      OSError: the folder cannot be made or written to.
    """
    check(folder, settings)
    self._folder = pathlib.Path(folder)
    self._settings = settings
    self._digest = digest
    self._tokens = tokens
    self._pending: list[record_lib.Targets] = []
    self._records: list[bytes] = []
    files.make_folder(self._folder)
    with contextlib.ExitStack() as stack:
      lock = self._folder / store.LOCK
      stack.enter_context(
        locks.hold(lock, f'store {self._folder}', 'writes', '--out')
      )
      self._take_up(name)
      self._held = stack.pop_all()

  def _take_up(self, name: str) -> None:
    """Continues where the last writer ended, even if it was killed."""
    check(self._folder, self._settings)  # Another may have made it just now.
    for partial in self._folder.glob(f'.*{files.PARTIAL}'):
      partial.unlink()
    known = store.find(self._folder) or store.Manifest(self._settings, {})
    if store.is_lost(self._folder):
      store.write_manifest(self._folder, known)
    taught = store.CorpusEntry(name, self._tokens)
    found = known.corpora.get(self._digest, taught)
    self._shards = _whole(self._folder, found)
    self._name = found.name
    if self._shards and not self._is_full(self._shards[-1]):
      last = self._shards.pop()
      count = -(-(last.end - last.first) // record_lib.TOKENS)
      self._records = store.records(self._folder / last.file, range(count))

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    """Releases the store to other writers; records not yet saved are lost."""
    self._held.close()

  def _is_full(self, shard: store.Shard) -> bool:
    size = self._settings.shard * record_lib.TOKENS
    return shard.end - shard.first == size or shard.end == self._tokens

  @property
  def next(self) -> int:
    """The number of the first token that the store lacks."""
    pending = sum(len(one.ids_NT) for one in self._pending)
    return self._recorded + pending

  @property
  def _recorded(self) -> int:
    first = self._shards[-1].end if self._shards else 0
    end = first + len(self._records) * record_lib.TOKENS
    return min(end, self._tokens)

  def add(self, targets: record_lib.Targets) -> None:
    """Adds the next tokens' targets; writes each whole shard (OSError)."""
    self._pending.append(targets)
    waiting = self.next - self._recorded
    if waiting < record_lib.TOKENS and self.next < self._tokens:
      return
    joined = record_lib.Targets(*map(np.concatenate, zip(*self._pending)))
    self._pending = []
    for block in record_lib.blocks(joined):
      is_last = self._recorded + len(block.ids_NT) == self._tokens
      if len(block.ids_NT) < record_lib.TOKENS and not is_last:
        self._pending = [block]
        return
      number = self._recorded // record_lib.TOKENS
      noise = self._settings.sampling.seed, number
      encoded = record_lib.encode(block, self._settings.form, noise)
      self._records.append(encoded)
      if is_last or len(self._records) == self._settings.shard:
        self.save()

  def save(self) -> None:
    """Writes the records that no shard holds yet, as a shard (OSError)."""
    if not self._records:
      return
    file = f'{self._digest[:12]}-{len(self._shards):05d}.array_record'
    first = self._shards[-1].end if self._shards else 0
    shard = store.Shard(file, first, self._recorded, 0, 0)
    alone = store.CorpusEntry(self._name, self._tokens, (shard,))
    label = store.label(self._settings, self._digest, alone)
    path = self._folder / file
    with files.writing(str(path)), files.replacing(path) as partial:
      _write(partial, [*self._records, label])
    shard = dataclasses.replace(
      shard, size=path.stat().st_size, crc32=store.crc32(path)
    )
    taught = dataclasses.replace(alone, shards=(*self._shards, shard))
    known = store.read_manifest(self._folder)
    corpora = {**known.corpora, self._digest: taught}
    store.write_manifest(
      self._folder, dataclasses.replace(known, corpora=corpora)
    )
    # The next shard replaces the file of one that is not full.
    if self._is_full(shard):
      self._shards.append(shard)
      self._records = []


def check(folder: str | os.PathLike[str], settings: store.Settings) -> None:
  """Refuses to add to a store of other settings; writes nothing.

  Raises:
    ValueError: names each setting with both values.
  """
  addresses.refuse(folder, str(folder))
  found = store.find(pathlib.Path(folder))
  if found is None:
    return
  differences = strict.differences(
    strict.dump(found.settings), strict.dump(settings)
  )
  if differences:
    lines = [
      f'{name}={ours!r} in this command, {theirs!r} in the store'
      for name, (theirs, ours) in differences.items()
    ]
    raise ValueError(
      f'{folder} holds a store of other settings: {"; ".join(lines)}. Repeat'
      ' them, or name a new folder.'
    )


def _whole(
  folder: pathlib.Path, taught: store.CorpusEntry
) -> list[store.Shard]:
  """Returns the shards before the first that is missing or damaged."""
  return list(
    itertools.takewhile(
      lambda shard: not store.find_fault(folder, shard), taught.shards
    )
  )


def _write(file: pathlib.Path, encoded: Sequence[bytes]) -> None:
  try:
    writer = array_record_module.ArrayRecordWriter(str(file), _OPTIONS)
    for one in encoded:
      writer.write(one)
    writer.close()
  except RuntimeError as error:  # The library's error for a full disk.
    raise OSError(str(error)) from error
  with open(file, 'rb') as written:
    os.fsync(written.fileno())

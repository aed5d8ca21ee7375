"""Reads a store's targets beside the rows that a student trains on.

`data/text.Rows` calls a `Reader` for each piece of a row, to get the entries of
a range of corpus tokens. The reader decodes whole records and keeps the latest
in memory. Rows are drawn from the whole corpus, so that more memory saves
decoding only where it holds the whole store.
"""

import bisect
import functools
import os
import pathlib

from array_record.python import array_record_module
import numpy as np

from kaiju_jax.distillation import record as record_lib
from kaiju_jax.distillation import store

_CACHE_BYTES = 256 * 2**20
# Records are small and read one at a time; reading ahead would be wasted.
_OPTIONS = 'readahead_buffer_size:0'
_BUFFER = 32_768


def check(
  folder: str | os.PathLike[str],
  *,
  entries: int,
  temperature: float,
  vocab_size: int,
  tokenizer: str,
) -> None:
  """Refuses a store that does not fit a student; reads only its manifest.

  Args:
    entries: T of the student's rows.
    temperature: divides the student's logits.
    vocab_size: V of the student.
    tokenizer: its hash (`data/tokenizer.hash_use`).

  Raises:
    FileNotFoundError: the folder is no store.
    ValueError: names the field, its value and what would be right.
  """
  settings = store.read_manifest(folder).settings
  _check_entries(folder, entries, settings.form)
  if temperature != settings.sampling.temperature:
    raise ValueError(
      f'objective.distillation.temperature={temperature}: must be'
      f' {settings.sampling.temperature}, at which {folder} was drawn.'
    )
  if tokenizer != settings.tokenizer:
    raise ValueError(
      f'data.tokenizer: is not the one of {folder}, whose targets are'
      ' probabilities of its own tokens.'
    )
  if vocab_size < settings.vocab_size:
    raise ValueError(
      f'model.vocab_size={vocab_size}: must be at least'
      f' {settings.vocab_size}, the vocabulary of {folder}.'
    )


def _check_entries(folder, entries: int, form: record_lib.Form) -> None:
  if entries < form.entries:
    raise ValueError(
      f'objective.distillation.entries={entries}: must be at least'
      f' {form.entries}, the entries of {folder}.'
    )


class Reader:
  """(first token, one past the last) → `ids_BLT` and `values_BLT`, [n, T].

  The ids are int32. The values are float32, the estimate q̂ of each entry's
  probability, 0 in empty slots and for tokens without a teacher.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    digest: str,
    entries: int | None = None,
  ):
    """Opens a store for one corpus, and checks each of the corpus's shards.

    Args:
      folder: the store.
      digest: hash of the corpus (`data/text.digest`).
      entries: T, the slots of each token; by default the store's.

    Raises:
      FileNotFoundError: there is no store, or a shard is missing.
      ValueError: another corpus, too few entries, or a damaged shard.
    """
    manifest = store.read_manifest(folder)
    self._folder = pathlib.Path(folder)
    self._form = manifest.settings.form
    self.entries: int = self._form.entries if entries is None else entries
    _check_entries(folder, self.entries, self._form)
    if digest not in manifest.corpora:
      known = ', '.join(
        f'{one.name!r} ({one.tokens:,} tokens)'
        for one in manifest.corpora.values()
      )
      raise ValueError(
        f'{folder}: holds targets of another corpus: {known or "none yet"}. The'
        ' data of teacher and student must be the same: path, tokenizer and'
        ' held_out.'
      )
    self._taught = manifest.corpora[digest]
    store.check(folder, self._taught)
    self._firsts = [shard.first for shard in self._taught.shards]
    self._opened = functools.cache(self._open)
    size = record_lib.TOKENS * self.entries * 8
    self._record = functools.lru_cache(max(2, _CACHE_BYTES // size))(self._read)

  def __call__(self, first: int, end: int) -> dict[str, np.ndarray]:
    """Returns the targets of the corpus's tokens `first`…`end` − 1.

    Raises:
      IndexError: a range that leaves the corpus.
    """
    if not 0 <= first <= end <= self._taught.tokens:
      raise IndexError(
        f'tokens {first}…{end - 1}: the corpus has {self._taught.tokens}.'
      )
    numbers = range(first // record_lib.TOKENS, -(-end // record_lib.TOKENS))
    begin = numbers.start * record_lib.TOKENS
    parts = [self._record(number) for number in numbers]
    ids_NT, values_NT = (
      (x[0] if len(x) == 1 else np.concatenate(x))[first - begin : end - begin]
      for x in zip(*parts)
    )
    return {'ids_BLT': ids_NT, 'values_BLT': values_NT}

  def _open(self, index: int):
    file = self._folder / self._taught.shards[index].file
    return array_record_module.ArrayRecordReader(
      str(file), _OPTIONS, file_reader_buffer_size=_BUFFER
    )

  def _read(self, number: int) -> record_lib.Targets:
    first = number * record_lib.TOKENS
    index = bisect.bisect_right(self._firsts, first) - 1
    place = (first - self._firsts[index]) // record_lib.TOKENS
    (data,) = self._opened(index).read([place])
    ids_NT, values_NT = record_lib.decode(data, self._form)
    free = (0, 0), (0, self.entries - self._form.entries)
    return record_lib.Targets(np.pad(ids_NT, free), np.pad(values_NT, free))

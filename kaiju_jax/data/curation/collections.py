"""Reads and writes collections of documents that flags name."""

from collections.abc import Iterable
from collections.abc import Sequence
import itertools
import json
import os
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.curation import similarity
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import shards
from kaiju_jax.storage import files


class Collection(NamedTuple):
  """Documents of one source or target."""

  name: str  # The name in reports.
  path: str  # A file, folder, glob or token store.
  # N documents, at least one; those of a store are read when asked for.
  documents: Sequence[documents_lib.Document]

  def tokens(
    self,
    tokenizer: tokenizer_lib.Tokenizer,
    track: similarity.Track = similarity.ignore_progress,
  ) -> np.ndarray:
    """Returns int64 [N], each document's tokens, BOS included."""
    pieces = (
      documents_lib.encode(one, tokenizer)
      for one in track(self.documents, 'counting tokens')
    )
    return np.array([len(piece.tokens) for piece in pieces])


class Texts(Sequence[str]):
  """The whole text of each document of some collections, in their order."""

  def __init__(self, *collections: Collection):
    self._collections = collections
    sizes = (len(one.documents) for one in collections)
    self._firsts = [0, *itertools.accumulate(sizes)]

  def __len__(self) -> int:
    return self._firsts[-1]

  def __getitem__(self, index: int | slice) -> str | list[str]:
    if isinstance(index, slice):
      return [self[one] for one in range(len(self))[index]]
    return documents_lib.text_of(self.document(index))

  def document(self, index: int) -> documents_lib.Document:
    """Returns the document of a text."""
    collection, number = self.place(index)
    return collection.documents[number]

  def place(self, index: int) -> tuple[Collection, int]:
    """Returns the collection of a text, and the document's number there."""
    place, number = shards.locate(self._firsts, index)
    return self._collections[place], number


def collection(name: str, path: str, field: str) -> Collection:
  """Reads documents; a single text file is cut into several.

  Args:
    name: the name in reports.
    path: a file, folder, glob or token store.
    field: the flag that errors name.

  Raises:
    OSError, ValueError: as `documents.read` or `corpora.open_store`; or there
      is no text.
  """
  if not path:
    raise ValueError(
      f'{field}: is missing; must be a file, folder or glob of text.'
    )
  if documents_lib.is_store(path):
    manifest, opened = corpora.open_store(path, field)
    if manifest.settings.task != 'text':
      raise ValueError(
        f'{field}={path!r}: is a store of {manifest.settings.task}; here it'
        ' must be of text.'
      )
    return Collection(name, path, shards.Documents(opened))
  found = list(documents_lib.read(path, chunked=True, field=field))
  if not found:
    raise ValueError(f'{field}={path!r}: the files hold no text.')
  return Collection(name, path, found)


def refuse_shared(
  path: str, others: Iterable[tuple[str, str]], field: str
) -> None:
  """Refuses a file that stands on both sides of a comparison.

  Args:
    path, field: a file, folder or glob, and its flag.
    others: (flag, file, folder or glob) of the other side.

  Raises:
    OSError, ValueError: see `documents.files`; or a shared file, by name.
  """
  own = _real(path, field)
  for other_field, other in others:
    shared = own & _real(other, other_field)
    if shared:
      raise ValueError(
        f'{field}={path!r}: {min(shared)} is also in {other_field}={other!r};'
        ' the two must share no file.'
      )


def _real(path: str, field: str) -> set[str]:
  if not path:
    return set()
  if documents_lib.is_store(path):
    return {os.path.realpath(os.path.expanduser(path))}
  found = documents_lib.files(path, field)
  return {os.path.realpath(file) for _, file in found}


def write_lines(
  path: pathlib.Path,
  documents: Iterable[tuple[documents_lib.Document, dict[str, Any]]],
) -> None:
  """Writes documents, with more keys for each, for `documents.read`.

  The file lies in a folder that is being written (`storage/folders.py`).
  """
  with (
    files.writing(str(path)),
    open(path, 'w', encoding='utf-8', newline='\n') as file,
  ):
    for document, more in documents:
      line = {'name': document.name} | more | documents_lib.record(document)
      file.write(json.dumps(line, ensure_ascii=False) + '\n')

"""Rows with choices between replies, and the reference's log-probabilities.

A reference's file is an .npz of two arrays per conversation, a hash of its
tokens and choices, and the log-probability of each of its replies; and of a
header with hashes of the model and of the tokenizer. So the numbers are made
once, and text that was added since is missed by name.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import json
import os
import pathlib
from typing import Any
from typing import NamedTuple
import zipfile

import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import packing
from kaiju_jax.data import text
from kaiju_jax.data import turns
from kaiju_jax.storage import files

# The names of a row's extras; `objectives/preference.py` reads them.
REPLY, GROUP, KEPT = 'reply_BL', 'group_BY', 'kept_BY'
REFERENCE = 'reference_BY'
_UNREADABLE = zipfile.BadZipFile, KeyError, TypeError


def count_slots(length: int) -> int:
  """Returns Y, more than the replies that fit in a row of `length` tokens.

  Slot 0 is free, and a reply has a token of text and an end.
  """
  return length // 2 + 1


class Reference(NamedTuple):
  """Log-probabilities of a reference model."""

  model: str  # Hash of the model.
  tokenizer: str  # Hash of its tokenizer's use (`tokenizer.hash_use`).
  # {hash of a conversation: float32 [replies], in their order}.
  log_p: Mapping[str, np.ndarray]


class ChoiceRows(loader.RowSource):
  """A row source whose rows carry their replies."""

  def __init__(
    self,
    rows: loader.RowSource,
    choices: Sequence[Sequence[turns.Choice]],
    reference: Sequence[np.ndarray] | None = None,
  ):
    """Makes the source.

    Args:
      rows: rows of a corpus of `turns.choices`; their `source` is a document.
      choices: the choices of each document.
      reference: the reference's log-probability of each document's replies, in
        their order; None for no reference.
    """
    self._rows = rows
    self._choices = choices
    self._reference = reference

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> packing.Row:
    row = self._rows[index]
    return row._replace(extras=self._extras(row.source))

  def locate(self, index: int) -> list[packing.Origin]:
    """Returns what stands in row `index`, in its order."""
    return self._rows.locate(index)

  def _extras(self, source_L: np.ndarray) -> dict[str, np.ndarray]:
    length = len(source_L)
    slots = count_slots(length)
    reply_L, group_Y = np.zeros(length, np.int32), np.zeros(slots, np.int32)
    kept_Y, log_p_Y = np.zeros((2, slots), np.float32)
    reply = group = 0
    documents, begins = np.unique(source_L, return_index=True)
    for document, begin in zip(documents.tolist(), begins.tolist()):
      if document < 0:
        continue
      first = reply + 1
      for choice in self._choices[document]:
        group += 1
        for number, (low, high) in enumerate(choice.spans):
          reply += 1
          reply_L[begin + low : begin + high] = reply
          group_Y[reply] = group
          kept_Y[reply] = number == choice.kept
      if self._reference is not None:
        log_p_Y[first : reply + 1] = self._reference[document]
    extras = {REPLY: reply_L, GROUP: group_Y, KEPT: kept_Y}
    return extras if self._reference is None else {**extras, REFERENCE: log_p_Y}


def hash_documents(corpus: text.Corpus) -> Iterator[str]:
  """Yields a hash of each document: its tokens, tree and choices."""
  for index, own in enumerate(corpus.choices):
    begin, end = corpus.begins[index : index + 2]
    sums = hashlib.blake2b(digest_size=16)
    sums.update(np.asarray(corpus.tokens[begin:end], np.int32).data)
    sums.update(np.asarray(corpus.parents[index], np.int64).data)
    sums.update(json.dumps([one.spans for one in own]).encode())
    yield sums.hexdigest()


def write_reference(path: str | os.PathLike[str], reference: Reference) -> None:
  """Writes a reference's file; `read_reference` returns the same.

  Raises:
    OSError: the file cannot be written.
  """
  hashes = list(reference.log_p)
  header = {'model': reference.model, 'tokenizer': reference.tokenizer}
  arrays = [reference.log_p[one] for one in hashes]
  with files.replacing(pathlib.Path(path)) as file, file.open('wb') as opened:
    np.savez(
      opened,
      header=np.array(json.dumps({**header, 'hashes': hashes})),
      counts=np.array([len(one) for one in arrays], np.int64),
      log_p=np.concatenate([*arrays, np.zeros(0)]).astype(np.float32),
    )


def read_reference(
  path: str | os.PathLike[str], field: str = 'data.reference'
) -> Reference:
  """Returns the reference of a file.

  Raises:
    FileNotFoundError: no such file.
    ValueError: not a file of `write_reference`.
  """
  try:
    with np.load(path) as held:
      if any(one.compress_type for one in held.zip.infolist()):
        raise ValueError('its arrays are compressed')
      header = json.loads(str(held['header']))
      ends = np.cumsum(held['counts'])
      parts = np.split(held['log_p'], ends)[:-1]
      found = dict(zip(header['hashes'], parts, strict=True))
    return Reference(header['model'], header['tokenizer'], found)
  except FileNotFoundError as error:
    raise FileNotFoundError(
      f'{field}={str(path)!r}: no such file; experiments.align --reference'
      ' writes one.'
    ) from error
  except (*_UNREADABLE, OSError, EOFError, ValueError) as error:
    raise ValueError(
      f'{field}={str(path)!r}: not a file of experiments.align --reference:'
      f' {error}'
    ) from error


def find_reference(
  reference: Reference,
  corpus: text.Corpus,
  field: str,
) -> list[np.ndarray]:
  """Returns the log-probabilities of each document's replies.

  Raises:
    ValueError: a document is not in the reference; names it.
  """
  found = []
  for name, one in zip(corpus.names, hash_documents(corpus)):
    if one not in reference.log_p:
      raise ValueError(
        f'{field}: has no numbers of {name}, which was added or changed since;'
        ' run experiments.align --reference again.'
      )
    found.append(reference.log_p[one])
  return found


def hash_values(found: Any) -> str:
  """Returns a hash of log-probabilities."""
  sums = hashlib.blake2b(digest_size=16)
  for one in found:
    sums.update(np.ascontiguousarray(one, np.float32).data)
  return sums.hexdigest()

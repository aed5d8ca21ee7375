"""Finds near-duplicates: documents that share most of their runs of five words.

Two documents are near-duplicates if the sets A and B of their 5-grams of words
have

    |A ∩ B| / |A ∪ B| ≥ 0.8.

There are too many pairs to compare all. MinHash (Broder 1997) keeps the first
5-gram of each set in each of 128 random orders of all 5-grams. It is the same
for A and B with a probability that is their Jaccard similarity J. The 128 are
cut into 16 bands of 8 rows, and a pair that agrees in a whole band is compared
exactly. That happens with probability 1 − (1 − J⁸)¹⁶: 0.95 at J = 0.8, 0.9999
at J = 0.9, 0.01 at J = 0.4.

A document of fewer than five words counts as one run, so that it duplicates
only its own copies. Our guess: the bands, the 5-grams and the 0.8, which are
the literature's usual values.
"""

import array
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import os
import tempfile
from typing import BinaryIO
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import words as words_lib
from kaiju_jax.data.curation import collections
from kaiju_jax.data.curation import similarity
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

KEPT = 'kept.jsonl'
GROUPS = 'groups.json'
BANDS, ROWS = 16, 8
LEAST = 0.8
WORDS = 5
_SEED = 5  # The orders are the same in every run.
_BLOCK = 65_536  # 5-grams that are hashed at once; they fit in a CPU cache.


class Clusters(NamedTuple):
  """The near-duplicates among N documents."""

  # int64 [N], for each document the first document of its group; itself where
  # it has no near-duplicate.
  group: np.ndarray
  # float64 [N], its Jaccard similarity with the first of its group; in a chain
  # of similar pairs it may be below the threshold.
  likeness: np.ndarray

  def list_kept(self) -> np.ndarray:
    """Returns int64, the first document of each group, in order."""
    return np.flatnonzero(self.group == np.arange(len(self.group)))

  def groups(self) -> list[np.ndarray]:
    """Returns the documents of each group with several, in order."""
    order = np.argsort(self.group, kind='stable')
    cuts = np.flatnonzero(np.diff(self.group[order])) + 1
    return [one for one in np.split(order, cuts) if len(one) > 1]


def find(
  texts: Sequence[str],
  bands: int = BANDS,
  rows: int = ROWS,
  least: float = LEAST,
  watch: similarity.Watch = similarity.ignore_progress,
) -> Clusters:
  """Returns the near-duplicates among N documents.

  Args:
    texts: the documents.
    bands, rows: the number of bands, and of each band's rows.
    least: the least Jaccard similarity of near-duplicates; 0 joins every pair
      that agrees in a band.
    watch: shows progress over the documents.
  """
  with tempfile.TemporaryFile() as file:
    sets, keys = _Sets(file), [np.zeros((0, bands), np.uint64)]
    for block in _blocks(words_lib.sets(watch(texts), WORDS)):
      sets.append(block)
      signatures_NR = _signatures(block, bands * rows)
      split_BRN = signatures_NR.T.reshape(bands, rows, len(block))
      keys.append(words_lib.runs(split_BRN.swapaxes(0, 1), rows)[0].T)
    keys_NB = np.concatenate(keys)
    parents = np.arange(len(keys_NB))
    for keys_N in keys_NB.T:
      for bucket in _buckets(keys_N):
        _join(sets, bucket, least, parents)
    group = np.array([_root(parents, x) for x in range(len(parents))], np.int64)
    likeness = np.ones(len(group))
    for one in np.flatnonzero(group != np.arange(len(group))):
      likeness[one] = jaccard(sets[group[one]], sets[one])
  return Clusters(group, likeness)


class _Sets:
  """The documents' sets, in a file: 8 bytes per document are in memory."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self._begins = array.array('q', [0])

  def append(self, sets: Sequence[np.ndarray]) -> None:
    self._file.seek(0, os.SEEK_END)
    for one in sets:
      self._file.write(one)
      self._begins.append(self._begins[-1] + one.nbytes)

  def __getitem__(self, index: int) -> np.ndarray:
    begin, end = self._begins[index], self._begins[index + 1]
    self._file.seek(begin)
    return np.frombuffer(self._file.read(end - begin), np.uint64)


class Duplicates(NamedTuple):
  """The near-duplicates of some collections."""

  texts: collections.Texts  # The documents, in the order of the paths.
  found: Clusters  # Their near-duplicates.


def find_in_files(
  paths: Sequence[str],
  least: float = LEAST,
  track: similarity.Track = similarity.ignore_progress,
) -> Duplicates:
  """Reads the paths and finds near-duplicates within and between them.

  Args:
    paths: files, folders or globs. The first document of a group is kept.
    least, track: as for `find`; shows progress.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  if not 0 < least <= 1:
    raise ValueError(f'--least={least}: must be a similarity, 0 < … ≤ 1.')
  if not paths:
    raise ValueError('--documents: is missing; must be paths of text.')
  for number, path in enumerate(paths):
    others = [('--documents', other) for other in paths[:number]]
    collections.refuse_shared(path, others, '--documents')
  given = [collections.collection(path, path, '--documents') for path in paths]
  texts = collections.Texts(*given)
  watch = functools.partial(track, what='reading documents')
  return Duplicates(texts, find(texts, least=least, watch=watch))


def write(result: Duplicates, out: str) -> None:
  """Writes kept.jsonl and groups.json into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  groups = result.found.groups()
  named = {}
  # A store is read once, in the order of its documents.
  for one in np.sort(np.concatenate([np.zeros(0, np.int64), *groups])):
    collection, number = result.texts.place(one)
    named[one] = {
      'path': collection.path,
      'name': collection.documents[number].name,
      'likeness': round(float(result.found.likeness[one]), 4),
    }
  with folders.write_whole(out) as folder:
    files.write_json(
      folder / GROUPS, [[named[one] for one in group] for group in groups]
    )
    kept = map(result.texts.document, result.found.list_kept())
    collections.write_lines(folder / KEPT, ((one, {}) for one in kept))


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
  """Returns the Jaccard similarity of two sorted arrays without repeats."""
  shared = len(np.intersect1d(one, other, assume_unique=True))
  return shared / (len(one) + len(other) - shared)


def _signatures(sets: Sequence[np.ndarray], count: int) -> np.ndarray:
  """Returns uint64 [N, count], each set's smallest hash in each random order.

  An order is that of a scrambled linear function of the members, which are
  hashes already.
  """
  rng = np.random.default_rng(_SEED)
  factors = rng.integers(0, 2**64, count, np.uint64) | np.uint64(1)
  shifts = rng.integers(0, 2**64, count, np.uint64)
  signatures = np.empty((len(sets), count), np.uint64)
  members = np.concatenate(sets)
  begins = np.cumsum([0, *(len(one) for one in sets[:-1])])
  for order in range(count):
    # The members are hashes already.
    hashes = words_lib.scramble(members * factors[order] + shifts[order])
    signatures[:, order] = np.minimum.reduceat(hashes, begins)
  return signatures


def _blocks(sets: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
  """Yields the sets of documents with about `_BLOCK` members together."""
  own, members = [], 0
  for one in sets:
    own.append(one)
    members += len(one)
    if members >= _BLOCK:
      yield own
      own, members = [], 0
  if own:
    yield own


def _buckets(keys_N: np.ndarray) -> Iterator[np.ndarray]:
  """Yields each set of several documents that agree in a band, in order."""
  order = np.argsort(keys_N, kind='stable')
  cuts = np.flatnonzero(np.diff(keys_N[order])) + 1
  for bucket in np.split(order, cuts):
    if len(bucket) > 1:
      yield bucket


def _join(sets, bucket, least, parents) -> None:
  """Joins each document of a bucket with the first that it resembles."""
  # Who resembles an earlier document is not compared with later ones, so that a
  # thousand copies cost a thousand comparisons.
  leaders = []
  for one in bucket:
    for leader in leaders:
      root, other = _root(parents, leader), _root(parents, one)
      if root == other:
        break
      if jaccard(sets[leader], sets[one]) >= least:
        parents[max(root, other)] = min(root, other)
        break
    else:
      leaders.append(one)


def _root(parents: np.ndarray, one: int) -> int:
  while parents[one] != one:
    parents[one] = parents[parents[one]]
    one = parents[one]
  return int(one)


def describe(result: Duplicates) -> str:
  """Returns what was found, a sentence."""
  total, kept = len(result.found.group), len(result.found.list_kept())
  return (
    f'{kept:,} of {total:,} documents are kept; {total - kept:,} are'
    f' near-duplicates in {len(result.found.groups()):,} groups.'
  )

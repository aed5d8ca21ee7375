"""Near-duplicates: documents that share most of their runs of five words.

Two documents are near-duplicates where the sets A and B of their 5-grams of
words have

    |A ∩ B| / |A ∪ B| ≥ 0.8.

All pairs are too many. MinHash (Broder 1997) keeps, for each of 128 random
orders of all 5-grams, the first one of each set: it is the same for A and B
with the probability of their Jaccard similarity J. The 128 are cut into 16
bands of 8 rows, and a pair that agrees in one whole band is compared exactly.
That happens with probability 1 − (1 − J⁸)¹⁶: 0.95 at J = 0.8, 0.9999 at
J = 0.9, 0.01 at J = 0.4.

A document of fewer than five words is one run, so that it is a duplicate of its
own copies only. Our guess: the bands, the 5-grams and the 0.8, which are the
literature's usual ones.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import similarity
from kaiju_jax.data import words as words_lib

BANDS, ROWS = 16, 8
LEAST = 0.8
WORDS = 5
_SEED = 5  # The orders are the same in every run.
_BLOCK = 65_536  # 5-grams whose hashes are made at once: they fit in a cache.


class Found(NamedTuple):
  """Near-duplicates among documents.

  Attributes:
    group: int64 [N], for each document the first one of its group, which is
      itself where it has no near-duplicate.
    likeness: float64 [N], its Jaccard similarity with the first of its group.
      In a chain, where each is like the next, it may be below what joins two.
  """

  group: np.ndarray
  likeness: np.ndarray

  def list_kept(self) -> np.ndarray:
    """Returns int64, the first document of each group, in order."""
    return np.flatnonzero(self.group == np.arange(len(self.group)))

  def groups(self) -> list[np.ndarray]:
    """Returns the documents of each group that has several, in order."""
    order = np.argsort(self.group, kind='stable')
    cuts = np.flatnonzero(np.diff(self.group[order])) + 1
    return [one for one in np.split(order, cuts) if len(one) > 1]


def find(
  texts: Sequence[str],
  bands: int = BANDS,
  rows: int = ROWS,
  least: float = LEAST,
  watch: similarity.Watch = similarity.ignore_progress,
) -> Found:
  """Returns the near-duplicates among documents.

  Args:
    texts: N documents.
    bands: how many bands.
    rows: rows of a band.
    least: the Jaccard similarity from which on two are near-duplicates; 0
      takes every pair that agrees in a band.
    watch: shows progress over the documents.
  """
  sets = list(words_lib.sets(watch(texts), WORDS))
  signatures = _signatures(sets, bands * rows)
  parents = np.arange(len(sets))
  for band in range(bands):
    rows_NR = signatures[:, band * rows : (band + 1) * rows]
    for bucket in _buckets(rows_NR):
      _join(sets, bucket, least, parents)
  group = np.array([_root(parents, one) for one in range(len(sets))], np.int64)
  likeness = [
    jaccard(sets[a], sets[b]) for a, b in zip(group, range(len(sets)))
  ]
  return Found(group, np.array(likeness))


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
  """Returns the similarity of two sets, each sorted and without repeats."""
  shared = len(np.intersect1d(one, other, assume_unique=True))
  return shared / (len(one) + len(other) - shared)


def _signatures(sets: Sequence[np.ndarray], count: int) -> np.ndarray:
  """Returns uint64 [N, count], each set's smallest hash in each random order.

  An order is that of the products with an odd random number: the members are
  hashes already.
  """
  rng = np.random.default_rng(_SEED)
  factors = rng.integers(0, 2**64, count, np.uint64) | np.uint64(1)
  shifts = rng.integers(0, 2**64, count, np.uint64)
  signatures = np.empty((len(sets), count), np.uint64)
  for first, last in _blocks([len(one) for one in sets]):
    members = np.concatenate(sets[first:last])
    begins = np.cumsum([0, *(len(one) for one in sets[first : last - 1])])
    for order in range(count):
      hashes = words_lib.scramble(members * factors[order] + shifts[order])
      signatures[first:last, order] = np.minimum.reduceat(hashes, begins)
  return signatures


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
  """Yields ranges of documents with about `_BLOCK` members each."""
  first = members = 0
  for last, size in enumerate(sizes, 1):
    members += size
    if members >= _BLOCK or last == len(sizes):
      yield first, last
      first, members = last, 0


def _buckets(rows_NR: np.ndarray) -> Iterator[np.ndarray]:
  """Yields the documents that agree in a band, several at a time, in order."""
  keys = words_lib.runs(rows_NR.T, len(rows_NR.T))[0]
  order = np.argsort(keys, kind='stable')
  cuts = np.flatnonzero(np.diff(keys[order])) + 1
  for bucket in np.split(order, cuts):
    if len(bucket) > 1:
      yield bucket


def _join(sets, bucket, least, parents) -> None:
  """Joins what is alike in a bucket, each with the first that is like it.

  A document that is like an earlier one need not be compared with later ones:
  they are compared with the earlier one. So a thousand copies cost a thousand
  comparisons.
  """
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

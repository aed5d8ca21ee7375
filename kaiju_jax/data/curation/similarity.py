"""Turns texts into vectors, in which a mix of texts is compared to a target.

From the sources: data mixes are made "as similar as possible to the task being
optimized for (e.g. similarity via T5 embedding)". An embedder turns N texts
into N vectors. The embedders here need no model:

    ngrams    frequencies of hashed words and pairs of words, 10,000 buckets:
              a row adds up to 1. The default, because it needs only the text
    lsa       the 64 strongest directions of the texts' tf-idf n-grams
    npy:FILE  rows that another program computed

`runs/embedders.py` has those that need a model, and parses the flag. All
embedders give a document one vector. A mix's vector is the mean of its
documents' vectors, weighted by their tokens, and so is linear in the mix's
weights (`mixing.py`). Our guess: everything but the idea of similarity.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import os
import pathlib
from typing import Any
from typing import Protocol

import numpy as np
from scipy import sparse

from kaiju_jax.data import words as words_lib

BUCKETS = 10_000
_DIRECTIONS = 64
_TEXTS = 4096  # Texts whose n-grams are in memory at a time.

# Float32 [N, D], dense or sparse.
Embedded = np.ndarray | sparse.csr_array
Watch = Callable[[Iterable], Iterable]
# (items, what is counted) → the items, whose progress is shown.
Track = Callable[[Iterable, str], Iterable]


def ignore_progress(items: Iterable[Any], what: str = '') -> Iterable[Any]:
  """Returns the items unchanged; a `Watch` and `Track` that show nothing."""
  return items


class Embedder(Protocol):
  """Turns texts into vectors."""

  name: str  # The flag's value.
  # Whether each row is a distribution: not negative, with sum 1.
  distributions: bool

  def embed(
    self, texts: Sequence[str], watch: Watch = ignore_progress
  ) -> Embedded:
    """Returns float32 [N, D], one row per text.

    Args:
      texts: all texts that will be compared, in one call, because an embedder
        may be fitted on them.
      watch: yields the items that it receives, and shows progress.

    Raises:
      ValueError: texts that cannot be embedded.
    """


class Ngrams:
  """Frequencies of hashed words and pairs of words."""

  name = 'ngrams'
  distributions = True

  def embed(
    self, texts: Sequence[str], watch: Watch = ignore_progress
  ) -> sparse.csr_array:
    counts = ngram_counts(texts, watch=watch)
    totals = np.maximum(counts.sum(axis=1), 1)
    return sparse.csr_array(
      sparse.diags_array((1 / totals).astype(np.float32)) @ counts
    )


class Lsa:
  """Latent semantic analysis: tf-idf n-grams in their strongest directions.

  With n_dj the count of bucket j in document d and N_j the documents that have
  it, x_dj = (1 + ln n_dj) · ln(N / N_j), with rows scaled to length 1. The
  vectors are X V, where V holds the right singular vectors of the largest
  singular values. Texts whose words share documents get similar vectors.
  """

  name = 'lsa'
  distributions = False

  def __init__(self, directions: int = _DIRECTIONS):
    self._directions = directions

  def embed(
    self, texts: Sequence[str], watch: Watch = ignore_progress
  ) -> np.ndarray:
    from scipy.sparse import linalg

    counts = ngram_counts(texts, watch=watch)
    present = np.bincount(counts.indices, minlength=BUCKETS)
    rarity = np.log(len(texts) / np.maximum(present, 1))
    weighted = counts.astype(np.float64)
    weighted.data = (1 + np.log(weighted.data)) * rarity[weighted.indices]
    lengths = np.sqrt(weighted.multiply(weighted).sum(axis=1))
    weighted = sparse.csr_array(
      sparse.diags_array(1 / np.maximum(lengths, 1e-12)) @ weighted
    )
    directions = min(self._directions, min(weighted.shape) - 1)
    if directions < 1 or not weighted.nnz or not np.any(weighted.data):
      raise ValueError(
        f'--embedder=lsa: {len(texts)} texts leave no direction to compare'
        ' along; give more texts that differ, or use ngrams.'
      )
    # A fixed start makes it deterministic. The sum over the documents is never
    # orthogonal to the first direction, because none of its values is negative.
    start = np.asarray(weighted.sum(axis=0 if _is_tall(weighted) else 1))
    _, values, right = linalg.svds(
      weighted, directions, v0=start + 1e-6, solver='arpack'
    )
    right = right[np.argsort(-values)]
    # A direction and its negative are equivalent: make the largest value
    # positive.
    largest = np.take_along_axis(
      right, np.argmax(np.abs(right), axis=1)[:, None], axis=1
    )
    return np.asarray(weighted @ (right * np.sign(largest)).T, np.float32)


def _is_tall(matrix: sparse.csr_array) -> bool:
  return matrix.shape[0] > matrix.shape[1]


class Npy:
  """Rows of a .npy file, in the order of the texts."""

  distributions = False

  def __init__(self, path: str | os.PathLike[str]):
    """Reads the file.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not an array of numbers [N, D].
    """
    self.name: str = f'npy:{path}'
    if not pathlib.Path(path).is_file():
      raise FileNotFoundError(
        f'--embedder={self.name}: no such file; expected a .npy of one row per'
        ' text, first those of the target, then those of each source.'
      )
    try:
      rows = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
      raise ValueError(
        f'--embedder={self.name}: not a .npy file of numbers: {error}'
      ) from error
    if (
      not isinstance(rows, np.ndarray)
      or rows.ndim != 2
      or rows.dtype.kind not in 'fiu'
      or not rows.shape[1]
    ):
      raise ValueError(
        f'--embedder={self.name}: must hold numbers [texts, dimensions], not'
        f' {getattr(rows, "dtype", "an archive")}'
        f' {list(getattr(rows, "shape", ()))}.'
      )
    if not np.all(np.isfinite(rows)):
      raise ValueError(
        f'--embedder={self.name}: holds values that are not finite.'
      )
    self._rows = rows.astype(np.float32)

  def embed(
    self, texts: Sequence[str], watch: Watch = ignore_progress
  ) -> np.ndarray:
    if len(self._rows) != len(texts):
      raise ValueError(
        f'--embedder={self.name}: holds {len(self._rows):,} rows for'
        f' {len(texts):,} texts; there must be one per text, first those of the'
        ' target, then those of each source.'
      )
    return self._rows


def ngram_blocks(texts: Iterable[str]) -> Iterator[sparse.csr_array]:
  """Yields `ngram_counts` of some thousand texts at a time."""
  left = iter(texts)
  while some := list(itertools.islice(left, _TEXTS)):
    yield ngram_counts(some)


def ngram_counts(
  texts: Sequence[str], buckets: int = BUCKETS, watch: Watch = ignore_progress
) -> sparse.csr_array:
  """Returns float32 [N, buckets], the counts of each text's hashed n-grams.

  The n-grams are the words, the punctuation marks, and the pairs of these that
  follow each other.
  """
  words = words_lib.Words(marks=True)
  indices, values, ends = [], [], [0]
  modulus = np.uint64(buckets)
  for text in watch(texts):
    found = words(text)
    grams = np.concatenate([found, words_lib.runs(found, 2)])
    counts = np.bincount((grams % modulus).astype(np.int64), minlength=1)
    present = np.flatnonzero(counts)
    indices.append(present.astype(np.int32))
    values.append(counts[present].astype(np.float32))
    ends.append(ends[-1] + len(present))
  return sparse.csr_array(
    (np.concatenate(values), np.concatenate(indices), np.array(ends)),
    shape=(len(texts), buckets),
  )

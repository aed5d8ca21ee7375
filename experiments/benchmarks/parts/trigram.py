"""A teacher that needs no training: a trigram over tokens of real text.

Its distributions have text's own shape, open and sure tokens side by side, over
a vocabulary of real size, and every part of p is above 0. Interpolated after
Witten and Bell (1991): with c(h, w) the occurrences of w behind a history h and
T(h) the different tokens seen there,

    p(w | h) = (c(h, w) + T(h) · p(w | h shorter by one)) / (c(h) + T(h))

and the empty history's shorter one is uniform.
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse
import tokenizers

from kaiju_jax.data import holdout


class Trigram:
  """p(w | the two tokens before), of a sequence of tokens."""

  def __init__(self, tokens: np.ndarray, vocab_size: int):
    """Counts.

    Args:
      tokens: int [n], at least three.
      vocab_size: V.
    """
    tokens = tokens.astype(np.int64)
    self._size = vocab_size
    unigram_V = np.bincount(tokens, minlength=vocab_size)
    kinds = np.count_nonzero(unigram_V)
    self._unigram_V = (unigram_V + kinds / vocab_size) / (len(tokens) + kinds)
    self._bigrams = self._counts(tokens[:-1], tokens[1:], vocab_size)
    pairs = tokens[:-2] * vocab_size + tokens[1:-1]
    self._pairs, rows = np.unique(pairs, return_inverse=True)
    self._trigrams = self._counts(rows, tokens[2:], len(self._pairs))

  def _counts(self, rows, tokens, height: int) -> scipy.sparse.csr_matrix:
    ones = np.ones(len(rows), np.float32)
    shape = height, self._size
    return scipy.sparse.csr_matrix((ones, (rows, tokens)), shape)

  def __call__(self, histories_N2: np.ndarray) -> np.ndarray:
    """Returns float64 [N, V], the distributions behind pairs of tokens."""
    histories_N2 = histories_N2.astype(np.int64)
    p_NV = np.broadcast_to(self._unigram_V, (len(histories_N2), self._size))
    p_NV = _interpolated(self._bigrams[histories_N2[:, 1]], p_NV)
    pairs_N = histories_N2[:, 0] * self._size + histories_N2[:, 1]
    rows_N = np.searchsorted(self._pairs, pairs_N)
    rows_N = np.minimum(rows_N, len(self._pairs) - 1)
    is_known_N = self._pairs[rows_N] == pairs_N
    p_NV[is_known_N] = _interpolated(
      self._trigrams[rows_N[is_known_N]], p_NV[is_known_N]
    )
    return p_NV


def _interpolated(counts: scipy.sparse.csr_matrix, p_NV: np.ndarray):
  kinds_N1 = np.diff(counts.indptr)[:, None]
  total_N1 = np.asarray(counts.sum(axis=1))
  is_seen_N1 = kinds_N1 > 0
  mixed_NV = counts.toarray() + kinds_N1 * p_NV
  return np.where(
    is_seen_N1, mixed_NV / np.maximum(total_N1 + kinds_N1, 1), p_NV
  )


def of_library(
  vocab_size: int, count: int, held_out: float = 0.1, path: str = ''
) -> tuple[Trigram, np.ndarray]:
  """Returns a teacher of the installed library's text, and histories [N, 2].

  The histories are `count` consecutive places of held-out documents, whose
  tokens the teacher has not counted.

  Args:
    vocab_size: V, of a byte-level BPE that is trained here.
    count: N.
    held_out: the fraction of the documents that the histories come from.
    path: other text; '' for the library's.

  Raises:
    ValueError: too little text held out.
  """
  training, unseen = (
    [segment for one in part for segment in one.segments]
    for part in holdout.read(path, held_out)
  )
  tokenizer = tokenizers.ByteLevelBPETokenizer()
  tokenizer.train_from_iterator(training, vocab_size, show_progress=False)
  teacher = Trigram(_encoded(tokenizer, training), vocab_size)
  found = _encoded(tokenizer, unseen)[: count + 1]
  if len(found) <= count:
    raise ValueError(
      f'count={count}: must be less than {len(found)}, the held-out tokens.'
    )
  return teacher, np.stack([found[:-1], found[1:]], axis=1)


def _encoded(tokenizer, texts) -> np.ndarray:
  found = tokenizer.encode_batch(texts)
  return np.concatenate([np.array(one.ids, np.int32) for one in found])


def blocks(
  teacher: Trigram, histories_N2: np.ndarray, size: int, power: float
) -> Iterator[np.ndarray]:
  """Yields float64 distributions [size, V], sharpened by `power`."""
  for begin in range(0, len(histories_N2), size):
    p_NV = teacher(histories_N2[begin : begin + size]) ** power
    yield p_NV / p_NV.sum(axis=1, keepdims=True)

"""Cuts a corpus of real text into rows, anew in every epoch.

The corpus is one flat array. In epoch e its documents follow each other in an
order drawn from (seed, e) and are cut into rows (`packing.offsets`). The rows
come in a second drawn order, so that a long document does not fill batch after
batch. A row is found by bisection when it is read: rows[i] depends only on the
corpus, the length, the seed and i, and costs the same for every i.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import holdout
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib


@dataclasses.dataclass(frozen=True)
class Corpus:
  """N encoded documents, in memory."""

  # [T], BOS before each document, in the smallest type that holds the
  # vocabulary.
  tokens: np.ndarray
  begins: np.ndarray  # int64[N + 1], where each document begins; then T.
  # {document's index: int[n], the parent of each of its n tokens}, for
  # documents that are trees.
  parents: Mapping[int, np.ndarray]
  names: tuple[str, ...]  # The N documents' names.
  # int32[T], how many bytes each token stands for (0 for BOS); None where the
  # corpus is not measured.
  token_bytes: np.ndarray | None = None
  # float32[T], the weight of each token's loss; None for ones.
  weights: np.ndarray | None = None
  # uint8[T, C], whether each token has a property (`data/spans.py`); None
  # without labels.
  labels: np.ndarray | None = None


def corpus(
  documents: Iterable[documents_lib.Document],
  tokenizer: tokenizer_lib.Tokenizer,
  measured: bool = False,
) -> Corpus:
  """Encodes documents, at least one, into one corpus.

  `measured` counts each token's bytes, which doubles the time.
  """
  dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
  tokens, token_bytes, parents, names = [], [], {}, []
  for index, document in enumerate(documents):
    piece = documents_lib.encode(document, tokenizer)
    tokens.append(piece.tokens.astype(dtype))
    names.append(document.name)
    if piece.parents is not None:
      parents[index] = piece.parents
    if measured:
      token_bytes.append(np.zeros(1, np.int32))
      token_bytes += map(tokenizer.measure, document.segments)
  return Corpus(
    tokens=np.concatenate(tokens),
    begins=np.concatenate([[0], np.cumsum([len(one) for one in tokens])]),
    parents=parents,
    names=tuple(names),
    token_bytes=np.concatenate(token_bytes) if measured else None,
  )


def digest(corpus: Corpus) -> str:
  """Returns a hash of a corpus's tokens, trees, weights and labels."""
  sums = hashlib.blake2b(str(corpus.tokens.dtype).encode(), digest_size=16)
  sums.update(corpus.tokens.data)
  sums.update(np.asarray(corpus.begins, np.int64).data)
  for index in sorted(corpus.parents):
    sums.update(index.to_bytes(8, 'little'))
    sums.update(np.asarray(corpus.parents[index], np.int64).data)
  if corpus.weights is not None:
    sums.update(np.asarray(corpus.weights, np.float32).data)
  if corpus.labels is not None:
    sums.update(repr(corpus.labels.shape).encode())
    sums.update(np.ascontiguousarray(corpus.labels, np.uint8).data)
  return sums.hexdigest()


def check(config: data_config.DataConfig, vocab_size: int) -> None:
  """Refuses text or a tokenizer that is missing, before any text is read.

  Raises:
    OSError, ValueError: see `documents.files` and `tokenizer.load`.
  """
  if config.path:
    documents_lib.files(config.path)
  tokenizer_lib.load(config.tokenizer, vocab_size)


def load(
  config: data_config.DataConfig, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[Corpus, Corpus | None]:
  """Reads `config.path` into a training and a held-out corpus.

  Returns:
    Both; the second is measured, and None where `config.held_out` is 0.

  Raises:
    OSError: a path that is missing, or a file that cannot be read.
    ValueError: files that are not text, or a single document that cannot be
      cut into training and held-out text.
  """
  training, held_out = holdout.read(config.path, config.held_out)
  if not training:
    raise ValueError(f'data.path={config.path!r}: the files hold no text.')
  return (
    corpus(training, tokenizer),
    corpus(held_out, tokenizer, measured=True) if held_out else None,
  )


# (first corpus token, one past the last) → {name: array [n, …]}.
Beside = Callable[[int, int], Mapping[str, np.ndarray]]


class _Epoch(NamedTuple):
  documents: np.ndarray  # The n-th document.
  begins: np.ndarray  # Its begin in the stream that is cut into rows.
  rows: np.ndarray  # The n-th of the stream's rows.


class Rows:
  """A row source over a corpus, epoch after epoch without end."""

  def __init__(
    self,
    corpus: Corpus,
    length: int,
    seed: int = 0,
    shuffle: bool = True,
    beside: Beside | None = None,
  ):
    """Makes the source; an epoch is laid out when a row of it is read.

    Args:
      corpus: the documents.
      length: L, tokens per row.
      seed: the seed of every epoch's order.
      shuffle: whether the order is drawn; otherwise it is the corpus's own in
        every epoch.
      beside: returns arrays that lie beside a range of the corpus's tokens,
        such as a teacher's targets. It is called for each document, or part of
        one, in a row, and the row's `extras` hold the result. None for no
        extras.

    Raises:
      ValueError: a tree that is longer than a row.
    """
    self._corpus = corpus
    self._length = length
    self._seed = seed
    self._shuffle = shuffle
    self._beside = beside
    self._sizes = np.diff(corpus.begins)
    self._whole = np.zeros(len(corpus.names), bool)
    self._whole[list(corpus.parents)] = True
    for index in corpus.parents:
      if self._sizes[index] > length:
        raise ValueError(
          f'data.length={length}: {corpus.names[index]} is a tree of'
          f' {self._sizes[index]} tokens, and trees are never cut; make rows'
          ' longer, or the tree smaller.'
        )
    self._epoch = functools.lru_cache(maxsize=2)(self._lay_out)
    self._firsts = [0]

  def __len__(self) -> int:
    """Returns the rows of the first epoch; with trees, epochs may differ."""
    return len(self._epoch(0).rows)

  def __iter__(self) -> Iterator[packing.Row]:
    """Yields the rows of the first epoch."""
    return (self[index] for index in range(len(self)))

  def __getitem__(self, index: int) -> packing.Row:
    """Returns row `index`, which may be any number from 0 on."""
    pieces = [self._piece(*place) for place in self._places(index)]
    return packing.row(pieces, self._length)

  @property
  def fill(self) -> float:
    """The mean fraction of a row's places that hold tokens.

    It is 1 without trees, because then all rows but an epoch's last are full.
    """
    if not self._corpus.parents:
      return 1.0
    return len(self._corpus.tokens) / (len(self) * self._length)

  def byte_count(self, index: int) -> int:
    """Returns the bytes of those tokens of row `index` that carry a loss.

    The corpus must be measured.
    """
    count = 0
    for document, low, high in self._places(index):
      # A piece's first token carries no loss.
      begin = self._corpus.begins[document]
      span = slice(begin + low + 1, begin + high)
      count += int(self._corpus.token_bytes[span].sum())
    return count

  def _places(self, index: int) -> list[tuple[int, int, int]]:
    """Returns row `index`'s pieces: (document, first token, one past)."""
    if index < 0:
      raise IndexError(f'row {index}: rows are counted from 0 on.')
    number, place = self._locate(index)
    epoch = self._epoch(number)
    begin = int(epoch.rows[place]) * self._length
    places = []
    first = np.searchsorted(epoch.begins, begin, 'right') - 1
    for nth in range(first, len(epoch.documents)):
      offset = int(epoch.begins[nth]) - begin
      if offset >= self._length:
        break
      document = int(epoch.documents[nth])
      low = max(0, -offset)
      high = min(int(self._sizes[document]), self._length - offset)
      places.append((document, low, high))
    return places

  def _piece(self, document: int, low: int, high: int) -> packing.Piece:
    begin = int(self._corpus.begins[document])
    first, end = begin + low, begin + high
    weights = self._corpus.weights
    return packing.Piece(
      tokens=self._corpus.tokens[first:end],
      parents=self._corpus.parents.get(document),
      weights=weights if weights is None else weights[first:end],
      source=document,
      extras=self._beside and self._beside(first, end),
    )

  def _locate(self, index: int) -> tuple[int, int]:
    """Returns the epoch of row `index`, and the row's place in it."""
    if not self._corpus.parents:
      return divmod(index, len(self))
    # Trees leave gaps that depend on the order, so epochs differ by a row or
    # so, and each epoch's beginning follows from the one before.
    while self._firsts[-1] <= index:
      size = len(self._epoch(len(self._firsts) - 1).rows)
      self._firsts.append(self._firsts[-1] + size)
    epoch = int(np.searchsorted(self._firsts, index, 'right')) - 1
    return epoch, index - self._firsts[epoch]

  def _lay_out(self, number: int) -> _Epoch:
    documents = np.arange(len(self._sizes))
    rng = np.random.default_rng((self._seed, number))
    if self._shuffle:
      rng.shuffle(documents)
    begins = packing.offsets(
      self._sizes[documents], self._whole[documents], self._length
    )
    rows = np.arange(-(-int(begins[-1]) // self._length))
    if self._shuffle:
      rng.shuffle(rows)
    return _Epoch(documents, begins, rows)

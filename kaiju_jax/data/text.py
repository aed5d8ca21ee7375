"""Cuts a corpus of real text into rows, anew in every epoch.

The corpus is one flat array, in memory or in a token store (`store/`). In epoch
e its documents follow each other in an order drawn from (seed, e) and are cut
into rows (`packing.offsets`). The rows come in a second drawn order, so that a
long document does not fill batch after batch. A row is found by bisection when
it is read: rows[i] depends only on the corpus, the length, the seed and i, and
costs the same for every i.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib

_HASHED = 2**24  # Tokens that are hashed at a time.
_COUNTED = 2**20  # Documents whose sizes are summed at a time.


@dataclasses.dataclass(frozen=True)
class Corpus:
  """N encoded documents, in memory, or in a store that reads what is asked."""

  # [T], BOS before each document, in the smallest type that holds the
  # vocabulary.
  tokens: np.ndarray
  begins: np.ndarray  # int64[N + 1], where each document begins; then T.
  # {document's index: int[n], the parent of each of its n tokens}, for
  # documents that are trees.
  parents: Mapping[int, np.ndarray]
  names: Sequence[str]  # The N documents' names.
  # int32[T], how many bytes each token stands for (0 for BOS); None where the
  # corpus is not measured.
  token_bytes: np.ndarray | None = None
  # float32[T], the weight of each token's loss; None for ones.
  weights: np.ndarray | None = None
  # uint8[T, C], whether each token has a property (`data/spans.py`); None
  # without labels.
  labels: np.ndarray | None = None
  # The `turns.Choice`s of each document; None where it has none.
  choices: Sequence[Sequence[Any]] | None = None
  # What a store has recorded: its `digest`, and, of training text, what
  # `same_text.describe` returns as `described`; None to compute them.
  record: Mapping[str, Any] | None = None


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
  if corpus.record is not None:
    return corpus.record['digest']
  sums = hashlib.blake2b(str(corpus.tokens.dtype).encode(), digest_size=16)
  for first in range(0, len(corpus.tokens), _HASHED):
    sums.update(corpus.tokens[first : first + _HASHED].data)
  sums.update(np.asarray(corpus.begins, np.int64).data)
  for index in sorted(corpus.parents):
    sums.update(index.to_bytes(8, 'little'))
    sums.update(np.asarray(corpus.parents[index], np.int64).data)
  if corpus.weights is not None:
    for first in range(0, len(corpus.tokens), _HASHED):
      weights = corpus.weights[first : first + _HASHED]
      sums.update(np.asarray(weights, np.float32).data)
  if corpus.labels is not None:
    sums.update(repr(corpus.labels.shape).encode())
    sums.update(np.ascontiguousarray(corpus.labels, np.uint8).data)
  return sums.hexdigest()


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
    trees = np.fromiter(corpus.parents, np.int64, len(corpus.parents))
    sizes = corpus.begins[trees + 1] - corpus.begins[trees]
    for index, size in zip(trees[sizes > length], sizes[sizes > length]):
      raise ValueError(
        f'data.length={length}: {corpus.names[index]} is a tree of {size}'
        ' tokens, and trees are never cut; make rows longer, or the tree'
        ' smaller.'
      )
    self._trees = trees
    # Rows are read in their order, so that one epoch is enough. It takes 16
    # bytes per document and 4 per row.
    self._epoch = functools.lru_cache(maxsize=1)(self._lay_out)
    self._firsts = [0]

  @functools.cached_property
  def _length_of_first(self) -> int:
    if len(self._trees):
      return len(self._epoch(0).rows)
    return -(-len(self._corpus.tokens) // self._length)

  def __len__(self) -> int:
    """Returns the rows of the first epoch; with trees, epochs may differ."""
    return self._length_of_first

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

  def locate(self, index: int) -> list[packing.Origin]:
    """Returns what stands in row `index`, in its order."""
    return [
      packing.Origin(self._corpus.names[document], low, high)
      for document, low, high in self._places(index)
    ]

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
      begins = self._corpus.begins
      size = int(begins[document + 1]) - int(begins[document])
      high = min(size, self._length - offset)
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
    begins = self._corpus.begins
    documents = np.arange(len(begins) - 1, dtype=_smallest(len(begins)))
    rng = np.random.default_rng((self._seed, number))
    if self._shuffle:
      rng.shuffle(documents)
    sizes = np.empty(len(documents), _smallest(begins[-1]))
    for first in range(0, len(documents), _COUNTED):
      some = documents[first : first + _COUNTED]
      sizes[first : first + _COUNTED] = begins[some + 1] - begins[some]
    whole = np.zeros(len(documents) if len(self._trees) else 0, bool)
    if len(self._trees):
      whole[self._trees] = True
      whole = whole[documents]
    begins = packing.offsets(sizes, whole, self._length)
    count = -(-int(begins[-1]) // self._length)
    rows = np.arange(count, dtype=_smallest(count))
    if self._shuffle:
      rng.shuffle(rows)
    return _Epoch(documents, begins, rows)


def _smallest(most: int) -> type:
  """Returns the type of numbers up to `most`, with room for one more."""
  return np.int32 if most < 2**31 - 1 else np.int64

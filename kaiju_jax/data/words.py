"""Hashes the words of texts, and runs of words, to compare texts by.

A word's hash is 64 bits of BLAKE2 over its lower-case characters, so that it is
the same in every process. A run of n words w_0 … w_{n−1} hashes to

    mix( Σ_i w_i · m^(n−1−i) mod 2^64 )

with an odd m; `mix` is an invertible scrambling (`scramble`) that lets every
bit of the sum reach every bit of the hash. Equal runs have equal hashes.
Different runs have equal hashes with a chance of about 2^-64 per pair.

Our guess: a word is a run of letters, digits and underscores, as in regular
expressions, in lower case. A character of Chinese or Japanese is a word by
itself, because no spaces separate words there.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import hashlib
import re

import numpy as np

_UNSPACED = '\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
_WORD = rf'[^\W{_UNSPACED}]+|[{_UNSPACED}]'
_WORDS = re.compile(_WORD)
_WORDS_AND_MARKS = re.compile(rf'{_WORD}|[^\w\s]')
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Words:
  """A hasher of words; it hashes a word that recurs once.

  Its memory grows with the vocabulary, by some hundred bytes per word.
  """

  def __init__(self, marks: bool = False):
    """Makes a hasher that knows no word.

    Args:
      marks: whether a punctuation mark counts as a word. Marks distinguish code
        from prose. Leave them out where an edited copy should still match.
    """
    self._pattern = _WORDS_AND_MARKS if marks else _WORDS
    self._hashes = _Hashes()

  def __call__(self, text: str) -> np.ndarray:
    """Returns uint64 [n], the hashes of the text's n words, in order."""
    found = self._pattern.findall(text.lower())
    return np.fromiter(
      map(self._hashes.__getitem__, found), np.uint64, len(found)
    )


class _Hashes(dict):
  def __missing__(self, word: str) -> int:
    digest = hashlib.blake2b(
      word.encode(errors='surrogatepass'), digest_size=8
    ).digest()
    self[word] = value = int.from_bytes(digest, 'little')
    return value


def runs(words: np.ndarray, size: int) -> np.ndarray:
  """Returns uint64 [max(0, n − size + 1), …], the hashes of all runs of words.

  Args:
    words: uint64 [n, …].
    size: words per run, at least 1.
  """
  count = max(0, len(words) - size + 1)
  sums = np.zeros((count, *words.shape[1:]), np.uint64)
  for first in range(size):
    sums *= _FACTOR
    sums += words[first : first + count]
  return scramble(sums)


def scramble(values: np.ndarray) -> np.ndarray:
  """Returns uint64 of the same shape, scrambled one to one (splitmix64)."""
  values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return values ^ (values >> np.uint64(31))


def sets(
  texts: Iterable[str], size: int, words: Words | None = None
) -> Iterator[np.ndarray]:
  """Yields the different runs of `size` words of each text: sorted uint64.

  A text of fewer words is one run as a whole. A text without words is hashed by
  its characters, so that no set is empty.
  """
  words = words or Words()
  for text in texts:
    found = words(text)
    if not len(found):
      value = int.from_bytes(
        hashlib.blake2b(
          text.encode(errors='surrogatepass'), digest_size=8
        ).digest(),
        'little',
      )
      yield np.array([value], np.uint64)
    else:
      yield np.unique(runs(found, min(size, len(found))))

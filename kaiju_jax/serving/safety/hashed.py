"""Hashes runs of characters or words into features, many at a time.

The results equal those of scikit-learn's HashingVectorizer to the bit, in numpy
alone: a run's hash h is the MurmurHash3 (x86, 32 bits, seed 0) of its UTF-8
bytes, as a signed number; its feature is |h| mod n, with the sign of h.

The bytes of a run are a slice of its text's bytes. So each text is encoded
once, and the hash's first step, on four bytes, runs once per byte of the text.
"""

from collections.abc import Sequence
import itertools
import re

import numpy as np

ANALYZERS = 'char', 'word'

# HashingVectorizer's token_pattern; its default leaves words of one letter out.
# A run of more than 32 letters is not a word, and would take long to hash.
WORD = r'\b\w{1,32}\b'
_WORDS = re.compile(WORD)
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _ADDED = np.uint32(5), np.uint32(0xE6546B64)
_TAILS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def features(hash_G: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the features [G], 0…size − 1, and their signs ±1 [G]."""
  # In 64 bits −2^31 has an absolute value.
  feature_G = np.abs(hash_G.astype(np.int64)) % size
  return feature_G, np.where(hash_G < 0, -1.0, 1.0)


def runs(
  texts: Sequence[str], analyzer: str, low: int, high: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns all runs of low…high characters or words of one text each.

  Args:
    texts: the texts; no surrogates, no two spaces in a row.
    analyzer: 'char' or 'word'; the words of a run are joined by a space.

  Returns:
    The runs' hashes, int32 [G], and the index of each run's text, [G].
  """
  if analyzer == 'word':
    each = [_WORDS.findall(text) for text in texts]
    data = ' '.join(itertools.chain.from_iterable(each)).encode()
    byte_L = np.frombuffer(data, np.uint8)
    last_W = np.append(np.flatnonzero(byte_L == ord(' ')), len(data))
    first_W = np.append(0, last_W[:-1] + 1)
  else:
    each = texts
    data = ''.join(texts).encode()
    # A character begins at each byte that is not a UTF-8 continuation byte.
    byte_L = np.frombuffer(data, np.uint8)
    first_W = np.flatnonzero((byte_L & 0xC0) != 0x80)
    last_W = np.append(first_W[1:], len(data))
  text_W = np.repeat(np.arange(len(texts)), list(map(len, each)))
  first, last, text = [], [], []
  for length in range(low, min(high, len(text_W)) + 1):
    count = len(text_W) - length + 1
    # A run begins and ends in the same text.
    inside = text_W[:count] == text_W[length - 1 :]
    first.append(first_W[:count][inside])
    last.append(last_W[length - 1 :][inside])
    text.append(text_W[:count][inside])
  if not first:
    return np.zeros(0, np.int32), np.zeros(0, np.int64)
  hash_G = murmur3(data, np.concatenate(first), np.concatenate(last))
  return hash_G, np.concatenate(text)


def murmur3(data: bytes, first_G: np.ndarray, last_G: np.ndarray) -> np.ndarray:
  """Returns int32 [G], MurmurHash3 (x86, 32 bits, seed 0) of parts of `data`.

  `last_G` is exclusive.
  """
  byte_L = np.frombuffer(data + bytes(4), np.uint8).astype(np.uint32)
  four_L = byte_L[:-3] | byte_L[1:-2] << 8
  four_L |= byte_L[2:-1] << 16 | byte_L[3:] << 24
  scrambled_L = _scramble(four_L)
  length_G = last_G - first_G
  blocks_G = length_G >> 2
  hash_G = np.zeros(len(first_G), np.uint32)
  for block in range(blocks_G.max(initial=0)):
    inside = np.flatnonzero(blocks_G > block)
    hash_I = hash_G[inside] ^ scrambled_L[first_G[inside] + 4 * block]
    hash_G[inside] = _rotate(hash_I, 13) * _FIVE + _ADDED
  tail_G = four_L[first_G + 4 * blocks_G] & _TAILS[length_G & 3]
  hash_G ^= _scramble(tail_G)
  hash_G ^= length_G.astype(np.uint32)
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    hash_G = (hash_G ^ (hash_G >> shift)) * np.uint32(factor)
  return (hash_G ^ (hash_G >> 16)).view(np.int32)


def _scramble(four: np.ndarray) -> np.ndarray:
  return _rotate(four * _C1, 15) * _C2


def _rotate(x: np.ndarray, by: int) -> np.ndarray:
  return x << by | x >> (32 - by)

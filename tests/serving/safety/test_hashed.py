"""Hashed runs, against scikit-learn's own and against MurmurHash3's values."""

import numpy as np
import pytest

from kaiju_jax.serving.safety import hashed
from kaiju_jax.serving.safety import reading
from tests.serving.safety import disguises

# Published test vectors of MurmurHash3, x86, 32 bits, seed 0, and one text
# whose hash has no absolute value in 32 bits.
KNOWN = {
  b'': 0,
  b'test': 0xBA6BD213,
  b'Hello, world!': 0xC0363E43,
  b'The quick brown fox jumps over the lazy dog': 0x2E4FF723,
}
_MASK = 0xFFFFFFFF


def unscrambled(wanted: int, first: bytes) -> bytes:
  """Returns `first` and four more bytes that hash to `wanted`, by inversion."""

  def rotated(x, by):
    return (x << by | x >> (32 - by)) & _MASK

  h = wanted
  h ^= h >> 16
  h = h * pow(0xC2B2AE35, -1, 2**32) & _MASK
  h ^= h >> 13 ^ h >> 26
  h = h * pow(0x85EBCA6B, -1, 2**32) & _MASK
  h ^= h >> 16
  h ^= len(first) + 4
  h = (h - 0xE6546B64) * pow(5, -1, 2**32) & _MASK
  before = 0
  for n in range(0, len(first), 4):
    k = int.from_bytes(first[n : n + 4], 'little') * 0xCC9E2D51 & _MASK
    before ^= rotated(k, 15) * 0x1B873593 & _MASK
    before = (rotated(before, 13) * 5 + 0xE6546B64) & _MASK
  k = (rotated(h, 19) ^ before) * pow(0x1B873593, -1, 2**32) & _MASK
  k = rotated(k, 17) * pow(0xCC9E2D51, -1, 2**32) & _MASK
  return first + k.to_bytes(4, 'little')


def smallest() -> str:
  """Returns eight ASCII characters whose hash is −2^31."""
  for n in range(10_000):
    data = unscrambled(0x80000000, f'{n:04}'.encode())
    if data.isascii() and data.decode().isprintable():
      return data.decode()
  raise AssertionError('none of 10,000 is ASCII')


def test_published_hashes():
  data = b''.join(KNOWN)
  ends = np.cumsum([len(x) for x in KNOWN])
  begins = ends - [len(x) for x in KNOWN]
  found = hashed.murmur3(data, begins, ends)
  assert (found.view(np.uint32) == list(KNOWN.values())).all()


def test_the_smallest_hash_has_a_feature():
  text = smallest()
  hash_G = hashed.murmur3(text.encode(), np.array([0]), np.array([8]))
  assert hash_G.tolist() == [-(2**31)]
  assert hashed.features(hash_G, 1000)[0].tolist() == [2**31 % 1000]


def oracle():
  return pytest.importorskip(
    'sklearn.feature_extraction.text', reason='scikit-learn is not installed'
  )


@pytest.mark.parametrize('analyzer', hashed.ANALYZERS)
@pytest.mark.parametrize('lengths', [(1, 1), (1, 3), (3, 6)])
def test_runs_hash_as_scikit_learn_hashes_them(analyzer, lengths):
  text_lib = oracle()
  from sklearn import utils

  vectorizer = text_lib.HashingVectorizer(
    analyzer=analyzer,
    ngram_range=lengths,
    token_pattern=hashed.WORD if analyzer == 'word' else None,
    lowercase=False,
  )
  rng = np.random.default_rng(2)
  texts = [
    reading.plain(disguises.random_text(rng, size)) for size in (0, 3, 200)
  ]
  texts += ['', 'a', 'the cat and the hat', 'w' * 33 + ' ' + 'v' * 32, 'x y']
  wanted, of = [], []
  for number, text in enumerate(texts):
    found = vectorizer.build_analyzer()(text)
    wanted += [utils.murmurhash3_32(run.encode(), seed=0) for run in found]
    of += [number] * len(found)
  hash_G, text_G = hashed.runs(texts, analyzer, *lengths)
  assert sorted(zip(text_G, hash_G)) == sorted(zip(of, wanted))
  assert len(wanted) > 50


@pytest.mark.parametrize('size', [2, 1000, 2**18])
def test_features_are_scikit_learns(size):
  text_lib = oracle()
  texts = [smallest(), 'some plain text', 'xyz' * 5]
  vectorizer = text_lib.HashingVectorizer(
    analyzer='char',
    ngram_range=(8, 8),
    norm=None,
    n_features=size,
    lowercase=False,
  )
  wanted_NV = vectorizer.transform(texts).toarray()
  hash_G, text_G = hashed.runs(texts, 'char', 8, 8)
  feature_G, sign_G = hashed.features(hash_G, size)
  found_NV = np.zeros_like(wanted_NV)
  np.add.at(found_NV, (text_G, feature_G), sign_G)
  np.testing.assert_array_equal(found_NV, wanted_NV)

"""Hashed runs, against scikit-learn's own and against MurmurHash3's values."""

import numpy as np
import pytest

from kaiju_jax.serving.safety import hashed
from kaiju_jax.serving.safety import reading
from tests.serving.safety import disguises

# Published test vectors of MurmurHash3, x86, 32 bits, seed 0.
KNOWN = {
  b'': 0,
  b'test': 0xBA6BD213,
  b'Hello, world!': 0xC0363E43,
  b'The quick brown fox jumps over the lazy dog': 0x2E4FF723,
}
SMALLEST = '0021=h2+'  # Its hash has no absolute value.


def test_published_hashes():
  data = b''.join(KNOWN)
  ends = np.cumsum([len(x) for x in KNOWN])
  begins = ends - [len(x) for x in KNOWN]
  found = hashed.murmur3(data, begins, ends)
  assert (found.view(np.uint32) == list(KNOWN.values())).all()


def test_the_smallest_hash_has_a_feature():
  hash_G = hashed.murmur3(SMALLEST.encode(), np.array([0]), np.array([8]))
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
  texts = [SMALLEST, 'some plain text', 'xyz' * 5]
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

"""Embedders that need no model."""

import re

import numpy as np
import pytest

from kaiju_jax.data.curation import similarity
from tests.data import planted

TEXTS = ['a b a b.', 'A b, c', 'd e f g', '']


def test_ngrams_are_the_frequencies_of_words_marks_and_pairs():
  rows = similarity.Ngrams().embed(TEXTS).toarray()
  assert rows.shape == (4, similarity.BUCKETS) and rows.dtype == np.float32
  # a b . and ab ba ab b.: nine in all, of which a, b and ab twice.
  found = np.sort(rows[0][rows[0] > 0])[::-1] * 9
  np.testing.assert_allclose(found, [2, 2, 2, 1, 1, 1], atol=1e-5)
  np.testing.assert_allclose(rows.sum(axis=1), [1, 1, 1, 0], atol=1e-6)
  assert rows[0] @ rows[1] > 0 == rows[0] @ rows[2]


def test_few_buckets_still_count_everything():
  counts = similarity.ngram_counts(TEXTS, buckets=3).toarray()
  np.testing.assert_array_equal(counts.sum(axis=1), [9, 7, 7, 0])


@pytest.fixture(scope='module')
def two_kinds():
  rng = np.random.default_rng(0)
  kinds = planted.distributions(2)
  return [
    *planted.texts(kinds[0], 40, 60, rng),
    *planted.texts(kinds[1], 40, 60, rng),
  ]


def test_lsa_is_the_strongest_directions_of_tf_idf(two_kinds):
  found = similarity.Lsa(directions=3).embed(two_kinds)
  assert found.shape == (80, 3) and found.dtype == np.float32
  counts = similarity.ngram_counts(two_kinds).toarray()
  present = np.maximum(np.sum(counts > 0, axis=0), 1)
  logs = np.log(np.maximum(counts, 1))
  weighted = (counts > 0) * (1 + logs) * np.log(80 / present)
  weighted /= np.linalg.norm(weighted, axis=1, keepdims=True)
  left, values, _ = np.linalg.svd(weighted, full_matrices=False)
  wanted = left[:, :3] * values[:3]
  np.testing.assert_allclose(np.abs(found), np.abs(wanted), atol=1e-5)


def test_lsa_is_deterministic_and_separates_kinds(two_kinds):
  one, other = (similarity.Lsa().embed(two_kinds) for _ in range(2))
  assert one.shape == (80, 64)
  np.testing.assert_array_equal(one, other)
  is_first = one @ (one[:40].mean(axis=0) - one[40:].mean(axis=0)) > 0
  assert is_first[:40].mean() > 0.95 and is_first[40:].mean() < 0.05


def test_lsa_refuses_texts_that_are_all_alike():
  with pytest.raises(ValueError, match='no direction'):
    similarity.Lsa().embed(['a b c'] * 5)


def test_npy_gives_its_rows_in_order(tmp_path):
  rows = np.arange(6.0).reshape(3, 2)
  np.save(tmp_path / 'v.npy', rows)
  found = similarity.Npy(tmp_path / 'v.npy').embed(['x', 'y', 'z'])
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize(
  'rows, message',
  [
    (None, 'no such file'),
    (b'text', 'not a .npy file'),
    (np.zeros(3), r'must hold numbers .*float64 \[3\]'),
    (np.array([['a']]), 'must hold numbers'),
    (np.full((3, 2), np.nan), 'not finite'),
    (np.zeros((2, 2)), 'holds 2 rows for 3 texts'),
  ],
)
def test_npy_refuses_what_is_not_a_row_per_text(tmp_path, rows, message):
  path = tmp_path / 'v.npy'
  if isinstance(rows, bytes):
    path.write_bytes(rows)
  elif rows is not None:
    np.save(path, rows)
  field = f'^--embedder=npy:{re.escape(str(path))}: .*{message}'
  with pytest.raises((OSError, ValueError), match=field):
    similarity.Npy(path).embed(['x', 'y', 'z'])

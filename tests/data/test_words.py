"""Hashes of words and of runs of words."""

import hashlib

import numpy as np
import pytest

from kaiju_jax.data import words as words_lib


def test_a_words_hash_is_of_its_characters_alone():
  """No process's hash seed has a part in it."""
  word = hashlib.blake2b(b'tree', digest_size=8).digest()
  found = words_lib.Words()('Tree, a TREE!')
  assert found.dtype == np.uint64
  assert found[0] == found[2] == int.from_bytes(word, 'little') != found[1]


@pytest.mark.parametrize(
  'text, count, with_marks',
  [
    ('', 0, 0),
    ('… -- !', 0, 4),
    ("it's x_1 + 2.5", 5, 8),
    ('猫が好き', 4, 4),
    ('GPU猫x', 3, 3),
    ('naïve\nÜber', 2, 2),
  ],
)
def test_what_a_word_is(text, count, with_marks):
  assert len(words_lib.Words()(text)) == count
  assert len(words_lib.Words(marks=True)(text)) == with_marks


@pytest.mark.parametrize('size', [1, 2, 5])
def test_equal_runs_have_equal_hashes_and_others_do_not(size):
  rng = np.random.default_rng(size)
  drawn = rng.integers(0, 4, 400)
  words = words_lib.scramble(drawn.astype(np.uint64))
  hashes = words_lib.runs(words, size)
  tuples = [tuple(drawn[i : i + size]) for i in range(len(drawn) - size + 1)]
  assert len(hashes) == len(tuples)
  assert len(set(hashes.tolist())) == len(set(tuples))
  assert len(set(zip(tuples, hashes.tolist()))) == len(set(tuples))


def test_a_run_longer_than_the_text_is_none():
  assert words_lib.runs(np.ones(3, np.uint64), 4).size == 0


def test_sets_are_never_empty_and_short_texts_are_one_run():
  short, same, other, marks = words_lib.sets(['a b', 'A, b', 'b a', '?!'], 5)
  assert len(short) == len(other) == len(marks) == 1
  assert short == same != other

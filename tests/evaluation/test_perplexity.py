"""Bits per byte against sums written out."""

import math

import numpy as np
import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation import perplexity


def test_bits_per_byte_of_known_models():
  # A uniform model over 256 bytes needs 8 bits for each.
  assert perplexity.bits_per_byte(math.log(256), 1) == pytest.approx(8)
  # One over 2¹⁶ tokens of four bytes each needs 16 bits for four bytes.
  assert perplexity.bits_per_byte(math.log(2**16), 4) == pytest.approx(4)


def test_unigram_against_a_sum_over_the_bytes():
  training, held_out = 'banana bandana', 'a new band'
  corpora = [
    text_lib.corpus(
      [documents_lib.Document('a', (text,))], tokenizer_lib.Bytes()
    )
    for text in (training, held_out)
  ]
  bits = [
    -math.log2((training.count(char) + 1) / (len(training) + 256))
    for char in held_out
  ]
  assert perplexity.unigram_bits_per_byte(
    *(corpus.byte_counts for corpus in corpora)
  ) == pytest.approx(sum(bits) / len(bits))


def test_unigram_comes_to_the_entropy_of_much_text():
  counts = np.zeros(256, np.int64)
  counts[:4] = [4_000_000, 2_000_000, 1_000_000, 1_000_000]
  got = perplexity.unigram_bits_per_byte(counts, counts)
  assert got == pytest.approx(1.75, abs=1e-3)
  assert got > 1.75

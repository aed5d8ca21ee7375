"""Bits per byte of models that are known."""

import math

import pytest

from kaiju_jax.evaluation import perplexity


def test_bits_per_byte_of_known_models():
  # A uniform model over 256 bytes needs 8 bits for each.
  assert perplexity.bits_per_byte(math.log(256), 1) == pytest.approx(8)
  # One over 2¹⁶ tokens of four bytes each needs 16 bits for four bytes.
  assert perplexity.bits_per_byte(math.log(2**16), 4) == pytest.approx(4)

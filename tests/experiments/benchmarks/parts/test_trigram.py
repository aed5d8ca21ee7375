"""The trigram's distributions, by hand."""

import numpy as np

from kaiju_jax.experiments.benchmarks.parts import trigram


def test_histories_fall_back_on_shorter_ones():
  """Tokens 0 1 0 2 0 1: behind (1, 0) came 2, behind 0 came 1, 2, 1."""
  teacher = trigram.Trigram(np.array([0, 1, 0, 2, 0, 1]), 4)
  # Three kinds in six tokens; a fourth has only its part of the uniform.
  unigram = (np.array([3, 2, 1, 0]) + 3 / 4) / 9
  behind_0 = (np.array([0, 2, 1, 0]) + 2 * unigram) / 5
  behind_1_0 = (np.array([0, 0, 1, 0]) + behind_0) / 2
  found = teacher(np.array([[1, 0], [3, 0], [0, 3]]))
  np.testing.assert_allclose(found, [behind_1_0, behind_0, unigram], rtol=1e-6)
  np.testing.assert_allclose(found.sum(axis=1), 1)

"""What the tests of the training room share."""

import pytest

from kaiju_jax.experiments.benchmarks.parts import (
  compilations as compilations_lib,
)


@pytest.fixture
def compilations():
  """`with compilations() as seen:` has an entry for each XLA compilation."""
  return compilations_lib.record

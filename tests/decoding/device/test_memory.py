"""The memory that a cache gets by default."""

import pytest

from kaiju_jax.decoding.device import memory


@pytest.mark.parametrize(
  'free, budget',
  [
    (16 * 2**30, 4 * 2**30),
    (16 * 2**30 - 1, 2 * 2**30),
    (8 * 2**30, 2 * 2**30),
    (5, 1),
    (0, 1),
  ],
)
def test_a_little_more_or_less_free_memory_is_the_same_cache(
  monkeypatch, free, budget
):
  monkeypatch.setattr(memory, 'measure_free', lambda devices: free)
  assert memory.budget_cache() == budget

"""The memory that a cache gets by default."""

import jax
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
  monkeypatch.setattr(memory, 'measure_free', lambda *_: free)
  assert memory.budget_cache() == budget


class Device:
  """An accelerator of 80 GB, a quarter of which something else has."""

  def memory_stats(self):
    return {'bytes_limit': 60 * 10**9, 'bytes_in_use': 0}


def test_a_cache_leaves_room_for_weights_that_are_not_placed_yet(monkeypatch):
  monkeypatch.setattr(jax, 'devices', lambda: [Device()] * 8)
  assert memory.measure_free(4) == 240 * 10**9
  assert memory.measure_free(4, 4 * 55 * 10**9) == 20 * 10**9
  assert memory.budget_cache(4) == 2**35
  assert memory.budget_cache(4, 4 * 55 * 10**9) == 2**32

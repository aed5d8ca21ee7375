"""How many pages a cache has."""

import pytest

from kaiju_jax.model import layers
from kaiju_jax.model import paging

STACK = layers.parse('L0 L0 G2 L3 G2', window=10)


def test_pools_by_hand():
  assert paging.pools(STACK, rows=3, length=33, page=4) == {
    # A local row: 9 tokens from before, up to 3 more in its first page.
    'local': paging.Pool((0, 3), 10, page=4, row_pages=3, pages=9),
    'global': paging.Pool((2,), None, page=4, row_pages=9, pages=27),
  }


@pytest.mark.parametrize('window', [1, 2, 3, 6, 11])
@pytest.mark.parametrize('page', [1, 2, 3, 5, 8])
def test_a_ring_always_holds_what_its_window_sees(window, page):
  """Whole pages leave; those of the last window − 1 tokens never do."""
  stack = (layers.Layer(window, 0),)
  (pool,) = paging.pools(stack, rows=1, length=1000, page=page).values()
  for end in range(1000):
    first = pool.turns(0, end) * page
    assert first <= max(end - (window - 1), 0)
    # The least whole pages that make room, in one turn or in two.
    assert end <= first + pool.row_slots < end + page or not first
    half = pool.turns(0, end // 2) * page
    assert half + pool.turns(half, end) * page == first
  # And a page less would not do, but that a row has at least one.
  fewer = (pool.row_pages - 1) * page
  assert not fewer or any(
    -(-max(end - fewer, 0) // page) * page > max(end - (window - 1), 0)
    for end in range(1000)
  )


def test_a_row_shorter_than_its_window_has_no_more_slots_than_tokens():
  pools = paging.pools(STACK, rows=1, length=5, page=4)
  assert {kind: pool.row_slots for kind, pool in pools.items()} == {
    'local': 8,
    'global': 8,
  }


def test_bad_sizes_are_refused():
  with pytest.raises(ValueError, match='rows=0: must be at least 1'):
    paging.pools(STACK, rows=0, length=8)
  with pytest.raises(ValueError, match='extra=-1: must be at least 0'):
    paging.pools(STACK, rows=1, length=8, extra=-1)
  with pytest.raises(ValueError, match=r'a global row of 8 tokens has 2 pages'):
    paging.pools(STACK, rows=2, length=8, page=4, pages={'global': 1})
  two = (layers.Layer(4, 0), layers.Layer(8, 1))
  with pytest.raises(ValueError, match=r'windows of \[4, 8\]'):
    paging.pools(two, rows=1, length=8)

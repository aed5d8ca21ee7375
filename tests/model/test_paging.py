"""How many pages a cache has."""

import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers
from kaiju_jax.model import paging

STACK = layers.parse('L0 L0 G2 L3 G2', window=10)


def test_pools_by_hand():
  assert paging.pools(STACK, rows=3, length=33, page=4) == {
    # A local row: 9 tokens from before, up to 3 more in its first page.
    'local': paging.Pool((0, 3), 10, page=4, row_pages=3, pages=9),
    'global': paging.Pool((2,), None, page=4, row_pages=9, pages=27),
  }


def test_windows_and_sinks_of_one_s_own_have_pools_of_their_own():
  stack = layers.parse('L0:10+4 L1 L0:10+4 G3 L4:10 L1 L6:10+4', window=3)
  pools = paging.pools(stack, rows=3, length=33, page=4, pages={'local3': 5})
  assert pools == {
    'local10+4': paging.Pool((0, 6), 10, 4, row_pages=4, pages=12, sinks=4),
    'local3': paging.Pool((1,), 3, 4, row_pages=2, pages=5),
    'global': paging.Pool((3,), None, 4, row_pages=9, pages=27),
    'local10': paging.Pool((4,), 10, 4, row_pages=3, pages=9),
  }
  two = paging.pools(layers.parse('L0 L1+1', 3), 1, 33)
  assert list(two) == ['local3', 'local3+1']
  # A stack whose local layers all see the same needs no other name.
  (pool,) = paging.pools(layers.parse('L0+9', 3), 1, 33, page=4).values()
  assert (pool.pinned, pool.row_pages) == (3, 5)
  # A text that ends within the sinks has each page once.
  (pool,) = paging.pools(layers.parse('L0+9', 3), 1, 5, page=4).values()
  assert (pool.pinned, pool.row_pages) == (2, 2)


@pytest.mark.parametrize('window', [1, 2, 3, 6, 11])
@pytest.mark.parametrize('page', [1, 2, 3, 5, 8])
@pytest.mark.parametrize('sinks', [1, 4, 5, 13])
def test_a_ring_with_sinks_holds_them_as_well(window, page, sinks):
  stack = (layers.Layer(window, 0, sinks=sinks),)
  (pool,) = paging.pools(stack, rows=1, length=1000, page=page).values()
  slot_M = np.arange(pool.row_slots)
  for end in range(200):
    turned = pool.turns(0, end) * page
    held = paging.spread(slot_M, turned, pool.pinned * page)
    assert len(np.unique(held)) == pool.row_slots
    lowest = max(end - (window - 1), 0)
    assert {*range(min(sinks, end)), *range(lowest, end)} <= {*held.tolist()}


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


@pytest.mark.parametrize(
  ('heads', 'devices', 'platform', 'page', 'stripes', 'own'),
  [
    (1, 1, 'tpu', 64, 1, 1),
    (1, 2, 'tpu', 64, 2, 1),
    (1, 8, 'tpu', 256, 8, 1),
    (1, 8, 'gpu', 64, 8, 1),
    (2, 8, 'tpu', 128, 4, 1),
    (8, 8, 'tpu', 64, 1, 1),
    (8, 4, 'tpu', 64, 1, 2),
    (1, 3, 'cpu', 192, 3, 1),
    (2, 6, 'tpu', 96, 3, 1),
  ],
)
def test_a_mesh_shares_pages_that_have_tiles(
  heads, devices, platform, page, stripes, own
):
  assert paging.choose_page(heads, devices, platform) == page
  sizes = {'rows': 2, 'length': 700, 'heads': heads, 'devices': devices}
  pools = paging.pools(STACK, page=page, **sizes)
  paging.check_platform(model_config.ModelConfig(), pools, platform)
  for pool in pools.values():
    assert (pool.stripes, pool.heads) == (stripes, own)
    assert pool.slots * stripes == page
  if page > paging.PAGE and platform == 'tpu':
    smaller = paging.pools(STACK, page=page // 2 // stripes * stripes, **sizes)
    with pytest.raises(ValueError, match=f'must be at least {32 * stripes} on'):
      paging.check_platform(model_config.ModelConfig(), smaller, platform)

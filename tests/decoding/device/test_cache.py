"""What a cache allocates, and how its rings turn."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.costs import describe
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.pages import pages
from kaiju_jax.decoding.pages import rows
from kaiju_jax.model import paging
from tests.decoding import toys


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'dtype': 'bfloat16'},
    {'quantization': toys.int8()},
    {'quantization': toys.int8(kv_scale='channel')},
    {'layout': 'G0 G0'},
    {'layout': 'L0:9+3 L1 G2 L3:9+3s'},
    {'quantization': toys.int8(), 'num_kv_heads': 3},
  ],
  ids=str,
)
def test_described_bytes_are_the_bytes_allocated(changes):
  config = toys.config(**changes)
  pools = paging.pools(
    config.layers(), rows=1, length=48, heads=config.num_kv_heads
  )
  allocated = cache_lib.bytes_of(cache_lib.make(config, pools, 1))
  assert allocated == paging.bytes_of(config, pools, 1)
  (row,) = describe.kv_table(config, [48]).rows
  assert row[1].endswith(f'\n{allocated:,} B')


def test_a_ring_turns_by_its_table_and_moves_no_key():
  """Three pages of four slots: of 14 tokens the last ten stay."""
  config = toys.config(layout='L0', window=6)
  pools = {'local': paging.Pool((0,), 6, page=4, row_pages=3, pages=9)}
  cache = cache_lib.make(config, pools, 2)
  account = row_1(pools)
  rotate = jax.jit(functools.partial(_turn_and_fill, pools))
  for begin, count in (0, 3), (3, 7), (10, 1), (11, 3):
    rings = turned(account, begin + count)
    offset_L = np.arange(count, dtype=np.int32)
    cache = rotate(cache, rings, np.int32(begin), offset_L)
  kind = cache.kinds['local']
  assert kind.table_RN.tolist() == [[-1, -1, -1], [1, 2, 0]]
  assert kind.first_R.tolist() == [0, 4]
  held = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
  assert kind.position_RM[1, :10].tolist() == held
  assert kind.start_RM[1].tolist() == [*held, 0, 0]
  assert kind.limit_RM[1].tolist() == [cache_lib.FOREVER] * 10 + [0, 0]
  # Tokens' keys, here their positions, where they were written.
  assert kind.k[0][1, :, 0].tolist() == [4, 5, 6, 7]
  assert kind.k[0][2, :, 0].tolist() == [8, 9, 10, 11]
  assert kind.k[0][0, :2, 0].tolist() == [12, 13]


@pytest.mark.parametrize('window', [2, 3, 5, 6])
def test_a_ring_keeps_what_its_window_reaches_and_turns_no_sooner(window):
  """After each token of a text, a page of 4: the last window − 1 are there."""
  config = toys.config(layout='L0', window=window)
  pools = paging.pools(config.layers(), rows=2, length=64, page=4)
  cache = cache_lib.make(config, pools, 2)
  pool = pools['local']
  account = row_1(pools)
  fill = jax.jit(functools.partial(_turn_and_fill, pools))
  for end in range(1, 24):
    rings = turned(account, end)
    cache = fill(cache, rings, np.int32(end - 1), np.zeros(1, np.int32))
    kind = cache.kinds['local']
    is_held_M = np.asarray(kind.limit_RM[1] > kind.start_RM[1])
    held = np.asarray(kind.position_RM[1])[is_held_M]
    reach = range(max(end - window + 1, 0), end)
    assert set(reach) <= set(held.tolist())
    # A page goes when the ring has no slot left, and not before.
    first = int(kind.first_R[1])
    assert first == max(-(-(end - pool.row_slots) // 4) * 4, 0)
    assert held.tolist() == list(range(first, end))


def test_a_tight_ring_reads_as_the_forward_pass():
  """Where window ≡ 2 mod page, a row has no slot more than it needs."""
  config = toys.config(
    layout='L0', window=6, d_model=16, num_heads=2, head_dim=8, d_ff=16
  )
  params = toys.drawn(config)
  tokens_BL = toys.tokens(config, 1, 21)
  decoder = decoder_lib.Decoder(params, config, rows=1, length=21, page=4)
  assert decoder.network.pools['local'].row_slots == 8
  row = decoder.open()
  logits = [
    decoder.logits(decoder.extend_text([row], tokens_BL[:, at : at + 1]))
    for at in range(21)
  ]
  want = toys.forward(params, config, tokens_BL)
  np.testing.assert_allclose(
    np.concatenate(logits, axis=1), want, atol=1e-4 * np.abs(want).max()
  )


def test_a_token_without_a_page_is_dropped():
  config = toys.config(layout='L0', window=6)
  pools = paging.pools(config.layers(), rows=2, length=64, page=4)
  cache = cache_lib.make(config, pools, 2)
  fill = jax.jit(functools.partial(_turn_and_fill, pools))
  rings = rows.Rows(pools, 2).rings()
  cache = fill(cache, rings, np.int32(1), np.zeros(1, np.int32))
  assert not cache.kinds['local'].k[0].any()


def row_1(pools) -> rows.Rows:
  """Returns an account in which row 1 alone is open."""
  account = rows.Rows(pools, 2)
  account.open(1)
  account.open(64)
  account.close(0)
  return account


def turned(account, end: int):
  account.grow({1: end}).keep()
  return account.rings()


def _turn_and_fill(pools, cache, rings, begin, offset_L):
  """Writes tokens whose keys are their positions to row 1."""
  row_B = np.array([1], np.int32)
  position_BL = (begin + offset_L)[None]
  cache = cache_lib.rotate(cache, pools, row_B, position_BL[:, -1] + 1, rings)
  forever_BL = position_BL * 0 + cache_lib.FOREVER
  visibility = visibility_lib.Visibility(
    position_BL, forever_BL, position_BL, position_BL, position_BL
  )
  slots = cache_lib.slots_of_text(
    cache, pools, row_B, position_BL, position_BL >= 0
  )
  keys = jax.numpy.repeat(position_BL[..., None], 16, axis=2).astype('float32')
  made = {0: cache_lib.past.KeyValue(keys, keys)}
  return cache_lib.write(cache, pools, row_B, visibility, slots, made)


def test_pages_are_taken_for_a_text_and_given_back():
  stack = toys.config(layout='L0 G1', window=6).layers()
  pools = paging.pools(
    stack, rows=3, length=32, page=4, pages={'global': 10, 'local': 9}
  )
  account = rows.Rows(pools, 3)
  row = account.open(20).row
  tables = account.table(row)
  assert tables['global'].tolist() == [0, 1, 2, 3, 4, -1, -1, -1]
  # A ring's pages come with the text.
  assert tables['local'].tolist() == [-1, -1]
  other = account.open(16, extra=2).row
  tables = account.table(other)
  assert tables['global'].tolist() == [5, 6, 7, 8, 9, -1, -1, -1]
  assert account.open_rows == (row, other) == (0, 1)
  with pytest.raises(pages.Full, match='needs 1 global pages and 0 are free'):
    account.open(1)
  account.close(row)
  row = account.open(3).row
  tables = account.table(row)
  assert (row, tables['global'][0]) == (0, 0)
  account.open(4)
  with pytest.raises(pages.Full, match='all 3 rows are open'):
    account.open(1)
  with pytest.raises(ValueError, match='row=7: is not open; open are'):
    account.close(7)
  with pytest.raises(ValueError, match='length=33, extra=0: a row of'):
    account.open(33)


def test_a_page_is_copied_for_each_of_its_heads():
  config = toys.config(layout='L0 G1', num_heads=4, num_kv_heads=2)
  pools = paging.pools(config.layers(), 1, 12, page=4, heads=2)
  cache = cache_lib.make(config, pools, 1)
  numbered = np.ones((1, 4, 16), np.float32) * np.arange(6)[:, None, None]
  kinds = {
    name: kind._replace(k=(numbered,), v=(numbered,))
    for name, kind in cache.kinds.items()
  }
  cache = jax.tree.map(jax.numpy.asarray, cache._replace(kinds=kinds))
  copies = {'global': np.array([[0, -1], [2, -1]])}
  kinds = cache_lib.copy_pages(cache, copies, tuple(pools.items())).kinds
  for name, want in (('global', [0, 1, 2, 3, 0, 1]), ('local', range(6))):
    for x_PSK in (kinds[name].k[0], kinds[name].v[0]):
      assert x_PSK[:, 0, 0].tolist() == [*want]


def test_a_settled_row_is_text_again():
  """Slots out of order, with holes, become positions from `first`, 4, on."""
  config = toys.config(layout='L0', window=20, quantization=toys.int8())
  pools = paging.pools(config.layers(), rows=2, length=12, page=4)
  cache = cache_lib.make(config, pools, 2)
  table_N = np.array([5, 2, 0], np.int32)
  cache = cache_lib.lend(cache, np.int32(1), {'local': table_N}, {}, ())
  at = np.array([[0, 3, 9, 7]])
  kind = cache.kinds['local']
  codes = kind.k[0].codes.reshape(-1, 16)
  place = kind.table_RN[1][at[0] // 4] * 4 + at[0] % 4
  marks = jax.numpy.arange(1, 5, dtype='int8')[:, None] + np.zeros(
    (1, 16), 'int8'
  )
  k = kind.k[0]._replace(codes=codes.at[place].set(marks).reshape(6, 4, 16))
  cache = cache._replace(kinds={'local': kind._replace(k=(k,))})
  source_M = np.full(12, -1, np.int32)
  source_M[:4] = at[0]
  settle = functools.partial(cache_lib.settle, pools=tuple(pools.items()))
  cache = jax.jit(settle)(
    cache,
    np.int32(1),
    {'local': source_M},
    {'local': np.int32(4)},
    np.int32(8),
  )
  kind = cache.kinds['local']
  assert kind.k[0].codes[5, :, 0].tolist() == [1, 2, 3, 4]
  assert kind.position_RM[1].tolist() == [4, 5, 6, 7] + [0] * 8
  assert kind.start_RM[1].tolist() == [4, 5, 6, 7] + [0] * 8
  assert kind.limit_RM[1].tolist() == [cache_lib.FOREVER] * 4 + [0] * 8
  assert kind.first_R.tolist() == [0, 4]
  assert cache.length_R.tolist() == [0, 8]

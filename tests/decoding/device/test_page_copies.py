"""Pages that leave a cache come back as they were, of any kind of cache."""

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.device import placement
from tests.decoding import toys


@pytest.mark.parametrize(
  'changes',
  [
    {'quantization': toys.int8()},
    {'num_kv_heads': 3, 'dtype': 'bfloat16', 'layout': 'L0 L1'},
    {'quantization': toys.int8(kv_scale='channel'), 'layout': 'G0 G1'},
    {'num_kv_heads': 2, 'tensor': 4},
  ],
  ids=str,
)
def test_pages_come_back_in_other_places_and_nothing_else_changes(changes):
  changes = dict(changes)
  tensor = changes.pop('tensor', 1)
  if tensor > 1:
    changes |= {'num_heads': 4, 'vocab_size': 64}
  config = toys.config(**changes)
  decoder = decoder_lib.Decoder(
    toys.drawn(config),
    config,
    rows=8,
    length=64,
    page=4,
    mesh=placement.make(tensor),
  )
  copies = page_copies.PageCopies(decoder, batch=16)
  rng = np.random.default_rng(0)
  pools = decoder.network.pools
  every = {
    kind: dict.fromkeys(range(pool.pages), 4) for kind, pool in pools.items()
  }
  before = {
    kind: rng.integers(0, 60, (len(x), copies.page_bytes[kind]), np.uint8)
    for kind, x in every.items()
  }
  copies.put({kind: [*x] for kind, x in every.items()}, before)
  read = copies.take(every).read()
  for kind in every:
    np.testing.assert_array_equal(read[kind], before[kind])
  # A copy is what the pages held when it was asked for.
  pending = copies.take(every)
  zeros = {kind: np.zeros_like(x) for kind, x in before.items()}
  copies.put({kind: [*x] for kind, x in every.items()}, zeros)
  read = pending.read()
  for kind in every:
    np.testing.assert_array_equal(read[kind], before[kind])
  copies.put({kind: [*x] for kind, x in every.items()}, before)
  # More than one call takes, and of each kind another number.
  some = {kind: [*x][5:-1] for kind, x in every.items()}
  assert max(map(len, some.values())) > copies.batch
  moved = {kind: x[::-1] for kind, x in some.items()}
  read = {kind: dict.fromkeys(x, 4) for kind, x in some.items()}
  copies.put(moved, copies.take(read).read())
  for kind, x in copies.take(every).read().items():
    want = before[kind].copy()
    want[moved[kind]] = before[kind][some[kind]]
    np.testing.assert_array_equal(x, want)
  size = sum(
    x.nbytes
    for kind in decoder.cache.kinds.values()
    for x in jax.tree.leaves((kind.k, kind.v))
  )
  assert size == sum(
    copies.page_bytes[kind] * pool.pages for kind, pool in pools.items()
  )


def test_behind_what_points_read_a_copy_is_zero():
  config = toys.config(num_kv_heads=3, quantization=toys.int8())
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=1, length=64, page=4
  )
  copies = page_copies.PageCopies(decoder)
  full = {'global': {2: 4, 3: 4}, 'local': {1: 4}}
  ones = {
    kind: np.ones((len(x), copies.page_bytes[kind]), np.uint8)
    for kind, x in full.items()
  }
  copies.put({kind: [*x] for kind, x in full.items()}, ones)
  read = copies.take({'global': {2: 3, 3: 0}, 'local': {1: 4}}).read()
  assert (read['local'] == ones['local']).all()
  assert not read['global'][1].any()
  assert read['global'][0].sum() * 4 == copies.page_bytes['global'] * 3

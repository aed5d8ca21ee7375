"""A life of rows that a mesh must repeat: chunks, sharing, forks, settling."""

import jax
import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from tests.decoding import toys

LENGTH, PAGE, SHARED = 64, 16, 37


def config(
  quantization: quantization_config.QuantizationConfig | None = None, **changes
) -> model_config.ModelConfig:
  """Two owners, each with a reader; rings of two pages, which turn twice."""
  fields = {
    'layout': 'L0 L0 G2 G2',
    'num_heads': 8,
    'vocab_size': 64,
    'd_ff': 64,
    'window': 11,
    'quantization': quantization or toys.int8(),
  }
  return toys.config(**fields | changes)


def decoder(config, tensor: int, mode: str = 'fast'):
  """Returns a decoder of three rows on the first `tensor` devices."""
  return decoder_lib.Decoder(
    toys.drawn(config),
    config,
    rows=3,
    length=LENGTH,
    page=PAGE,
    mode=mode,
    mesh=placement.make(tensor) if tensor > 1 else None,
  )


def texts(config) -> np.ndarray:
  """Returns two texts that begin alike, up to within a page."""
  tokens_BL = toys.tokens(config, 2)
  tokens_BL[1, :SHARED] = tokens_BL[0, :SHARED]
  return tokens_BL


class Life:
  """Rows of one decoder, and the logits of each token that they took."""

  def __init__(self, decoder, widths: tuple[int, ...]):
    self.decoder, self.widths = decoder, widths
    self.tokens_BL = texts(decoder.config)
    self.logits: list[np.ndarray] = []

  def extend(self, rows: dict[int, int], count: int) -> None:
    """Appends so many tokens to rows, by text, in the largest chunks."""
    parts = []
    while count:
      width = next((x for x in self.widths if x <= count), self.widths[-1])
      taken = min(width, count)
      call_BL = np.zeros((len(rows), width), np.int32)
      for b, (row, text) in enumerate(rows.items()):
        at = self.decoder.length_of(row)
        call_BL[b, :taken] = self.tokens_BL[text, at : at + taken]
      counts = [taken] * len(rows)
      hidden_BLD = self.decoder.extend_text(list(rows), call_BL, counts)
      logits_BLV = self.decoder.logits(hidden_BLD)
      parts.append(np.asarray(logits_BLV)[:, :taken])
      count -= taken
    self.logits.append(np.concatenate(parts, axis=1).reshape(-1, 64))

  def run(self) -> np.ndarray:
    """Lives: a text, one that resumes it within a page, a fork, a search."""
    decoder = self.decoder
    first, idle = decoder.open(LENGTH), decoder.open(LENGTH)
    self.extend({first: 0, idle: 1}, SHARED + 1)
    decoder.close(idle)
    text = prefix_tree.Text(self.tokens_BL[0, : SHARED + 1])
    decoder.record(first, text)
    other = decoder.open(LENGTH, text=prefix_tree.Text(self.tokens_BL[1]))
    assert decoder.length_of(other) == SHARED
    # Both write behind what they share, and turn their rings a second time.
    self.extend({other: 1, first: 0}, LENGTH - SHARED - 9)
    self.forget(first, 3)
    self.extend({first: 0, other: 1}, 6)
    self.check()
    return np.concatenate(self.logits)

  def check(self) -> None:
    """Checks what all devices hold: tables alike, and a part of each page."""
    cache, pools = self.decoder.cache, self.decoder.network.pools
    devices = self.decoder.network.devices
    for name, kind in cache.kinds.items():
      for x in (*kind[2:], cache.length_R):
        for shard in x.addressable_shards:
          np.testing.assert_array_equal(shard.data, x)
      pool = pools[name]
      for x in jax.tree.leaves((kind.k, kind.v)):
        own = x.addressable_shards[0].data.shape
        assert own[:2] == (pool.heads * pool.pages, pool.slots)
        assert len(x.addressable_shards) == devices
      of_model = self.decoder.config.num_kv_heads * pool.page
      assert pool.heads * pool.slots * devices == of_model
    # One program for each shape of a call.
    assert self.decoder._text._cache_size() == len(self.widths)

  def forget(self, row: int, count: int) -> None:
    """Settles a row as a search that dropped `count` tokens would."""
    decoder = self.decoder
    length, begin = decoder.length_of(row), 20
    decoder.lend(row)
    source, first = {}, decoder.account.firsts(row)
    for kind, pool in decoder.network.pools.items():
      slot_M = np.arange(pool.row_slots)
      position_M = slot_M + first[kind] * (slot_M >= pool.pinned_slots)
      from_M = np.where(position_M >= begin, slot_M + count, slot_M)
      is_held_M = position_M < length - count
      is_held_M &= from_M < pool.row_slots
      source[kind] = np.where(is_held_M, from_M, -1).astype(np.int32)
    decoder.settle(row, source, first, length - count)


def split_tokens(monkeypatch, is_split: bool = True) -> None:
  """Makes devices split tokens between projections, or keep all of them."""
  limit = 1 if is_split else 10**9
  monkeypatch.setitem(extend.SPLIT_FROM, 'cpu', limit)


_wanted: dict[tuple, np.ndarray] = {}


def want(config, mode: str, widths) -> np.ndarray:
  """Returns the logits of a life on one device."""
  key = repr(config), mode, widths
  if key not in _wanted:
    _wanted[key] = Life(decoder(config, 1, mode), widths).run()
  return _wanted[key]


def compare(config, tensor: int, mode: str, widths) -> tuple[np.ndarray, ...]:
  """Returns the logits of a life on a mesh, and on one device."""
  expected = want(config, mode, widths)
  return Life(decoder(config, tensor, mode), widths).run(), expected

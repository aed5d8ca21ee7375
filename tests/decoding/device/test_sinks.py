"""Layers with windows and sinks of their own decode as they are trained.

Four layers have three kinds of pages, of which two pin theirs: the first page
of the text in one, two in the other. Rings turn several times in a row.
"""

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.pages import prefix_tree
from tests.decoding import toys

LENGTH, PAGE = 64, 4
CONFIG = toys.config(
  layout='L0:8+2s L0:8+2s L2:16+5 G3s',
  vocab_size=32,
  num_heads=4,
  head_dim=8,
  num_kv_heads=2,
)
SEARCH = beam.Search(3, 6)


def drawn(config):
  """Returns parameters, whose sink logits are as large as other logits."""
  return jax.tree_util.tree_map_with_path(
    lambda path, x: 3 * x if path[-1].key == 'sink_logit_H' else x,
    toys.drawn(config),
  )


def text_of(tokens):
  return prefix_tree.Text(np.array(tokens, np.int32))


class Row:
  """A row of a decoder, and each token's logits."""

  def __init__(self, decoder, tokens, extra=0):
    self.decoder, self.tokens = decoder, np.array(tokens, np.int32)
    self.number = decoder.open(LENGTH, extra, text_of(tokens))
    self.resumed = decoder.length_of(self.number)
    self.logits = {}

  def extend(self, width, count):
    """Runs `count` more tokens in a call of `width`; returns hidden states."""
    at = self.decoder.length_of(self.number)
    tokens = self.tokens[at : at + min(count, width)]
    tokens_BL = np.pad(tokens, (0, width - len(tokens)))[None]
    hidden_BLD = self.decoder.extend_text(
      [self.number], tokens_BL, [len(tokens)]
    )
    logits_LV = np.asarray(self.decoder.logits(hidden_BLD))[0]
    self.logits |= {at + n: logits_LV[n] for n in range(len(tokens))}
    return hidden_BLD[0, len(tokens) - 1]

  def record(self, length):
    self.decoder.record(self.number, text_of(self.tokens[:length]))


def test_text_is_its_forward_pass_however_it_came_into_the_cache():
  params = drawn(CONFIG)
  decoder = decoder_lib.Decoder(
    params, CONFIG, rows=4, length=LENGTH, page=PAGE, extra=SEARCH.extra
  )
  kinds = {kind: pool.pinned for kind, pool in decoder.network.pools.items()}
  assert kinds == {'local8+2': 1, 'local16+5': 2, 'global': 0}
  (tokens, other, third) = toys.tokens(CONFIG, 3)
  one = Row(decoder, tokens)
  for width, count in (5, 3), (5, 4), (32, 31), (5, 5), (32, 9):
    one.extend(width, count)
    one.record(decoder.length_of(one.number))
  while decoder.length_of(one.number) < LENGTH:
    one.extend(1, 1)
  # Goes on within the first page, in the next one, and behind three turns.
  rows = [one]
  for common, wanted in (2, 2), (6, 6), (41, 41):
    row = Row(decoder, [*tokens[:common], *other[common:]])
    assert row.resumed == wanted
    while decoder.length_of(row.number) < LENGTH:
      row.extend(32, 30)
    rows.append(row)
    decoder.close(row.number)
  # What a search leaves is text, resumed behind its beams, too.
  begun = Row(decoder, third, SEARCH.extra)
  begun.extend(32, 27)
  hidden_D = begun.extend(5, 2)
  searcher = beam.BeamSearch(decoder, SEARCH, keeps_pages=True)
  (best,) = searcher.run(begun.number, hidden_D)
  searcher.adopt(best)
  begun.tokens[29:35] = best.tokens
  begun.record(35)
  resumed = Row(decoder, begun.tokens)
  assert resumed.resumed == 35
  for width, count in (5, 5), (32, 24):
    resumed.extend(width, count)
  # Searches that keep no whole pages, one behind another.
  searcher = beam.BeamSearch(decoder, SEARCH, calls=searcher.calls)
  for length in 40, 51:
    (best,) = searcher.run(begun.number, begun.extend(5, 5))
    searcher.adopt(best)
    begun.tokens[length : length + 6] = best.tokens
    assert decoder.account.oldest_kept(begun.number) == {
      'local8+2': length + 6 - 7,
      'local16+5': length + 6 - 15,
      'global': 0,
    }
  begun.extend(32, 7)
  rows += begun, resumed
  want_BLV = toys.forward(params, CONFIG, np.stack([x.tokens for x in rows]))
  atol = 1e-4 * np.abs(want_BLV).max()
  for row, want_LV in zip(rows, want_BLV):
    assert row is begun or {*range(41, LENGTH)} <= row.logits.keys()
    for at, got_V in row.logits.items():
      np.testing.assert_allclose(got_V, want_LV[at], atol=atol, err_msg=at)
  for row in decoder.account.open_rows:
    decoder.close(row)
  decoder.account.tree.clear()
  for kind, pool in decoder.network.pools.items():
    assert decoder.account.pages.free(kind) == pool.pages


@pytest.mark.parametrize(
  'layout', ['L0:8+6s G1', pytest.param('L0:3+1 L1:9s', marks=pytest.mark.slow)]
)
def test_codes_have_the_bits_of_the_forward_pass_in_any_calls(layout):
  config = toys.config(layout=layout, quantization=toys.int8())
  params, length = drawn(config), 40
  tokens_BL = toys.tokens(config, 1, length)
  want_BLV = toys.forward(params, config, tokens_BL, 'reference')
  decoder = decoder_lib.Decoder(
    params, config, rows=2, length=length, page=PAGE, mode='reference'
  )
  for counts in [7] * 6, [1, 2, 7, 3, 5, 6, 7, 7, 2]:
    row, at = decoder.open(), 0
    for count in counts:
      call_BL = np.zeros((1, 7), np.int32)
      count = min(count, length - at)
      call_BL[0, :count] = tokens_BL[0, at : at + count]
      hidden_BLD = decoder.extend_text([row], call_BL, [count])
      np.testing.assert_array_equal(
        decoder.logits(hidden_BLD)[0, :count], want_BLV[0, at : at + count]
      )
      at += count
    assert at == length

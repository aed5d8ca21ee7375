"""A text that lost its last tokens goes on as if they had never run.

In the reference mode each token's logits are those of the forward pass, so that
what a cut leaves behind shows in the bits.
"""

import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.pages import prefix_tree
from tests.decoding import toys

LENGTH, WIDTH, EXTRA = 40, 6, 5
CONFIG = toys.config(quantization=toys.int8(), layout='L0 G1')


@pytest.fixture(scope='module')
def world():
  params = toys.drawn(CONFIG)
  tokens_BL = toys.tokens(CONFIG, 1, LENGTH)
  want_BLV = toys.forward(params, CONFIG, tokens_BL, 'reference')

  def decoder(extra):
    return decoder_lib.Decoder(
      params,
      CONFIG,
      rows=2,
      length=LENGTH,
      page=4,
      extra=extra,
      mode='reference',
    )

  return decoder, tokens_BL[0], want_BLV[0]


def run(decoder, row, tokens):
  call_BL = np.zeros((1, WIDTH), np.int32)
  call_BL[0, : len(tokens)] = tokens
  hidden_BLD = decoder.extend_text([row], call_BL, [len(tokens)])
  return np.asarray(decoder.logits(hidden_BLD))[0, : len(tokens)]


def lived(decoder, tokens_L, want_LV, rng):
  """Runs a text among drafts that are dropped; returns whether bits agree."""
  row = decoder.open(LENGTH)
  held = {kind: decoder.account.pages.count_held(kind) for kind in ('local',)}
  assert held == {'local': 0}
  agrees = True
  while (length := decoder.length_of(row)) < LENGTH:
    right = int(rng.integers(1, min(4, LENGTH - length + 1)))
    wrong = min(int(rng.integers(EXTRA)), LENGTH - length - right, 6 - right)
    drafts = (tokens_L[length : length + right + wrong] + 1) % 61
    drafts[:right] = tokens_L[length : length + right]
    logits_LV = run(decoder, row, drafts)[:right]
    agrees &= np.array_equal(logits_LV, want_LV[length : length + right])
    decoder.cut(row, length + right)
    # No page is held beyond those of the text.
    pages = decoder.account.pages_of(row)['local']
    assert max(pages) == (length + right - 1) // 4
    assert decoder.account.pages.count_held('local') == len(pages)
  decoder.close(row)
  assert decoder.account.pages.count_held('local') == 0
  return agrees


def test_a_row_that_was_cut_has_the_bits_of_one_that_was_not(world):
  make, tokens_L, want_LV = world
  decoder = make(EXTRA)
  for seed in range(3):
    assert lived(decoder, tokens_L, want_LV, np.random.default_rng(seed))
  # What would be overwritten under a point, or is not there, is refused.
  row = decoder.open(LENGTH)
  run(decoder, row, tokens_L[:6])
  decoder.record(row, prefix_tree.Text(tokens_L[:6]))
  run(decoder, row, tokens_L[6:9])
  with pytest.raises(ValueError, match='length=5: a point reads 6 tokens'):
    decoder.cut(row, 5)
  with pytest.raises(ValueError, match='length=10: row 0 holds 9 tokens'):
    decoder.cut(row, 10)
  decoder.cut(row, 6)
  np.testing.assert_array_equal(run(decoder, row, tokens_L[6:8]), want_LV[6:8])
  # So does a row that resumed the point.
  other = decoder.open(LENGTH, text=prefix_tree.Text(tokens_L[:8]))
  assert decoder.length_of(other) == 6
  with pytest.raises(ValueError, match='a point reads 6 tokens'):
    decoder.cut(other, 5)
  decoder.close(row)
  decoder.close(other)
  with pytest.raises(ValueError, match='is not open'):
    decoder.cut(row, 1)


def test_a_cut_that_forgets_the_ring_is_seen(world, monkeypatch):
  """Without slack a ring has given the window's first page away."""
  make, tokens_L, want_LV = world
  decoder = make(0)
  with pytest.raises(ValueError, match='the ring of row 0 has lost'):
    for seed in range(3):
      lived(decoder, tokens_L, want_LV, np.random.default_rng(seed))
  tree = decoder.account.tree
  monkeypatch.setattr(tree, 'can_record', lambda *_: True)
  decoder.close(0)
  assert not lived(decoder, tokens_L, want_LV, np.random.default_rng(0))

"""A text that goes on from a point has the bits of one that ran as a whole.

In the reference mode each token's logits are those of the forward pass, so that
any life of rows and points (opened, extended, recorded, evicted, closed) can be
held against one forward pass of each text.
"""

import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.pages import pages
from kaiju_jax.decoding.pages import prefix_tree
from tests.decoding import toys

LENGTH, ROWS, WIDTH = 40, 3, 6


def texts(config, rng) -> np.ndarray:
  """Returns texts of which some begin alike, for a part of a page or more."""
  tokens_BL = rng.integers(0, config.vocab_size, (5, LENGTH), dtype=np.int32)
  for row, source, shared in ((1, 0, 17), (2, 0, 30), (3, 2, 34), (4, 3, 9)):
    tokens_BL[row, :shared] = tokens_BL[source, :shared]
  return tokens_BL


class Lives:
  """Opens, extends, records and closes rows, each over one of the texts."""

  def __init__(self, decoder, tokens_BL, rng):
    self.decoder, self.tokens_BL, self.rng = decoder, tokens_BL, rng
    self.open = {}
    self.resumed = 0

  def begin(self):
    number = int(self.rng.integers(len(self.tokens_BL)))
    tokens = self.tokens_BL[number]
    try:
      row = self.decoder.open(LENGTH, text=prefix_tree.Text(tokens))
    except pages.Full:
      return
    self.open[row] = number
    self.resumed += self.decoder.length_of(row)

  def extend(self):
    """Runs a call; returns the logits that it gives: (text, position, row)."""
    rows = list(self.open)
    self.rng.shuffle(rows)
    rows = rows[:2]
    calls_BL = np.zeros((2, WIDTH), np.int32)
    counts = [0, 0]
    for place, row in enumerate(rows):
      at = self.decoder.length_of(row)
      count = min(int(self.rng.integers(WIDTH + 1)), LENGTH - at)
      calls_BL[place, :count] = self.tokens_BL[self.open[row], at : at + count]
      counts[place] = count
    begins = [self.decoder.length_of(row) for row in rows]
    logits_BLV = np.asarray(
      self.decoder.logits(self.decoder.extend_text(rows, calls_BL, counts))
    )
    return [
      (self.open[row], begin + offset, logits_BLV[place, offset])
      for place, (row, begin) in enumerate(zip(rows, begins))
      for offset in range(counts[place])
    ]

  def record(self):
    row = self.rng.choice(list(self.open))
    length = self.decoder.length_of(row)
    if length:
      tokens = self.tokens_BL[self.open[row], :length]
      self.decoder.record(row, prefix_tree.Text(tokens))

  def end(self):
    row = int(self.rng.choice(list(self.open)))
    del self.open[row]
    self.decoder.close(row)


# Quick lives resume points in test_engine.py.
@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    pytest.param({'quantization': toys.int8()}, marks=pytest.mark.optimized),
    {'num_kv_heads': 3, 'dtype': 'bfloat16', 'layout': 'L0 L1'},
    {'quantization': toys.int8(kv_scale='channel'), 'layout': 'G0 G1'},
    {'quantization': toys.int8(), 'layout': 'L0:8+2s L1:5+6 G2'},
  ],
  ids=str,
)
def test_any_life_of_rows_and_points_has_the_forward_pass_s_bits(changes):
  config = toys.config(**changes)
  params, rng = toys.drawn(config), np.random.default_rng(3)
  tokens_BL = texts(config, rng)
  want_BLV = toys.forward(params, config, tokens_BL, 'reference')
  decoder = decoder_lib.Decoder(
    params, config, rows=ROWS, length=LENGTH, page=4, mode='reference'
  )
  lives, compared = Lives(decoder, tokens_BL, rng), 0
  for _ in range(400):
    choice = rng.random()
    if len(lives.open) < 2 or (choice < 0.15 and len(lives.open) < ROWS):
      lives.begin()
    elif choice < 0.6:
      for text, position, logits_V in lives.extend():
        np.testing.assert_array_equal(logits_V, want_BLV[text, position])
        compared += 1
    elif choice < 0.8:
      lives.record()
    elif choice < 0.95:
      lives.end()
    else:
      decoder.account.tree.evict()
  assert compared > 300
  assert lives.resumed > 150

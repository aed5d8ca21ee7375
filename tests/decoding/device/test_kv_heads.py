"""Several heads of keys and values in a cache: pages of each head's own."""

import numpy as np
import pytest

from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.device import decoder as decoder_lib
from tests.decoding import toys

# Two heads for four, in rings, in a global layer and in a layer that shares.
PLAIN = toys.config(layout='L0 L0 G2', num_heads=4, num_kv_heads=2)
INT8 = toys.config(
  layout='L0 G1', num_heads=4, num_kv_heads=4, quantization=toys.int8()
)


@pytest.mark.parametrize(
  'config',
  [pytest.param(PLAIN, marks=pytest.mark.slow), INT8],
  ids=['plain', 'int8'],
)
def test_text_in_calls_has_the_bits_of_its_forward_pass(config):
  params, length = toys.drawn(config), 40
  tokens_BL = toys.tokens(config, 2, length)
  want = toys.forward(params, config, tokens_BL, 'reference')
  decoder = decoder_lib.Decoder(
    params, config, rows=3, length=length, page=8, mode='reference'
  )
  rows = [decoder.open() for _ in range(3)][:0:-1]
  calls = [
    decoder.extend_text(rows, tokens_BL[:, at : at + 5])
    for at in range(0, length, 5)
  ]
  got = decoder.logits(np.concatenate(calls, axis=1))
  np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_fast_text_is_the_forward_pass_and_heads_do_not_mix():
  params, length = toys.drawn(PLAIN), 24
  tokens_BL = toys.tokens(PLAIN, 2, length)
  want = toys.forward(params, PLAIN, tokens_BL)
  decoder = decoder_lib.Decoder(params, PLAIN, rows=2, length=length, page=4)
  rows = [decoder.open(), decoder.open()]
  calls = [
    decoder.extend_text(rows, tokens_BL[:, at : at + 1]) for at in range(length)
  ]
  got = decoder.logits(np.concatenate(calls, axis=1))
  np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
  pool = np.asarray(decoder.cache.kinds['global'].k[0])
  assert pool.shape == (2 * 12, 4, 16)
  # Page p of head u is page 2p + u, and each head's keys are its own.
  assert np.all(np.any(pool[::2] != pool[1::2], axis=-1))


@pytest.mark.slow
def test_what_a_search_leaves_goes_on_as_text():
  """Both heads' keys move to the slots that text has."""
  params, length = toys.drawn(PLAIN), 24
  tokens_BL = toys.tokens(PLAIN, 1, length)
  search = beam.Search(3, 4)
  decoder = decoder_lib.Decoder(
    params, PLAIN, rows=1, length=length, page=4, extra=search.extra
  )
  row = decoder.open(extra=search.extra)
  hidden_BLD = decoder.extend_text([row], tokens_BL[:, :9])
  searcher = beam.BeamSearch(decoder, search)
  (best,) = searcher.run(row, hidden_BLD[0, -1])
  searcher.adopt(best)
  got_BLD = decoder.extend_text([row], tokens_BL[:, 13:22])
  text = np.concatenate([tokens_BL[0, :9], best.tokens, tokens_BL[0, 13:22]])
  want_BLD = toys.forward(
    params, PLAIN, text[None].astype(np.int32), method='hidden'
  )
  np.testing.assert_allclose(got_BLD, want_BLD[:, 13:], atol=1e-4)

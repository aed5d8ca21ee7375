"""Rows that pad the vocabulary beyond the tokenizer are never drawn."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.beam import step as beam_step
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from tests.decoding import toys

TOKENS = 50
CONFIG = toys.config(layout='G0', tied_embedding=False)


@pytest.fixture(scope='module')
def decoder():
  """A model that finds every row of padding likelier than any token."""
  params = toys.drawn(CONFIG)
  head_DV = params['embedding']['head_DV']
  head_DV[:, TOKENS:] *= 1000
  return decoder_lib.Decoder(
    params, CONFIG, rows=2, length=toys.LENGTH, page=8, tokens=TOKENS
  )


def test_no_padding_is_drawn_likeliest_or_by_chance(decoder):
  generator = generator_lib.Generator(decoder, chunk=8)
  prompt_L = np.arange(5)
  results = generator.generate(
    [
      request_lib.Request(prompt_L, 20, sampling_lib.Sampling(**one))
      for one in ({'temperature': 0}, {'temperature': 30.0})
    ]
  )
  for one in results:
    assert one.error is None
    assert len(one.tokens) == 20 and max(one.tokens) < TOKENS
    # Of a distribution over tokens alone; padding has all of the model's own.
    assert np.exp(one.log_probabilities).max() > 1e-3
  scores = generator.score(prompt_L)
  assert np.exp(scores.log_probability_L).sum() > 1e-6


def test_no_padding_is_an_expansion_of_a_search(decoder):
  hidden_CD = np.random.default_rng(0).normal(size=(3, CONFIG.d_model))
  expand = jax.jit(functools.partial(beam_step.expand, decoder.network, TOKENS))
  found = expand(decoder.params, hidden_CD.astype(np.float32))
  assert not np.asarray(found.is_nan_C).any()
  assert sorted(np.asarray(found.token_CT)[0]) == list(range(TOKENS))
  total_C = np.exp(np.asarray(found.log_probability_CT)).sum(1)
  np.testing.assert_allclose(total_C, 1, rtol=1e-5)


def test_a_prompt_holds_no_padding(decoder):
  generator = generator_lib.Generator(decoder, chunk=8)
  with pytest.raises(ValueError, match=r'a token is 0…49'):
    generator.generate([request_lib.Request(np.array([TOKENS]), 2)])
  with pytest.raises(ValueError, match=r'tokens=62: must be in 1…61'):
    decoder_lib.Decoder({}, CONFIG, rows=1, length=8, tokens=62)

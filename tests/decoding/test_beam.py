"""Beam search against all sequences, and against a search without a cache."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding import beam
from kaiju_jax.decoding import beam_tree
from kaiju_jax.decoding import cache as cache_lib
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import row as row_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

EOS = 0
ROWS = 16
LENGTH = 32
NONE = quantization_config.none()


def small_config(quantization=NONE, vocab_size=17, **changes):
  return model_config.ModelConfig(
    vocab_size=vocab_size,
    d_model=16,
    num_heads=2,
    head_dim=8,
    d_ff=32,
    window=5,
    # Interleaved, and both kinds share keys and values.
    layout='L0 L0 G2 L3 G2',
    max_length=1024,
    dtype='float32',
    quantization=quantization,
    **changes,
  )


@functools.cache
def made(vocab_size=17, int8=False):
  """Returns a config and parameters whose next tokens are no coin tosses."""
  quantization = quantization_config.QuantizationConfig() if int8 else NONE
  config = small_config(quantization, vocab_size)
  model = transformer.Transformer(config)
  params = model.init(
    jax.random.key(3), jnp.zeros((1, 4), jnp.int32), visibility_lib.causal(4)
  )['params']
  params['embedding']['embedding_DV'] *= 2.0
  return config, params


@functools.cache
def forward(vocab_size=17, int8=False, rows=ROWS, length=LENGTH):
  """Returns a function of sequences: hidden states, log-probabilities."""
  config, params = made(vocab_size, int8)
  model = transformer.Transformer(config)
  visibility = visibility_lib.concatenate(
    [visibility_lib.causal(length)] * rows
  )

  @jax.jit
  def run(tokens_BL):
    bound = model.bind({'params': params})
    hidden_BLD = bound.hidden(tokens_BL, visibility)
    return hidden_BLD, jax.nn.log_softmax(bound.logits(hidden_BLD))

  def results(sequences):
    tokens_BL = np.zeros((rows, length), np.int32)
    for row, sequence in enumerate(sequences):
      tokens_BL[row, : len(sequence)] = sequence
    return jax.device_get(run(tokens_BL))

  return results


def decoder_of(length, extra, vocab_size=17, int8=False, rows=1):
  config, params = made(vocab_size, int8)
  return decoder_lib.Decoder(
    params, config, rows=rows, length=length, extra=extra, page=4
  )


def prompt_of(length, vocab_size=17, seed=0):
  return np.random.default_rng(seed).integers(0, vocab_size, length)


def opened(decoder, prompt, extra, calls=1):
  """Returns a new row with the prompt, and its last hidden state."""
  row = decoder.open(decoder.length, extra)
  for tokens in np.array_split(prompt, calls):
    hidden_BLD = decoder.extend_text([row], tokens[None])
  return row, hidden_BLD[0, -1]


def searched(search, prompt, hook=None, **options):
  decoder = decoder_of(LENGTH, search.extra, **options)
  beams = beam.BeamSearch(decoder, search, hook)
  row, hidden_D = opened(decoder, prompt, search.extra, 3)
  return decoder, beams, row, beams.run(row, hidden_D)


def plain(prompt, search, bonus=lambda tokens, hidden_D: 0.0, **options):
  """The same search, each path run from its first token each time."""
  run = forward(**options)

  def last(paths):
    sequences = [[*prompt, *tokens] for tokens in paths]
    hidden_BLD, log_BLV = run(sequences)
    ends = [len(sequence) - 1 for sequence in sequences]
    return [
      (hidden_BLD[row, end], log_BLV[row, end]) for row, end in enumerate(ends)
    ]

  live, ended = {(): (0.0, last([()])[0][1])}, {}
  for _ in range(search.depth):
    grown = {
      (*tokens, token): score + log_V[token]
      for tokens, (score, log_V) in live.items()
      for token in range(len(log_V))
    }
    candidates = sorted(grown, key=grown.get)[::-1][: search.queries]
    read = dict(zip(candidates, last(candidates)))
    judged = {x: grown[x] + bonus(x, read[x][0]) for x in candidates}
    best = sorted(judged, key=judged.get)[::-1][: search.width]
    best = [x for x in best if judged[x] > -np.inf]
    live = {x: (judged[x], read[x][1]) for x in best if x[-1] != search.eos}
    ended |= {x: judged[x] for x in best if x[-1] == search.eos}
    if not live:
      break
  final = ended | {tokens: score for tokens, (score, _) in live.items()}
  final = {
    tokens: score / ((5 + len(tokens)) / 6) ** search.length_penalty
    for tokens, score in final.items()
  }
  return sorted(final.items(), key=lambda x: -x[1])[: search.results]


def assert_same(found, expected):
  assert [x.tokens for x in found] == [tokens for tokens, _ in expected]
  np.testing.assert_allclose(
    [x.score for x in found], [score for _, score in expected], rtol=1e-4
  )


@pytest.mark.parametrize('eos, length_penalty', [(None, 0.0), (EOS, 1.5)])
def test_a_width_that_loses_nothing_finds_the_best_of_all(eos, length_penalty):
  vocab_size, depth, prompt = 4, 4, prompt_of(7, 4)
  search = beam.Search(
    64, depth, eos=eos, length_penalty=length_penalty, results=10
  )
  _, log_BLV = forward(vocab_size, rows=256, length=11)(
    [[*prompt, *x] for x in itertools.product(range(vocab_size), repeat=depth)]
  )
  expected = {}
  for row, tokens in enumerate(
    itertools.product(range(vocab_size), repeat=depth)
  ):
    if eos in tokens:
      tokens = tokens[: tokens.index(eos) + 1]
    total = sum(log_BLV[row, 6 + i, token] for i, token in enumerate(tokens))
    expected[tokens] = total / ((5 + len(tokens)) / 6) ** length_penalty
  expected = sorted(expected.items(), key=lambda x: -x[1])[:10]
  *_, found = searched(search, prompt, vocab_size=vocab_size)
  assert_same(found, expected)
  lengths = {len(x.tokens) for x in found}
  assert lengths == {depth} if eos is None else len(lengths) > 1


@pytest.mark.parametrize('int8', [False, True])
def test_the_search_is_one_with_copied_caches(int8):
  search = beam.Search(8, 12, eos=EOS, length_penalty=0.6, results=4)
  prompt = prompt_of(11)
  *_, found = searched(search, prompt, int8=int8)
  expected = plain(prompt, search, int8=int8)
  assert_same(found, expected)
  assert {x.ended for x in found} == {True, False}
  _, log_BLV = forward(int8=int8)([[*prompt, *x.tokens] for x in found])
  for row, result in enumerate(found):
    places = 10 + np.arange(len(result.tokens))
    np.testing.assert_allclose(
      result.log_probabilities,
      log_BLV[row, places, np.array(result.tokens)],
      rtol=1e-3,
    )

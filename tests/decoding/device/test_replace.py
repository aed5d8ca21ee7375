"""A decoder's weights change, and it is as if it had been made with them."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.model import token_head
from tests.decoding import toys

CONFIG = toys.config(
  layout='L0 G1', quantization=toys.int8(wire_gradients='float')
)


@functools.cache
def first():
  return toys.drawn(CONFIG)


@functools.cache
def second():
  return jax.tree.map(lambda x: x[..., ::-1].copy(), first())


def make(params):
  decoder = decoder_lib.Decoder(params, CONFIG, rows=2, length=48, page=4)
  return generator_lib.Generator(decoder, chunk=8)


def ask(generator):
  """Returns tokens and log-probabilities of prompts that begin alike."""
  rng = np.random.default_rng(0)
  begun = rng.integers(4, 61, 20)
  requests = [
    request_lib.Request(
      [*begun, *rng.integers(4, 61, 5)], 12, sampling.Sampling(seed=seed)
    )
    for seed in range(3)
  ]
  found = generator.generate(requests)
  assert not any(one.error for one in found)
  return [(x.tokens.tolist(), x.log_probabilities.tolist()) for x in found]


@pytest.fixture(scope='module')
def generator():
  return make(first())


@pytest.fixture(scope='module')
def fresh(generator):
  """The answers of decoders that were made with the weights."""
  found = ask(generator), ask(make(second()))
  assert found[0] != found[1]
  return found


def test_a_replaced_model_has_the_bits_of_a_fresh_one_and_compiles_nothing(
  generator, fresh
):
  decoder = generator.engine.decoder
  assert ask(generator) == fresh[0]
  assert len(decoder.account.tree)
  with compilations.record() as seen:
    decoder.replace(second())
    # Nothing is resumed: the texts are the former model's.
    assert not len(decoder.account.tree)
    assert ask(generator) == fresh[1]
    decoder.replace(first())
    assert ask(generator) == fresh[0]
  assert not seen
  assert decoder.replaced == 2


def test_what_no_decoder_takes_is_refused_and_changes_nothing(generator, fresh):
  decoder = generator.engine.decoder
  row = decoder.open(8)
  with pytest.raises(ValueError, match=r'rows \[0\] are open .* close them'):
    decoder.replace(second())
  decoder.close(row)
  points = len(decoder.account.tree)
  other = {**first(), 'final_norm': {'gain_D': np.ones(8, np.float32)}}
  with pytest.raises(ValueError, match=r'gain_D is .*\[8\]; must be .*\[32\]'):
    decoder.replace(other)
  assert len(decoder.account.tree) == points > 0
  assert ask(generator) == fresh[0]


def test_a_head_of_the_former_model_scores_nothing(generator):
  decoder = generator.engine.decoder
  weights = {
    'w_DC': np.ones((CONFIG.d_model, 1), np.float32),
    'bias_C': np.zeros(1, np.float32),
  }
  head = weights, token_head.TokenHeadConfig(names=('marker',))
  request = request_lib.Request([5], 1)
  former = generator_lib.Generator(decoder, chunk=8, head=head)
  former.engine.check(request)
  decoder.replace(second())
  with pytest.raises(ValueError, match="head belongs to the decoder's former"):
    former.stream(request)
  generator_lib.Generator(decoder, chunk=8, head=head).engine.check(request)

"""The likeliest tokens beside each that an engine draws or scores."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax.app import serve
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import alternatives as alternatives_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import toys

pytestmark = pytest.mark.slow  # It compiles an engine.
MOST, LENGTH, CHUNK = 5, 48, 16
CONFIG = toys.small()
# Each of these changes what is drawn, and none what the model says.
HARD = sampling.Sampling(
  temperature=1.7, top_k=9, min_p=0.01, repetition_penalty=1.8, seed=3
)


@functools.cache
def prompt():
  """Returns a prompt whose last token is the likeliest."""
  tokens_L = toys.tokens(CONFIG, 1, 21)[0].copy()
  logits_LV = toys.forward(toys.drawn(CONFIG), CONFIG, tokens_L[None])[0]
  tokens_L[-1] = np.argmax(logits_LV[-2])
  return tokens_L


def make(**options):
  decoder = decoder_lib.Decoder(
    toys.drawn(CONFIG), CONFIG, rows=1, length=LENGTH, page=8, extra=15
  )
  return engine_lib.Engine(decoder, chunk=CHUNK, **options)


def run(engine, **options):
  options = {'sampling': HARD, 'scores_prompt': True} | options
  one = engine.submit(request_lib.Request(prompt(), 12, **options))
  while one.reason is None:
    engine.advance()
  return list(one.events), one.result()


def programs(engine):
  """Returns what is compiled."""
  rounds = engine.rounds
  jitted = [rounds._step, rounds._first, *rounds._prefill.values()]
  return [one._cache_size() for one in jitted], set(rounds._compiled)


@pytest.fixture(scope='module')
def engine():
  engine = make(alternatives=MOST)
  serve.warm(engine)
  engine.programs = programs(engine)
  return engine


@pytest.fixture(scope='module')
def found(engine):
  return run(engine, alternatives=MOST)


def test_they_are_the_likeliest_of_the_models_own_distribution(found):
  events, result = found
  text_L = np.concatenate([prompt(), result.tokens])
  logits_LV = toys.forward(toys.drawn(CONFIG), CONFIG, text_L[None])[0]
  likely_LV = np.asarray(jax.nn.log_softmax(logits_LV, axis=-1))
  listed = [
    result.prompt_alternatives.list(place, MOST, token, own)
    for place, (token, own) in enumerate(
      zip(prompt()[1:].tolist(), result.prompt_log_probabilities.tolist())
    )
  ]
  listed += [one.alternatives for one in events]
  assert len(listed) == len(text_L) - 1
  for likely_V, pairs in zip(likely_LV, listed):
    tokens, values = zip(*pairs)
    best = np.sort(likely_V)[::-1][:MOST]
    np.testing.assert_allclose(values, best, atol=2e-5)
    np.testing.assert_allclose(likely_V[[*tokens]], best, atol=2e-5)


def test_a_tokens_own_value_has_the_bits_of_its_log_probability(found):
  """On the device already, not only because `list` puts it there."""
  events, result = found
  own = [dict(x.alternatives).get(x.token, x.log_probability) for x in events]
  assert own == [x.log_probability for x in events]
  listed = result.prompt_alternatives
  is_own_LK = listed.token_NK == prompt()[1:, None]
  place_L, rank_L = np.nonzero(is_own_LK)
  assert len(place_L)
  np.testing.assert_array_equal(
    listed.log_probability_NK[place_L, rank_L],
    result.prompt_log_probabilities[place_L],
  )


def test_an_engine_without_has_no_trace_of_them(monkeypatch):
  """It lowers all its programs, and looks for no alternatives."""

  def fail(*_):
    raise AssertionError('looks for alternatives')

  monkeypatch.setattr(alternatives_lib, 'find', fail)
  monkeypatch.setattr(jax.stages.Lowered, 'compile', lambda lowered: lowered)
  rounds = make().rounds
  for kind, size in ('step', 1), ('score', 16):
    rounds._compile([compiled._Program(kind, 1, size)])
  with pytest.raises(AssertionError, match='looks for alternatives'):
    make(alternatives=1).rounds._compile([compiled._Program('step', 1)])


def test_a_request_gets_as_many_as_it_asks_for(engine, found):
  events, _ = run(engine, alternatives=2)
  assert [x.alternatives for x in events] == [
    x.alternatives[:2] for x in found[0]
  ]
  assert run(engine)[0] == [x._replace(alternatives=()) for x in events]


def test_no_request_waits_for_a_compilation(engine, found):
  """Nor did the first one, behind what was compiled before it."""
  assert engine.programs == programs(engine)
  assert engine.rounds.waiting


def test_more_than_an_engine_gives_is_refused(engine):
  for count in -1, MOST + 1:
    with pytest.raises(ValueError, match=rf'alternatives={count}: .*0…{MOST}'):
      run(engine, alternatives=count)
  with pytest.raises(TypeError, match=r'alternatives=1\.5: must be an integer'):
    run(engine, alternatives=1.5)
  guided = request_lib.Guide(1)
  with pytest.raises(ValueError, match='must be 0 with guided'):
    run(engine, alternatives=1, guided=guided)
  for count in -1, alternatives_lib.MOST + 1:
    with pytest.raises(ValueError, match=f'alternatives={count}: must be 0…20'):
      make(alternatives=count)

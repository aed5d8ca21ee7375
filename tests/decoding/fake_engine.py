"""An engine over `fake_device`: each text is known beforehand."""

import types
from unittest import mock

import numpy as np

from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import searches
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import fake_device
from tests.decoding import toys

PAGE, CHUNK = 4, 16
NAMES = 'marked', 'other'


class Clock:
  """Seconds that pass when a test says so, and `tick` at each look."""

  def __init__(self, tick=0.0):
    self.now, self.tick = 0.0, tick

  def __call__(self):
    self.now += self.tick
    return self.now


class Engine(engine_lib.Engine):
  """An engine without a model.

  Of `bad` texts one draws nothing; `counts` and `sinks` are those of
  `fake_device.pools`; `extra` slots are of searches, `fake_device.Searches`; a
  head has the dimensions `NAMES`; `alternatives` are `fake_device.likeliest`;
  `decoder` is another engine's.
  """

  def __init__(
    self,
    tokenizer=None,
    rows=3,
    length=64,
    counts=(40, 14),
    window=10,
    sinks=0,
    bad=None,
    extra=0,
    is_judged=False,
    version=b'1',
    decoder=None,
    alternatives=0,
    **options,
  ):
    if decoder is None:
      pools = fake_device.pools(length + extra, PAGE, window, counts, sinks)
      decoder = fake_device.Decoder(pools, rows, length)
    rounds = fake_device.Rounds(decoder, CHUNK, bad, is_judged)
    rounds.alternatives = alternatives
    judge = types.SimpleNamespace(names=NAMES, params={}, version=version)
    judge.check = lambda: None  # Nobody replaces its model.
    self.clock = options.setdefault('clock', Clock())
    self.bad = bad

    def search(decoder, candidates, judge, is_recorded):
      if not extra:
        return real(decoder, candidates, judge, is_recorded)
      return fake_device.Searches(decoder, bad, is_judged, is_recorded)

    real = searches.Searches
    with (
      mock.patch.object(compiled, 'Rounds', lambda *_, **__: rounds),
      mock.patch.object(judge_lib, 'Judge', lambda *_: judge),
      mock.patch.object(searches, 'Searches', search),
    ):
      super().__init__(
        decoder,
        tokenizer,
        chunk=CHUNK,
        head=judge if is_judged else None,
        alternatives=alternatives,
        **options,
      )

  def run(self, *sequences):
    """Runs rounds until these have ended; returns how many."""
    return toys.run(self, *sequences)

  def answer(self, request):
    """Returns the sequence of a request that has been run."""
    one = self.submit(request)
    self.run(one)
    return one


def nothing_is_left(engine) -> bool:
  """Returns whether all rows and pages are free, once points are dropped."""
  return (
    engine.is_idle
    and not len(engine._inflight)
    and engine.recorder.is_idle
    and fake_device.is_empty(engine.decoder)
  )


def make_request(prompt=5, most=4, seed=0, **fields):
  tokens = np.random.default_rng(seed).integers(1, 250, prompt)
  return request_lib.Request(
    tokens, most, sampling.Sampling(seed=seed), **fields
  )


def expected(request, bad=None):
  """Returns what a request draws, behind what was drawn before."""
  tokens, reason = fake_device.expected(request, bad)
  return tokens[len(request.drawn) :], reason


def is_expected(one, bad=None):
  tokens, reason = expected(one.request, bad)
  result = one.result()
  return result.tokens.tolist() == tokens and result.reason == reason


def is_judged(one):
  """Whether each token came with what the head gives the text up to it."""
  text, judged = 0, []
  for token in one.request.tokens:
    text = fake_device.appended(text, [token])
    judged.append(fake_device.scores(text))
  # Whatever was resumed, the verdict is that of the whole prompt.
  if one.events and one.result().prompt_scores != tuple(np.max(judged, axis=0)):
    return False
  text, scores = fake_device.appended(text, one.request.drawn), None
  for event in one.events:
    if event.reason != 'stop_token':
      text = fake_device.appended(text, [event.token])
      scores = fake_device.scores(text)
    if event.scores != scores:
      return False
  return True

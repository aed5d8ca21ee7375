"""No request waits for a compilation, whatever it asks."""

import threading

import jax
import numpy as np
import pytest

from kaiju_jax.app import serve
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.model import token_head
from tests.decoding import fake_engine
from tests.decoding import toys

LENGTH, CHUNK, ROWS = 64, 32, 4
GUIDE = request_lib.Guide(2, 4, {'marked': -1.0})


@pytest.fixture(
  scope='module',
  params=[False, pytest.param(True, marks=pytest.mark.slow)],
  ids=['drawn', 'guided'],
)
def engine(request):
  config = toys.config(layout='G0', window=12, max_length=LENGTH)
  head = (
    {'w_DC': np.zeros((config.d_model, 1), np.float32), 'bias_C': np.zeros(1)},
    token_head.TokenHeadConfig(('marked',)),
  )
  decoder = decoder_lib.Decoder(
    toys.drawn(config),
    config,
    rows=ROWS,
    length=LENGTH,
    page=8,
    extra=GUIDE.extra(8) if request.param else 0,
  )
  made = engine_lib.Engine(
    decoder,
    chunk=CHUNK,
    head=head,
    candidates=GUIDE.queries if request.param else 0,
  )
  serve.warm(made)
  return made


@pytest.mark.parametrize('length', [2, 3, 6, 64])
def test_rows_that_hold_no_two_pages_are_warmed(length, monkeypatch):
  """Pages of several devices may have more slots than a row has tokens."""
  made = fake_engine.Engine(length=length)
  monkeypatch.setattr(made, 'warm', lambda **_: None)
  serve.warm(made)
  assert made.is_idle and not list(made.decoder.account.tree.points())


def requests(engine, seed):
  rng = np.random.default_rng(seed)

  def one(length, *settings, count=4, **options):
    tokens = rng.integers(4, 61, length)
    drawn = sampling.Sampling(*settings, seed=seed)
    return request_lib.Request(tokens, count, drawn, **options)

  return [
    *(one(length, 0, scores_prompt=True) for length in (2, 5, 9, 17, 33, 60)),
    *(one(length) for length in (1, 3, 8, 9, 31, 32, 33, 60)),
    *[one(20, 0.7, 3, 0.9, 0.1, 1.2, shared=10)] * 4,
    *(one(length, stop_tokens=(5,)) for length in (12, 40)),
    *(
      one(length, guided=GUIDE, count=8)
      for length in (6, 30)
      if engine.decoder.extra
    ),
  ]


def run(engine, requests):
  running = [engine.submit(one) for one in requests]
  while not engine.is_idle:
    engine.advance()
  return [one.result() for one in running]


def unscored(engine, seed):
  return [one for one in requests(engine, seed) if not one.scores_prompt]


def test_two_programs_serve_any_request(engine):
  """The first of this file: what `warm` puts off has not been compiled yet."""
  rounds = engine.rounds
  assert (rounds.shapes, rounds.widths) == ([(1, CHUNK)], [ROWS])
  waiting = rounds.waiting
  # Two steps, two prefills, two scored ones.
  assert waiting == 6
  with compilations.record() as seen:
    for one in unscored(engine, 3)[:4]:
      run(engine, [one])
    run(engine, unscored(engine, 3))
  assert not seen
  # A scored prompt has to wait for the smallest program, and for that alone.
  with compilations.record() as seen:
    (scored,) = run(engine, requests(engine, 3)[:1])
  assert scored.prompt_log_probabilities is not None
  assert seen and rounds.waiting == waiting - 1
  while rounds.waiting > 1:
    before = set(rounds.shapes), set(rounds.widths)
    rounds.compile_next()
    assert before[0] <= set(rounds.shapes) and before[1] <= set(rounds.widths)
  assert len(rounds.shapes) == 3 and rounds.widths == [1, 2, ROWS]


def test_no_request_compiles_and_what_was_put_off_is_compiled_beside(engine):
  while engine.rounds.waiting > 1:
    engine.rounds.compile_next()
  run(engine, requests(engine, 0)[:1])
  with compilations.record() as seen:
    before = [run(engine, requests(engine, 0)) for _ in range(2)]
    for one in requests(engine, 1):
      run(engine, [one])
  assert not seen
  assert engine.rounds.scored < CHUNK and engine.rounds.waiting == 1
  running = [engine.submit(one) for one in requests(engine, 0)]
  compiling = threading.Thread(target=engine.rounds.compile_next)
  compiling.start()
  while compiling.is_alive() or not engine.is_idle:
    engine.advance() if not engine.is_idle else compiling.join()
  assert engine.rounds.scored == CHUNK and not engine.rounds.waiting
  with compilations.record() as seen:
    after = run(engine, requests(engine, 0))
    run(engine, requests(engine, 2))
  assert not seen
  for one, other in zip(
    [*before[0], *(x.result() for x in running)], after * 2
  ):
    assert one.tokens.tolist() == other.tokens.tolist()
    if one.prompt_log_probabilities is not None:
      np.testing.assert_allclose(
        one.prompt_log_probabilities,
        other.prompt_log_probabilities,
        rtol=1e-4,
        atol=1e-5,
      )
  # A cold engine's first scored prompt would compile: the counter counts.
  with compilations.record() as seen:
    jax.jit(lambda x: x + 41)(np.zeros(3))
  assert seen

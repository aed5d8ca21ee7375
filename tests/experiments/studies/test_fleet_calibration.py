"""Rounds of an engine are counted as the law counts them, on a fake device."""

import types

import numpy as np
import pytest

from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.experiments.studies import fleet_calibration
from kaiju_jax.fleet import calibration
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state
from tests.decoding import fake_device

ROWS, LENGTH, CHUNK = 4, 256, 32


@pytest.fixture
def engine(monkeypatch):
  pools = fake_device.pools(LENGTH, 16, 64, (400, 200))
  decoder = fake_device.Decoder(pools, ROWS, LENGTH)
  monkeypatch.setattr(
    compiled, 'Rounds', lambda *_: fake_device.Rounds(decoder, CHUNK)
  )
  return engine_lib.Engine(decoder, chunk=CHUNK)


def serve(engine, count=24):
  trace, requests = fleet_calibration.draw(count, 250, LENGTH, 0)
  return trace, fleet_calibration.serve(engine, np.zeros(count), requests)


def test_rounds_are_counted_as_the_law_counts_them(engine):
  trace, (first, features, seconds) = serve(engine)
  assert not np.isnan(first).any() and (seconds > 0).all()
  fixed, drawn, context, chunk, attended, chunks = features.sum(0)
  assert fixed == len(seconds)
  # The first token of an answer comes with its prompt's last chunk.
  assert drawn == (trace.answer - 1).sum()
  expected = [
    np.arange(prompt, prompt + answer - 1).sum()
    for prompt, answer in zip(trace.prompt, trace.answer)
  ]
  assert context == sum(expected)
  ran = engine.rounds.ran
  assert chunks == (features[:, 3] > 0).sum() > 0
  assert 0 < ran < trace.prompt.sum() and ran <= chunk < 3 * ran
  assert 0 < attended < (trace.prompt.astype(float) ** 2).sum() / 2


def test_the_trace_is_that_of_the_requests(engine):
  trace, requests = fleet_calibration.draw(30, 250, LENGTH, 3)
  assert [len(one.tokens) for one in requests] == trace.prompt.tolist()
  assert [one.shared for one in requests] == trace.prefix.tolist()
  assert [one.max_tokens for one in requests] == trace.answer.tolist()
  assert len({one.owner for one in requests}) == 30
  same = [
    one for one, c in zip(requests, trace.character) if c == trace.character[0]
  ]
  shared = same[0].shared
  assert len(same) > 1
  for one in same:
    assert (one.tokens[:shared] == same[0].tokens[:shared]).all()
  for one in requests:
    engine.check(one)


def test_a_comparison_has_a_row_per_load_and_quantile(engine, monkeypatch):
  """The whole comparison, of an engine whose rounds take no time."""
  pools = engine.decoder.pools
  law = state.Law(1e-4, 0.0, 0.0, 0.0, 0.0)
  sizes = state.Sizes(
    ROWS, 16, 64, pools['global'].pages, pools['local'].pages, 16, 1
  )
  file = calibration.Engine(
    'one',
    'runs/one',
    law,
    sizes,
    ((1, CHUNK),),
    calibration.Residuals(*[0] * 5),
  )
  loaded = types.SimpleNamespace(
    config=types.SimpleNamespace(vocab_size=250), origin='runs/one'
  )
  monkeypatch.setattr(fleet_calibration.load, 'from_anywhere', lambda _: loaded)
  monkeypatch.setattr(fleet_calibration.load, 'digest', lambda _: 'one')
  monkeypatch.setattr(
    fleet_calibration, 'open_engine', lambda *_: (engine, loaded)
  )
  monkeypatch.setenv('NUMBA_DISABLE_JIT', '1')
  simulator.compile_loop.cache_clear()
  said = []
  table = fleet_calibration.compare('x', file, [0.5], 12, said.append)
  simulator.compile_loop.cache_clear()
  assert [row[:2] for row in table.rows] == [['0.5', 'p50'], ['0.5', 'p99']]
  assert {len(row) for row in table.rows} == {len(table.columns)}
  assert said == ['load 0.5']
  other = calibration.Engine('two', 'runs/two', *list(vars(file).values())[2:])
  with pytest.raises(ValueError, match='calibrated on runs/two'):
    fleet_calibration.compare('x', other, [0.5], 12)


def test_on_the_processors_clock_pauses_take_no_time(engine):
  """Requests a day apart are served at once, each as if it came alone."""
  _, requests = fleet_calibration.draw(6, 250, LENGTH, 0)
  seconds = 86_400.0 * np.arange(6)
  first, _, spent = fleet_calibration.serve(
    engine, seconds, requests, 'processor'
  )
  assert (first >= 0).all() and first.max() <= spent.sum() < 60
  clock = fleet_calibration.Clock('processor')
  clock.wait(1_000.0)
  assert 1_000 <= clock.now() < 1_060
  clock.wait(10.0)
  assert 1_000 <= clock.now() < 1_060

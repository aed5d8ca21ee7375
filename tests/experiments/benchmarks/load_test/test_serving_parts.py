"""What `benchmarks.serve` measures, on a model of a few thousand parameters."""

import math

import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.experiments.benchmarks.load_test import engine_serving
from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.experiments.benchmarks.load_test import serving_parts
from kaiju_jax.experiments.benchmarks.parts import compilations
from tests.decoding import toys

pytestmark = pytest.mark.slow

SMALL = load.Load(
  rate=math.inf, count=5, prompt=(4, 20), answer=(2, 6), vocabulary=61
)


@pytest.fixture(scope='module')
def engine():
  config = toys.config(layout='L0 G1', max_length=512)
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=4, length=512, page=16
  )
  made = engine_lib.Engine(decoder, chunk=64)
  engine_serving.warm(made, 20)
  return made


def test_a_load_is_served_in_its_order_and_time(engine):
  arrivals = load.arrivals(SMALL)
  arrivals[3] = arrivals[3]._replace(seconds=0.5)
  arrivals[4] = arrivals[4]._replace(seconds=0.5)
  with compilations.record() as compiled:
    timelines = engine_serving.serve(engine, arrivals)
  assert not compiled
  for arrival, timeline in zip(arrivals, timelines):
    assert timeline.arrival is arrival
    assert len(timeline.tokens) == len(timeline.seconds) == arrival.max_tokens
    assert timeline.seconds[0] >= arrival.seconds
    assert (np.diff(timeline.seconds) >= 0).all()
  # Whoever serves them, the tokens are the same.
  alone = [engine_serving.serve(engine, [one]) for one in arrivals[:2]]
  for timeline, (other,) in zip(timelines, alone):
    np.testing.assert_array_equal(timeline.tokens, other.tokens)


def test_the_best_turn_counts():
  turns = iter([1.0, 4.0, 2.0])

  def serve(arrivals):
    seconds = np.array([1 / next(turns)])
    return [load.Timeline(arrivals[0], np.array([1], np.int32), seconds)]

  arrival = load.Arrival(0.0, np.ones(3, np.int32), 1)
  found = serving_parts.throughput({'one': serve}, [arrival], 3)
  assert found['one'].tokens_per_second == 4.0


def test_a_prompt_that_was_seen_does_not_run_again(engine):
  found = serving_parts.reuse(engine, 400, 0.9, 2)
  assert found.reused == 0.9
  assert found.warm < found.cold


def test_long_prompts_delay_running_answers_by_a_chunk_at_most(engine):
  calls = []
  prefill = engine.rounds.prefill
  engine.rounds.prefill = lambda *x: calls.append(x) or prefill(*x)
  try:
    found = serving_parts.measure_gaps(engine, 2, 300, 20)
  finally:
    del engine.rounds.prefill
  # Each round while prompts enter runs one call, of at most a chunk.
  assert sum(len(chunks[0].tokens_L) == 64 for chunks, _ in calls) >= 10
  assert found.quiet > 0 and found.entering > 0
  assert engine.is_idle


def test_an_overload_is_refused_at_once_and_the_rest_is_served(engine):
  arrivals = load.arrivals(
    load.Load(
      rate=2000.0, count=60, prompt=(16, 32), answer=(20, 40), vocabulary=61
    )
  )
  serving_parts.throughput(
    {'': lambda x: engine_serving.serve(engine, x)},
    arrivals[:8],
    1,
  )
  found = serving_parts.overload(engine, arrivals, 0.1)
  assert found.figures.refused > 0
  assert found.figures.served > 0
  assert found.wait[0] > 0.1
  assert engine.limits.wait is None

"""Serves a load by our engine, by the clock.

One loop does what a server's thread would: it submits what has arrived, runs a
round, and notes when tokens came. So no thread takes time from another, and a
token's second is when the engine gave it out.
"""

from collections.abc import Sequence
import time

import numpy as np

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.benchmarks.load_test import load


def serve(
  engine: engine_lib.Engine, arrivals: Sequence[load.Arrival]
) -> list[load.Timeline]:
  """Serves a load in real time, greedily, and returns its timelines.

  Args:
    engine: idle; what it compiles is compiled.
    arrivals: the load, in the order in which it comes, each of an owner of its
      own.

  Returns:
    The timelines, in the order of the arrivals, their seconds since the call
    began. A request that the engine refused has no tokens.
  """
  sequences: list = [None] * len(arrivals)
  times: list[list[float]] = [[] for _ in arrivals]
  begun = time.perf_counter()
  arrived = 0
  while arrived < len(arrivals) or not engine.is_idle:
    now = time.perf_counter() - begun
    while arrived < len(arrivals) and arrivals[arrived].seconds <= now:
      new = _make_request(arrivals[arrived], arrived)
      sequences[arrived] = _submitted(engine, new)
      arrived += 1
    if engine.is_idle:
      if arrived < len(arrivals):
        time.sleep(max(arrivals[arrived].seconds - now, 0))
      continue
    engine.advance()
    now = time.perf_counter() - begun
    for one, seconds in zip(sequences, times):
      if one is not None:
        seconds += [now] * len(one.events)
        one.events.clear()
  return [
    load.Timeline(arrival, _tokens(one), np.array(seconds))
    for arrival, one, seconds in zip(arrivals, sequences, times)
  ]


def warm(engine: engine_lib.Engine, length: int) -> None:
  """Compiles what serving runs, the resumption of a text included."""
  engine.rounds.warm()
  tokens = np.ones(length, np.int32)
  for _ in range(2):
    serve(engine, [load.Arrival(0.0, tokens, 2)])
  forget(engine)


def forget(engine: engine_lib.Engine) -> None:
  """Evicts all points, so that nothing of earlier texts is resumed."""
  while engine.decoder.account.tree.evict():
    pass


def _make_request(arrival: load.Arrival, number: int) -> request.Request:
  return request.Request(
    arrival.tokens,
    arrival.max_tokens,
    sampling.Sampling(temperature=0),
    owner=f'user {number}',
  )


def _submitted(engine: engine_lib.Engine, new: request.Request):
  try:
    return engine.submit(new)
  except request.Busy:
    return None


def _tokens(one) -> np.ndarray:
  return np.zeros(0, np.int32) if one is None else one.result().tokens

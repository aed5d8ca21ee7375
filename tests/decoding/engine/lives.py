"""Engines that live through many requests, on a clock of the test."""

import types

import numpy as np
import pytest

from kaiju_jax.decoding.device import judge
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import searches
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import fake_device
from tests.decoding import phase_table

PAGE, WINDOW, LENGTH, CHUNK = 4, 10, 64, 16


class Clock:
  """Seconds that pass when they are told to."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


@pytest.fixture
def make(monkeypatch):
  """Returns a function that makes an engine; checks that nothing is left."""
  engines = []

  def made(
    rows=3,
    counts=(40, 14),
    length=LENGTH,
    bad=None,
    extra=0,
    version=b'1',
    decoder=None,
    **options,
  ):
    pools = fake_device.pools(length + extra, PAGE, WINDOW, counts)
    monkeypatch.setattr(
      compiled,
      'Rounds',
      lambda decoder, chunk, shares, judge, *_: fake_device.Rounds(
        decoder, chunk, bad, judge is not None
      ),
    )
    names = [f'{number}' for number in range(fake_device.CLASSES)]
    monkeypatch.setattr(
      judge,
      'Judge',
      lambda *_: types.SimpleNamespace(
        names=names, params={}, version=version, check=lambda: None
      ),
    )
    monkeypatch.setattr(
      searches,
      'Searches',
      lambda decoder, _, judge, is_recorded: fake_device.Searches(
        decoder, bad, judge is not None, is_recorded
      ),
    )
    engines.append(
      engine_lib.Engine(
        decoder or fake_device.Decoder(pools, rows, length),
        chunk=CHUNK,
        clock=options.pop('clock', Clock()),
        **options,
      )
    )
    return engines[-1]

  yield made
  for engine in engines:
    nothing_is_left(engine)


@pytest.fixture(autouse=True)
def moves(monkeypatch):
  """Has each sequence's phases checked; returns how often they followed."""
  return phase_table.watched(monkeypatch)


def nothing_is_left(engine):
  """Ends what goes on, and asserts that all is free."""
  engine.drain(0.0)
  assert engine.is_idle
  assert not len(engine._inflight)
  assert len(engine.state.shares) == 0
  assert fake_device.is_empty(engine.decoder)


def make_request(prompt=5, most=4, seed=0, **fields):
  tokens = np.random.default_rng(seed).integers(1, 250, prompt)
  return request_lib.Request(
    tokens, most, sampling.Sampling(seed=seed), **fields
  )

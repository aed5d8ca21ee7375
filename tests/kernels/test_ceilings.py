"""Rates come from counted work over measured seconds."""

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels import ceilings
from kaiju_jax.kernels import timing


def test_operations_and_bytes_over_seconds(monkeypatch):
  settings = {}

  def spreads(runs, repeats, calls):
    settings['results'] = {name: run() for name, run in runs.items()}
    settings['repeats'] = repeats
    seconds = {'bf16_matmul': 0.5, 'int8_matmul': 0.25, 'copy': 2.0}
    return {
      name: timing.Spread(each, each / 2, 2 * each, 3)
      for name, each in seconds.items()
    }

  monkeypatch.setattr(timing, 'spreads', spreads)
  found = ceilings.measure(size=16, mebibytes=1, repeats=3)
  # 16 · 16 sums of 16 products; a MiB read and a MiB written.
  assert found.bf16_matmul == pytest.approx(2 * 16 * 16 * 16 / 0.5)
  assert found.int8_matmul == pytest.approx(2 * 16 * 16 * 16 / 0.25)
  assert found.copy == pytest.approx(2 * 2**20 / 2.0)
  assert settings['repeats'] == 3
  copied = ceilings.spreads(size=16, mebibytes=1, repeats=3)['copy']
  assert copied == (2**20, 2**19, 2**21, 3)
  results = settings['results']
  assert results['bf16_matmul'].dtype == jnp.float32
  assert results['int8_matmul'].dtype == jnp.int32
  # Codes of a normal variable, not rounded away.
  assert jnp.abs(results['int8_matmul']).max() > 1000
  assert results['copy'].nbytes == 2**20


def test_they_are_measured_on_what_is_here():
  found = ceilings.measure(size=32, mebibytes=1, repeats=1)
  assert min(found) > 0
  assert jax.default_backend() == 'cpu'

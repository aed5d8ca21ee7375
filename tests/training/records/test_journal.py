"""Records say how fast, how full and how large a step was."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.training import config
from kaiju_jax.training.records import journal
from kaiju_jax.training.records import metrics
from kaiju_jax.training.records import throughput
from tests.training import toy


class Watch:
  def start_copies(self, values):
    pass

  def note(self, step, values):
    pass


class Progress(types.SimpleNamespace):
  def say(self, text):
    raise AssertionError(text)

  def update(self, *_, **__):
    pass


SCHEDULE = types.SimpleNamespace(row_of=lambda step: 2 * step, rows=100)
CLOCK = throughput.Throughput
LOOP = config.LoopConfig(log_every=2, trackers='')


def _batch(full):
  """Returns [A, B, L], of which the first `full` places of rows hold tokens."""
  rows = [
    packing.row([packing.Piece(np.arange(1, n + 1))] if n else [], 8)
    for n in full
  ]
  batch = packing.stack(rows)
  return batch.map(lambda x: jnp.asarray(x.reshape(2, -1, *x.shape[1:])))


def _write(folder, monkeypatch, *steps, devices=1, **settings):
  """Writes steps of (full, microbatches, seconds); returns the records."""
  clock = types.SimpleNamespace(time=10.0)

  monkeypatch.setattr(
    journal.throughput, 'Throughput', lambda: CLOCK(lambda: clock.time)
  )
  mesh = jax.sharding.Mesh(jax.devices()[:devices], 'x')
  spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  with journal.Journal(
    folder, 0, LOOP, Progress(), SCHEDULE, Watch(), **settings
  ) as one:
    for number, (full, count, seconds) in enumerate(steps, 1):
      values = {'loss': jnp.float32(number)}
      values |= {} if count is None else {'microbatches': jnp.float32(count)}
      tokens = jax.device_put(jnp.float32(32 * number), spread)
      one.step(number, tokens, values, _batch(full))
      clock.time += seconds
    with one.pause():
      pass
  return metrics.read(folder)


def test_padding_is_that_of_the_microbatches_that_count(tmp_path, monkeypatch):
  steps = [
    ((8, 8, 8, 8), None, 1.0),
    ((8, 3, 0, 8), None, 1.0),  # 13 of 32 places hold none.
    ((8, 8, 8, 8), 2, 1.0),
    ((8, 2, 0, 0), 1, 1.0),  # The second microbatch is no row of the step.
    ((8, 8, 8, 8), 2, 1.0),
    ((8, 8, 8, 7), 2, 1.0),
  ]
  found = _write(tmp_path, monkeypatch, *steps)
  assert [one['padding'] for one in found] == [13 / 32, 6 / 16, 1 / 32]


def test_pace_is_per_device_and_per_step(tmp_path, monkeypatch):
  full = (8, 8, 8, 8)
  steps = [(full, None, seconds) for seconds in (50, 4, 1, 3, 2, 6)]
  devices = min(4, jax.device_count())
  found = _write(
    tmp_path, monkeypatch, *steps, devices=devices, token_seconds=0.05
  )
  # The first step's end starts the clock; records are at steps 2, 4 and 6.
  for one, (count, seconds) in zip(
    found, [(1, 4), (2, 4), (2, 8)], strict=True
  ):
    rate = 32 * count / seconds
    assert one['tokens_per_second'] == pytest.approx(rate)
    assert one['tokens_per_second_per_device'] == pytest.approx(rate / devices)
    assert one['step_seconds'] == pytest.approx(seconds / count)
    assert one['mfu'] == pytest.approx(0.05 * rate / devices)


def test_memory_is_that_of_the_fullest_device(tmp_path, monkeypatch):
  known = [None, {'peak_bytes_in_use': 70}, {}, {'peak_bytes_in_use': 90}]
  devices = [types.SimpleNamespace(memory_stats=lambda x=x: x) for x in known]
  monkeypatch.setattr(jax, 'local_devices', lambda: devices)
  (tmp_path / 'some').mkdir()
  steps = [((8, 8, 8, 8), None, 1.0)] * 2
  found = _write(tmp_path / 'some', monkeypatch, *steps)
  assert [one['peak_bytes'] for one in found] == [90]
  del devices[1:]
  found = _write(tmp_path, monkeypatch, *steps)
  assert 'peak_bytes' not in found[0] and 'mfu' not in found[0]


def test_amounts_are_written_at_each_start(tmp_path):
  for until, amounts in (3, {'sources': 1}), (5, {'peak': None}):
    toy.train(tmp_path, until=until, amounts=amounts)
    text = (tmp_path / 'amounts.json').read_text()
    assert next(iter(amounts)) in text

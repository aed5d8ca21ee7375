"""The gate answers in time, and takes one core."""

import collections
import time

import numpy as np
import pytest

from kaiju_jax.serving.safety import gate as gate_lib
from tests.serving import planted


@pytest.fixture(scope='module')
def gate():
  settings = gate_lib.Settings(names=('zorb',))
  rng = np.random.default_rng(0)
  weight_VC = rng.normal(size=(2 * settings.features, 1)).astype(np.float32)
  return gate_lib.Gate(
    settings, weight_VC, np.zeros(1, np.float32), planted.TRAINED
  )


@pytest.fixture(scope='module')
def texts():
  """Windows of 2,000 characters; some are no ASCII."""
  rng = np.random.default_rng(1)
  words = [''.join(rng.choice(list('abcdefghij'), 5)) for _ in range(500)]
  texts = [' '.join(rng.choice(words, 400))[:2_000] for _ in range(20)]
  return texts + [text.replace('a', 'я') for text in texts[:5]]


def count_pieces(text):
  """What Python takes 1.4 ms for where a window may take 10 ms."""
  return collections.Counter(
    text[n : n + width] for width in range(1, 6) for n in range(len(text))
  )


def percentile(gate, texts, clock, count=400):
  """Returns what 99 % of the requests take at most, in `count_pieces`.

  Requests come apart, as a server's do: a process that never waits shares a
  busy core by slices of milliseconds, which says nothing about the gate.
  """
  taken, counted = [], []
  for n in range(count):
    time.sleep(0.003)
    text = texts[n % len(texts)]
    times = [clock()]
    for work in gate.score, count_pieces:
      work(text)
      times.append(clock())
    taken.append(times[1] - times[0])
    counted.append(times[2] - times[1])
  return float(np.quantile(taken, 0.99) / np.median(counted))


@pytest.mark.slow
def test_a_window_takes_the_cores_less_than_10_ms(gate, texts):
  """By their own time, of all threads, which other work hardly changes.

  So a busy process on the same core makes it wait for the core and for no
  thread of its own; and a slow machine is slow at counting, too.
  """
  found = [percentile(gate, texts, time.process_time) for _ in range(3)]
  assert min(found) < 7, found

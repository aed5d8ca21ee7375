"""The gate answers in time, beside a busy process on its core."""

import os
import subprocess
import sys
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


def percentile(gate, texts, clock, count=400):
  """Returns the milliseconds that 99 % of the requests take at most.

  Requests come apart, as a server's do: a process that never waits shares a
  busy core by slices of milliseconds, which says nothing about the gate.
  """
  taken = []
  for n in range(count):
    time.sleep(0.003)
    begun = clock()
    gate.score(texts[n % len(texts)])
    taken.append(1e3 * (clock() - begun))
  return float(np.quantile(taken, 0.99))


@pytest.mark.slow
def test_a_window_takes_a_core_less_than_10_ms(gate, texts):
  """By the core's own time, which other work hardly changes."""
  found = [percentile(gate, texts, time.thread_time) for _ in range(3)]
  assert min(found) < 10, found


@pytest.mark.slow
@pytest.mark.skipif(
  not hasattr(os, 'sched_setaffinity'), reason='cores cannot be chosen here'
)
def test_a_window_takes_less_than_10_ms_beside_a_busy_process(gate, texts):
  cores = os.sched_getaffinity(0)
  if os.getloadavg()[0] > len(cores):
    pytest.skip(
      f'load {os.getloadavg()[0]:.1f} on {len(cores)} cores: more than one busy'
      ' process would be beside the gate'
    )
  core = {min(cores)}
  busy = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
  try:
    os.sched_setaffinity(busy.pid, core)
    os.sched_setaffinity(0, core)
    # Other work on the machine only adds: the best of a few is the gate's own.
    found = [percentile(gate, texts, time.perf_counter) for _ in range(4)]
  finally:
    os.sched_setaffinity(0, cores)
    busy.kill()
    busy.wait()
  assert min(found) < 10, found

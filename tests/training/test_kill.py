"""SIGKILL at any moment leaves a workdir that goes on bit for bit."""

import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from kaiju_jax.training import checkpoint
from kaiju_jax.training.records import metrics
from tests.training import toy

_STEPS = 32
_WIDTH = 200_000  # A save of 2 MB takes longer than a step.
_SECONDS = 120


def _start(folder):
  arguments = [str(folder), str(_STEPS), '1', str(_WIDTH)]
  return subprocess.Popen(
    [sys.executable, str(pathlib.Path(toy.__file__)), *arguments],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
  )


def _wait_for(condition, process):
  """Polls closely, for the moment that is waited for is short."""
  end = time.monotonic() + _SECONDS
  while not condition():
    assert process.poll() is None, process.communicate()[1].decode()
    assert time.monotonic() < end, 'the run does not get on'
    time.sleep(0.0005)


def _kill(process):
  process.send_signal(signal.SIGKILL)
  process.communicate(timeout=_SECONDS)


def _latest(folder):
  steps = [p.name for p in (folder / 'checkpoints').glob('*')]
  return max((int(name) for name in steps if name.isdigit()), default=0)


def _halves(folder):
  return list((folder / 'checkpoints').glob('*.orbax-checkpoint-tmp'))


@pytest.mark.slow
def test_killed_again_and_again(tmp_path):
  draw = random.Random(0)
  folder = tmp_path / 'killed'
  in_a_save = 0
  for attempt in range(5):
    process = _start(folder)
    before = _latest(folder)
    _wait_for(lambda b=before: _latest(folder) > b, process)
    if attempt % 2:
      time.sleep(draw.uniform(0, 0.1))
    else:
      _wait_for(lambda: _halves(folder), process)
    _kill(process)
    in_a_save += bool(_halves(folder))
    assert _latest(folder) > before, 'work of finished saves is lost'
  assert in_a_save, 'no kill fell into a save'
  assert _latest(folder) < _STEPS, 'the run was over before it was killed'

  last = _latest(folder)
  process = _start(folder)
  _, errors = process.communicate(timeout=_SECONDS)
  assert process.returncode == 0, errors.decode()
  assert f'going on from step {last} of {_STEPS}' in errors.decode()

  whole = toy.train(
    tmp_path / 'whole',
    toy.experiment(_STEPS, checkpoint_every=_STEPS),
    width=_WIDTH,
  )
  state, step = checkpoint.load(folder, toy.initial(_WIDTH))
  assert step == _STEPS
  jax.tree.map(np.testing.assert_array_equal, state, whole)
  assert _records(folder) == _records(tmp_path / 'whole')


def _records(folder):
  return [
    {k: v for k, v in record.items() if k not in metrics.TIMING}
    for record in metrics.read(folder)
  ]

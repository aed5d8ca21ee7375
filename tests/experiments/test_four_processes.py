"""Four real processes on a mesh of 2 × 2, both of whose axes cross processes.

int8 weights, Squinch gradients and the sequence all go from process to process
here. Bungee is off: its scalars are sums over all four devices, in an order
that one process and four do not share; all other sums are of two.
"""

import signal

import pytest

from tests import cluster
from tests import records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 8
COUNT = 4
# Process 0 hears of its end and tells the other two.
LOST = 2


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('four')
  cluster.write_texts(path)
  return path


def command(folder, workdir):
  overrides = {
    'model.quantization.bungee': False,
    'data.held_out': 0.0,
    'data.evaluated_rows': None,
    'loop.steps': STEPS,
    'loop.checkpoint_every': STEPS // 2,
  }
  arguments = cluster.arguments(folder, workdir, 'int8', **overrides)
  return [*arguments, '--fsdp=2', '--tensor=2']


def job(folder, workdir):
  return cluster.Job(workdir, command(folder, workdir), COUNT)


@pytest.fixture(scope='module')
def interrupted(folder):
  """The workdir of four processes, one of which was killed halfway."""
  workdir = folder / 'interrupted'
  with job(folder, workdir) as running:
    running.until_saved()
    seconds = running.kill(LOST)
    statuses, said = running.ended()
  print(f'process {LOST} of {COUNT} killed: all ended after {seconds:.2f} s')
  assert seconds < 60
  wanted = [1] * COUNT
  wanted[LOST] = -signal.SIGKILL
  assert statuses == wanted, said
  for lines in said[:LOST] + said[LOST + 1 :]:
    assert f'error: process {LOST} of {COUNT} is gone' in lines
    assert 'resumes from the last checkpoint' in lines
  assert cluster.saved(workdir) == {str(STEPS // 2)}
  return workdir


def test_after_a_kill_four_processes_end_as_one_with_four_devices(
  folder, interrupted
):
  """To the last bit: every parameter, moment and record."""
  with job(folder, interrupted) as running:
    statuses, said = running.ended()
  assert statuses == [0] * COUNT, said
  assert f'going on from step {STEPS // 2}' in said[0]
  alone = folder / 'alone'
  cluster.alone(command(folder, alone), devices=COUNT)
  assert records.of(interrupted) == records.of(alone)
  assert [record['step'] for record in records.of(alone)] == list(
    range(1, STEPS + 1)
  )
  assert cluster.fingerprint(interrupted, STEPS) == cluster.fingerprint(
    alone, STEPS
  )

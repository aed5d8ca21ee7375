"""Two real processes, one device each, train together: gloo on a CPU.

`test_four_processes.py` kills one.
"""

import signal

import pytest

from tests import cluster
from tests import records

STEPS = 16


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('processes')
  cluster.write_texts(path)
  return path


def command(folder, workdir, *flags):
  overrides = {'loop.steps': STEPS}
  return [*cluster.arguments(folder, workdir, 'f32', **overrides), *flags]


def job(folder, workdir, *flags, only_last=()):
  return cluster.Job(workdir, command(folder, workdir, *flags), 2, only_last)


@pytest.mark.slow
def test_two_processes_that_a_signal_stops_train_as_one_with_two_devices(
  folder,
):
  """To the last bit: sums of two do not depend on their order."""
  workdir = folder / 'interrupted'
  with job(folder, workdir, '--fsdp=2') as running:
    running.until_saved()
    running.processes[1].send_signal(signal.SIGTERM)
    statuses, said = running.ended()
  assert statuses == [0, 0], said
  assert 'stopped and saved at step' in said[0]
  assert str(STEPS) not in cluster.saved(workdir)

  with job(folder, workdir, '--fsdp=2') as running:
    statuses, said = running.ended()
  assert statuses == [0, 0], said
  assert 'going on from step' in said[0]
  assert f'done, {STEPS} steps' in said[0]
  assert 'step' not in said[1]  # One of them speaks for both.
  alone = folder / 'alone'
  cluster.alone(command(folder, alone, '--fsdp=2'), devices=2)
  assert records.of(workdir) == records.of(alone)
  assert len(records.of(alone)) == STEPS + 1
  assert cluster.fingerprint(workdir, STEPS) == cluster.fingerprint(
    alone, STEPS
  )


def test_processes_with_different_configs_are_refused(folder):
  workdir = folder / 'different'
  other = ['--config.model.window=16']
  with job(folder, workdir, '--fsdp=2', only_last=other) as running:
    statuses, said = running.ended()
  assert statuses == [1, 1]
  for line in said:
    assert 'process 0 and process 1 of 2 do not run the same' in line
    assert 'model.window: 8 in process 0, 16 in process 1' in line
  assert not workdir.exists()


@pytest.mark.slow
def test_a_mesh_that_is_not_the_devices_is_refused(folder):
  workdir = folder / 'mesh'
  with job(folder, workdir, '--fsdp=1', '--tensor=1') as running:
    statuses, said = running.ended()
  assert statuses == [1, 1]
  for line in said:
    assert 'is 1 devices, but there are 2 (cpu)' in line
  assert not workdir.exists()

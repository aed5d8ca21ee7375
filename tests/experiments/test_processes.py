"""Real processes, one device each, train together: gloo on a CPU.

Four are a mesh of 2 × 2, both of whose axes cross processes: int8 weights,
Squinch gradients and the sequence all go from process to process. Bungee is off
there: its scalars are sums over all four devices, in an order that one process
and four do not share; all other sums are of two.
"""

import signal

import pytest

from tests import cluster
from tests import records


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('processes')
  cluster.write_texts(path)
  return path


def two(folder, name, *flags):
  """The command of two processes, and its workdir."""
  found = cluster.arguments(folder, folder / name, 'f32', **{'loop.steps': 16})
  return [*found, *flags], folder / name


def four(folder, name):
  overrides = {
    'model.quantization.bungee': False,
    'data.held_out': 0.0,
    'data.evaluated_rows': None,
    'loop.steps': 8,
    'loop.checkpoint_every': 4,
  }
  found = cluster.arguments(folder, folder / name, 'int8', **overrides)
  return [*found, '--fsdp=2', '--tensor=2'], folder / name


def assert_trained_as_alone(workdir, command, devices, steps):
  """To the last bit: every parameter, moment and record."""
  alone = workdir.with_name(f'{workdir.name}_alone')
  words = [word.replace(str(workdir), str(alone)) for word in command]
  cluster.alone(words, devices)
  assert records.of(workdir) == records.of(alone)
  assert [one['step'] for one in records.of(alone)][:steps] == [
    *range(1, steps + 1)
  ]
  found = cluster.fingerprint(workdir, steps)
  assert found == cluster.fingerprint(alone, steps)


@pytest.mark.slow
def test_two_processes_that_a_signal_stops_train_as_one_with_two_devices(
  folder,
):
  """To the last bit: sums of two do not depend on their order."""
  command, workdir = two(folder, 'interrupted', '--fsdp=2')
  with cluster.Job(workdir, command, 2) as running:
    running.until_saved()
    running.processes[1].send_signal(signal.SIGTERM)
    statuses, said = running.ended()
  assert statuses == [0, 0], said
  assert 'stopped and saved at step' in said[0]
  assert '16' not in cluster.saved(workdir)

  with cluster.Job(workdir, command, 2) as running:
    statuses, said = running.ended()
  assert statuses == [0, 0], said
  assert 'going on from step' in said[0]
  assert 'done, 16 steps' in said[0]
  assert 'step' not in said[1]  # One of them speaks for both.
  assert len(records.of(workdir)) == 17
  assert_trained_as_alone(workdir, command, 2, 16)


def test_processes_with_different_configs_are_refused(folder):
  command, workdir = two(folder, 'different', '--fsdp=2')
  other = ['--config.model.window=16']
  with cluster.Job(workdir, command, 2, only_last=other) as running:
    statuses, said = running.ended()
  assert statuses == [1, 1]
  for line in said:
    assert 'process 0 and process 1 of 2 do not run the same' in line
    assert 'model.window: 8 in process 0, 16 in process 1' in line
  assert not workdir.exists()


@pytest.mark.slow
def test_a_mesh_that_is_not_the_devices_is_refused(folder):
  command, workdir = two(folder, 'mesh', '--fsdp=1', '--tensor=1')
  with cluster.Job(workdir, command, 2) as running:
    statuses, said = running.ended()
  assert statuses == [1, 1]
  for line in said:
    assert 'is 1 devices, but there are 2 (cpu)' in line
  assert not workdir.exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_kill_four_processes_end_as_one_with_four_devices(folder):
  command, workdir = four(folder, 'killed')
  lost = 2  # Process 0 hears of its end and tells the other two.
  with cluster.Job(workdir, command, 4) as running:
    running.until_saved()
    seconds = running.kill(lost)
    statuses, said = running.ended()
  print(f'process {lost} of 4 killed: all ended after {seconds:.2f} s')
  assert seconds < 60
  assert statuses == [1, 1, -signal.SIGKILL, 1], said
  for lines in said[:lost] + said[lost + 1 :]:
    assert f'error: process {lost} of 4 is gone' in lines
    assert 'resumes from the last checkpoint' in lines
  assert cluster.saved(workdir) == {'4'}
  with cluster.Job(workdir, command, 4) as running:
    statuses, said = running.ended()
  assert statuses == [0] * 4, said
  assert 'going on from step 4' in said[0]
  assert_trained_as_alone(workdir, command, 4, 8)

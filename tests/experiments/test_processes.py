"""Two real processes, one device each, train together: gloo on a CPU."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests import runs

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 16
TIMEOUT = 200


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Three small files of text, one of which is held out."""
  path = tmp_path_factory.mktemp('processes')
  (path / 'texts').mkdir()
  for n in range(12):
    (path / 'texts' / f'{n}.txt').write_text(f'{n} green bottles. ' * 60)
  return path


def arguments(folder, workdir, **overrides):
  overrides = {
    'model.d_model': 16,
    'model.layout': 'L0',
    'model.num_heads': 2,
    'model.head_dim': 8,
    'model.d_ff': 32,
    'model.max_length': 64,
    'model.window': 8,
    'data.path': folder / 'texts',
    'data.length': 32,
    'data.batch': 4,
    'data.held_out': 0.2,
    'data.evaluated_rows': 4,
    'loop.steps': STEPS,
    'loop.log_every': 1,
    'loop.evaluate_every': 0,
    'loop.checkpoint_every': 2,
    **overrides,
  }
  return [
    sys.executable,
    '-m',
    'experiments.train',
    '--config=experiments/configs/tiny.py:f32',
    f'--workdir={workdir}',
    *(f'--config.{name}={value}' for name, value in overrides.items()),
  ]


def environment(folder, devices):
  """What takes seconds to compile is compiled once for all jobs here."""
  return os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
    'JAX_COMPILATION_CACHE_DIR': str(folder / 'cache'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.1',
    'PYTHONFAULTHANDLER': '1',
  }


class Job:
  """Two processes; none of them outlives the test."""

  def __init__(self, folder, workdir, *flags, only_second=(), **overrides):
    with socket.socket() as probe:
      probe.bind(('127.0.0.1', 0))
      address = f'127.0.0.1:{probe.getsockname()[1]}'
    self.processes = [
      subprocess.Popen(
        [
          *arguments(folder, workdir, **overrides),
          '--multihost',
          f'--coordinator={address}',
          '--processes=2',
          f'--process={index}',
          *flags,
          *(only_second if index else ()),
        ],
        cwd=ROOT,
        env=environment(folder, devices=1),
        stderr=subprocess.PIPE,
        text=True,
      )
      for index in range(2)
    ]
    self._workdir = workdir

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.kill()
      process.wait()
      process.stderr.close()

  def until_saved(self):
    """Waits for a checkpoint of its own, after which much is left to do."""
    before = saved(self._workdir)
    deadline = time.monotonic() + TIMEOUT
    while saved(self._workdir) <= before:
      assert time.monotonic() < deadline
      for process in self.processes:
        assert process.poll() is None, process.stderr.read()
      time.sleep(0.01)

  def ended(self):
    """Returns the statuses, and what was said."""
    said = [one.communicate(timeout=TIMEOUT)[1] for one in self.processes]
    return [one.returncode for one in self.processes], said


def saved(workdir):
  """Returns the steps of the checkpoints."""
  return {
    path.name
    for path in workdir.glob('checkpoints/[0-9]*')
    if path.name.isdecimal()
  }


def fingerprint(workdir):
  """Sums over the bits of every array of the last checkpoint."""
  file = workdir / 'checkpoints' / str(STEPS) / 'fingerprint' / 'metadata'
  return json.loads(file.read_text())


@pytest.fixture(scope='module')
def whole(folder):
  """The workdir of two processes that nothing interrupts."""
  workdir = folder / 'whole'
  with Job(folder, workdir, '--fsdp=2') as job:
    statuses, said = job.ended()
  assert statuses == [0, 0], said
  assert f'done, {STEPS} steps' in said[0]
  assert 'step' not in said[1]  # One of them speaks for both.
  return workdir


def test_two_processes_train_as_one_with_two_devices(folder, whole):
  """To the last bit: sums of two do not depend on their order."""
  alone = folder / 'alone'
  subprocess.run(
    [*arguments(folder, alone), '--fsdp=2'],
    cwd=ROOT,
    env=environment(folder, devices=2),
    check=True,
    timeout=TIMEOUT,
  )
  assert runs.records(whole) == runs.records(alone)
  assert len(runs.records(whole)) == STEPS + 1
  assert fingerprint(whole) == fingerprint(alone)


def test_what_a_kill_and_a_signal_interrupt_ends_as_if_nothing_had(
  folder, whole
):
  workdir = folder / 'interrupted'
  with Job(folder, workdir, '--fsdp=2') as job:
    job.until_saved()
    job.processes[1].kill()
    killed = time.monotonic()
    statuses, said = job.ended()
    assert time.monotonic() - killed < 60
  assert statuses == [1, -signal.SIGKILL]
  assert 'error: process 1 of 2 is gone' in said[0]

  with Job(folder, workdir, '--fsdp=2') as job:
    job.until_saved()
    job.processes[1].send_signal(signal.SIGTERM)
    statuses, said = job.ended()
  assert statuses == [0, 0], said
  assert 'going on from step' in said[0]
  assert 'stopped and saved at step' in said[0]
  assert str(STEPS) not in saved(workdir)

  with Job(folder, workdir, '--fsdp=2') as job:
    statuses, said = job.ended()
  assert statuses == [0, 0], said
  assert 'going on from step' in said[0]
  assert runs.records(workdir) == runs.records(whole)
  assert fingerprint(workdir) == fingerprint(whole)


def test_processes_with_different_configs_are_refused(folder):
  workdir = folder / 'different'
  with Job(
    folder, workdir, '--fsdp=2', only_second=['--config.model.window=16']
  ) as job:
    statuses, said = job.ended()
  assert statuses == [1, 1]
  for line in said:
    assert 'process 0 and process 1 of 2 do not run the same' in line
    assert 'model.window: 8 in process 0, 16 in process 1' in line
  assert not workdir.exists()


def test_a_mesh_that_is_not_the_devices_is_refused(folder):
  workdir = folder / 'mesh'
  with Job(folder, workdir, '--fsdp=1', '--tensor=1') as job:
    statuses, said = job.ended()
  assert statuses == [1, 1]
  for line in said:
    assert 'is 1 devices, but there are 2 (cpu)' in line
  assert not workdir.exists()

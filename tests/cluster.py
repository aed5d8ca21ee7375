"""Several real processes, one device each, that train together on this CPU."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from tests import ports

ROOT = pathlib.Path(__file__).parents[1]
# Seconds to wait for anything, so that a job that hangs fails.
TIMEOUT = 200
# LLVM's cheapest settings, as in `make test`, where none are given.
_CHEAP = (
  '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
)
_COUNT = '--xla_force_host_platform_device_count'


def write_texts(folder: pathlib.Path) -> None:
  """Writes small files of text, some of which are held out."""
  (folder / 'texts').mkdir()
  for n in range(12):
    (folder / 'texts' / f'{n}.txt').write_text(f'{n} green bottles. ' * 60)


def arguments(folder, workdir, arm, **overrides) -> list[str]:
  """Returns the command that trains an arm of `tiny`, made small.

  An override of None leaves the config's value.
  """
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
    'loop.log_every': 1,
    'loop.evaluate_every': 0,
    'loop.checkpoint_every': 2,
    **overrides,
  }
  return [
    sys.executable,
    '-m',
    'experiments.train',
    f'--config=experiments/configs/tiny.py:{arm}',
    f'--workdir={workdir}',
    *(
      f'--config.{name}={value}'
      for name, value in overrides.items()
      if value is not None
    ),
  ]


def environment(devices) -> dict[str, str]:
  """Returns the environment of a process with that many devices."""
  given = os.environ.get('XLA_FLAGS', '').split()
  kept = [flag for flag in given if not flag.startswith(_COUNT)]
  return os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': ' '.join([f'{_COUNT}={devices}', *(kept or [_CHEAP])]),
    'PYTHONFAULTHANDLER': '1',
  }


def alone(command, devices) -> None:
  """Runs the command in one process with that many devices."""
  subprocess.run(
    command,
    cwd=ROOT,
    env=environment(devices),
    check=True,
    timeout=TIMEOUT,
  )


class Job:
  """Processes that run one command; none of them outlives the test.

  Args:
    workdir: the command's.
    command: what `arguments` returns, and further flags.
    count: number of processes.
    only_last: flags for the last process alone.
  """

  def __init__(self, workdir, command, count, only_last=()):
    address = f'127.0.0.1:{ports.free()}'
    self.processes = [
      subprocess.Popen(
        [
          *command,
          '--multihost',
          f'--coordinator={address}',
          f'--processes={count}',
          f'--process={index}',
          *(only_last if index == count - 1 else ()),
        ],
        cwd=ROOT,
        env=environment(devices=1),
        stderr=subprocess.PIPE,
        text=True,
      )
      for index in range(count)
    ]
    self._workdir = workdir

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.kill()
      process.wait()
      process.stderr.close()

  def until_saved(self) -> None:
    """Waits for a new checkpoint, after which much is left to do."""
    before = saved(self._workdir)
    deadline = time.monotonic() + TIMEOUT
    while saved(self._workdir) <= before:
      assert time.monotonic() < deadline
      for process in self.processes:
        assert process.poll() is None, process.stderr.read()
      time.sleep(0.01)

  def kill(self, index) -> float:
    """Kills one process; returns the seconds until all others have ended."""
    self.processes[index].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for process in self.processes:
      process.wait(timeout=TIMEOUT)
    return time.monotonic() - killed

  def ended(self):
    """Returns the statuses and what was written to standard error."""
    said = [one.communicate(timeout=TIMEOUT)[1] for one in self.processes]
    return [one.returncode for one in self.processes], said


def saved(workdir) -> set[str]:
  """Returns the steps of the checkpoints."""
  return {
    path.name
    for path in workdir.glob('checkpoints/[0-9]*')
    if path.name.isdecimal()
  }


def fingerprint(workdir, step) -> dict:
  """Returns sums over the bits of every array of a checkpoint."""
  file = workdir / 'checkpoints' / str(step) / 'fingerprint' / 'metadata'
  return json.loads(file.read_text())

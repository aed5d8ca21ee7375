"""Runs commands side by side, each on its own cores.

XLA and the BLAS libraries size their thread pools, when a process starts, by
the cores it may use: N jobs that each use all C cores would compete with N·C
threads. So the module divides the cores into slices, one per simultaneous job,
and pins a job to its slice before it starts. (On systems without core affinity,
such as macOS, jobs share all cores.)
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import os
import pathlib
import shlex
import signal
import subprocess
import time

# Seconds that a job may take to save once it is told to stop.
PATIENCE = 120.0
_POLL = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
  """A command, and the file to which its output is appended."""

  name: str
  command: tuple[str, ...]
  log: pathlib.Path


@dataclasses.dataclass
class _Running:
  job: Job
  process: subprocess.Popen
  started: float


def core_slices(cores: Sequence[int], places: int) -> list[tuple[int, ...]]:
  """Returns the cores of each place: disjoint, or one each if cores are few."""
  if places >= len(cores):
    return [(cores[place % len(cores)],) for place in range(places)]
  bounds = [place * len(cores) // places for place in range(places + 1)]
  return [tuple(cores[a:b]) for a, b in itertools.pairwise(bounds)]


def run(
  jobs: Sequence[Job],
  at_once: int,
  *,
  on_start: Callable[[Job], None],
  on_end: Callable[[Job, int, float], None],
  tick: Callable[[], None],
) -> bool:
  """Runs all jobs, `at_once` of them at a time; a failure stops no other job.

  After Ctrl-C or SIGTERM no more jobs start; it sends SIGTERM to the running
  ones and waits for them. A second signal kills them.

  Args:
    jobs: the jobs, in the order in which they start.
    at_once: the number of places for running jobs.
    on_start: called with each job as it starts.
    on_end: called with each job, its exit status (negative: the signal that
      ended it) and its seconds.
    tick: called about ten times a second.

  Returns:
    Whether it was not interrupted.

  Raises:
    KeyboardInterrupt: at a second Ctrl-C, once no job runs.
  """
  cores = own_cores()
  slices = core_slices(cores, at_once) if cores else [()] * at_once
  waiting = list(reversed(jobs))
  running: dict[int, _Running] = {}

  def reap() -> None:
    for place, current in list(running.items()):
      status = current.process.poll()
      if status is not None:
        del running[place]
        on_end(current.job, status, time.monotonic() - current.started)

  with _interruptions() as interruptions:
    try:
      while (waiting or running) and not interruptions:
        for place in range(at_once):
          if waiting and place not in running:
            job = waiting.pop()
            on_start(job)
            process = _start(job, slices[place])
            running[place] = _Running(job, process, time.monotonic())
        time.sleep(_POLL)
        reap()
        tick()
    finally:
      if running:
        _stop(running, reap)
  return not interruptions


@contextlib.contextmanager
def _interruptions() -> Iterator[list[int]]:
  """Notes a first SIGINT or SIGTERM; a second one raises KeyboardInterrupt.

  An exception could fall between the start of a job and our record of it, and
  leave the job running forever; a note cannot.
  """
  noted = []

  def note(number, frame):
    if noted:
      raise KeyboardInterrupt
    noted.append(number)
    os.write(2, b'\nInterrupted: letting the runs save. Again to kill them.\n')

  # An ignored signal stays ignored: a shell's background jobs ignore Ctrl-C.
  former = {
    number: signal.signal(number, note)
    for number in (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(number) != signal.SIG_IGN
  }
  try:
    yield noted
  finally:
    for number, handler in former.items():
      signal.signal(number, handler)


def own_cores() -> list[int]:
  """Returns the cores that this process may use; none if that is unknown."""
  if not hasattr(os, 'sched_getaffinity'):
    return []
  return sorted(os.sched_getaffinity(0))


def count_cores() -> int:
  """Returns how many cores this process may use; all where that is unknown."""
  return len(own_cores()) or os.cpu_count() or 1


def _start(job: Job, cores: Sequence[int]) -> subprocess.Popen:
  job.log.parent.mkdir(parents=True, exist_ok=True)
  with open(job.log, 'ab') as log, _pin(cores):
    log.write(f'$ {shlex.join(job.command)}\n'.encode())
    log.flush()
    # In a session of its own, so that Ctrl-C reaches the jobs only through us:
    # a second signal would end a trainer that is saving.
    return subprocess.Popen(
      job.command,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )


@contextlib.contextmanager
def _pin(cores: Sequence[int]) -> Iterator[None]:
  """Pins this thread to `cores`, which child processes inherit."""
  if not cores:
    yield
    return
  own = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, own)


def _stop(running: dict[int, _Running], reap: Callable[[], None]) -> None:
  """Asks every running job to save and end, then makes sure that it did."""
  try:
    for current in running.values():
      current.process.terminate()
    deadline = time.monotonic() + PATIENCE
    while running and time.monotonic() < deadline:
      time.sleep(_POLL)
      reap()
  finally:
    for current in running.values():
      # The whole session: a trainer's own workers must not outlive it.
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(current.process.pid, signal.SIGKILL)
      current.process.wait()
    reap()

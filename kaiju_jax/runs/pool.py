"""Runs commands side by side, each on its own cores and devices.

XLA and the BLAS libraries size their thread pools, when a process starts, by
the cores it may use: N commands that each use all C cores would compete with
N·C threads. So the cores are divided into slices, one per place, and a command
is pinned to its slice before it starts. (On systems without core affinity, such
as macOS, commands share all cores.) `devices.py` makes places that have GPUs or
TPU chips of their own.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import ctypes
import itertools
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import types
from typing import NamedTuple

# Seconds that a command may take to save after SIGTERM.
PATIENCE = 120.0
_POLL_S = 0.1
_PARENT = 'KAIJU_PARENT'  # The process that started this one.
_PR_SET_PDEATHSIG = 1  # Of <linux/prctl.h>.


class Command(NamedTuple):
  """A command, and the file to which its output is appended."""

  name: str
  words: tuple[str, ...]
  log: pathlib.Path


class Place(NamedTuple):
  """What a running command has to itself."""

  cores: tuple[int, ...] = ()  # () for all.
  # Variables beside those of this process.
  environment: Mapping[str, str] = types.MappingProxyType({})


class Ended(NamedTuple):
  """How a command ended; a negative status is the signal that ended it."""

  name: str
  status: int
  seconds: float


class Running(NamedTuple):
  """A command that was started."""

  command: Command
  process: subprocess.Popen[bytes]
  started: float


def core_slices(cores: Sequence[int], places: int) -> list[tuple[int, ...]]:
  """Returns the cores of each place: disjoint, or one each if cores are few."""
  if places >= len(cores):
    return [(cores[place % len(cores)],) for place in range(places)]
  bounds = [place * len(cores) // places for place in range(places + 1)]
  return [tuple(cores[a:b]) for a, b in itertools.pairwise(bounds)]


def share_cores(
  environments: Sequence[Mapping[str, str]],
) -> list[Place]:
  """Returns a place per environment, which share this process's cores."""
  count = len(environments)
  cores = own_cores()
  slices = core_slices(cores, count) if cores else [()] * count
  return [Place(*one) for one in zip(slices, environments)]


def run(
  commands: Sequence[Command], places: Sequence[Place]
) -> Iterator[Ended | None]:
  """Runs commands, one at a time in each place; a failure stops no other.

  What a command started and left behind ends with it, so that its place is free
  for the next one.

  After Ctrl-C or SIGTERM no more commands start; the running ones get SIGTERM
  and are waited for. A second signal kills them.

  Args:
    commands: in the order in which they start.
    places: what the commands run on.

  Yields:
    Each command that ended, and None about ten times a second.

  Raises:
    KeyboardInterrupt: after an interruption, once no command runs.
  """
  waiting = list(reversed(commands))
  running: dict[int, Running] = {}
  ended: list[Ended] = []
  with _interruptions() as interruptions:
    try:
      try:
        while (waiting or running) and not interruptions:
          for number, place in enumerate(places):
            if waiting and number not in running:
              running[number] = start(waiting.pop(), place)
          time.sleep(_POLL_S)
          _collect(running, ended)
          while ended:
            yield ended.pop(0)
          yield None
      finally:
        _stop(running, ended)
    except KeyboardInterrupt:
      pass  # The second signal, which killed what ran.
    yield from ended
    if interruptions:
      raise KeyboardInterrupt


@contextlib.contextmanager
def _interruptions() -> Iterator[list[int]]:
  """Notes a first SIGINT or SIGTERM; a second one raises KeyboardInterrupt.

  An exception could fall between the start of a process and our record of it,
  and leave the process running forever; a note cannot.
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


def start(command: Command, place: Place) -> Running:
  """Starts a command in its place, in a session of its own."""
  command.log.parent.mkdir(parents=True, exist_ok=True)
  with open(command.log, 'ab') as log, _pin(place.cores):
    log.write(f'$ {shlex.join(command.words)}\n'.encode())
    log.flush()
    # So Ctrl-C reaches it only through us: a second signal would end a trainer
    # that is saving.
    process = subprocess.Popen(
      command.words,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
      env={**os.environ, **place.environment, _PARENT: str(os.getpid())},
    )
  return Running(command, process, time.monotonic())


def end_with_parent() -> None:
  """Makes a killed parent's command save and end, as SIGTERM does; on Linux.

  Called by the command that `start` started, because nothing may run between a
  fork and its exec where there are threads. The signal comes when the thread
  ends that called `start`: the main one, which handles signals.
  """
  parent = int(os.environ.pop(_PARENT, 0))
  if sys.platform != 'linux' or not parent:
    return
  if os.getppid() == parent:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  # Not where a command of another kind, which left the variable, is between:
  # what `start` started leads a session.
  is_own = os.getsid(0) == os.getpid()
  if os.getppid() != parent and is_own and _has_ended(parent):
    os.kill(os.getpid(), signal.SIGTERM)


def _has_ended(process: int) -> bool:
  """Returns whether a process has ended, be it waited for or not; on Linux."""
  try:
    stat = pathlib.Path(f'/proc/{process}/stat').read_bytes()
  except (FileNotFoundError, ProcessLookupError):
    return os.path.exists('/proc/self')
  return stat.rpartition(b')')[2].split()[0] in b'ZX'


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


def _collect(running: dict[int, Running], ended: list[Ended]) -> None:
  """Moves the commands that have ended out of `running`."""
  for number, (command, process, started) in list(running.items()):
    if (status := process.poll()) is not None:
      _kill_session(process)
      del running[number]
      seconds = time.monotonic() - started
      ended.append(Ended(command.name, status, seconds))


def _stop(running: dict[int, Running], ended: list[Ended]) -> None:
  """Asks every running command to save and end, then makes sure of it."""
  try:
    for current in running.values():
      current.process.terminate()
    deadline = time.monotonic() + PATIENCE
    while running and time.monotonic() < deadline:
      time.sleep(_POLL_S)
      _collect(running, ended)
  finally:
    for current in running.values():
      _kill_session(current.process)
      current.process.wait()
    _collect(running, ended)


def _kill_session(process: subprocess.Popen) -> None:
  """Kills a command and its own workers, which must not outlive it."""
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, signal.SIGKILL)

"""Runs commands side by side, each on its own cores.

XLA and the BLAS libraries size their thread pools, when a process starts, by
the cores it may use: N commands that each use all C cores would compete with
N·C threads. So the cores are divided into slices, one per place, and a command
is pinned to its slice before it starts. (On systems without core affinity, such
as macOS, commands share all cores.)
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
import os
import pathlib
import shlex
import signal
import subprocess
import time
from typing import NamedTuple

# Seconds that a command may take to save after SIGTERM.
PATIENCE = 120.0
_POLL_S = 0.1


class Command(NamedTuple):
  """A command, and the file to which its output is appended."""

  name: str
  words: tuple[str, ...]
  log: pathlib.Path


class Ended(NamedTuple):
  """How a command ended; a negative status is the signal that ended it."""

  name: str
  status: int
  seconds: float


class _Running(NamedTuple):
  command: Command
  process: subprocess.Popen
  started: float


def core_slices(cores: Sequence[int], places: int) -> list[tuple[int, ...]]:
  """Returns the cores of each place: disjoint, or one each if cores are few."""
  if places >= len(cores):
    return [(cores[place % len(cores)],) for place in range(places)]
  bounds = [place * len(cores) // places for place in range(places + 1)]
  return [tuple(cores[a:b]) for a, b in itertools.pairwise(bounds)]


def run(commands: Sequence[Command], at_once: int) -> Iterator[Ended | None]:
  """Runs commands, `at_once` of them at a time; a failure stops no other.

  After Ctrl-C or SIGTERM no more commands start; the running ones get SIGTERM
  and are waited for. A second signal kills them.

  Args:
    commands: in the order in which they start.
    at_once: the number of places for running commands.

  Yields:
    Each command that ended, and None about ten times a second.

  Raises:
    KeyboardInterrupt: after an interruption, once no command runs.
  """
  cores = own_cores()
  slices = core_slices(cores, at_once) if cores else [()] * at_once
  waiting = list(reversed(commands))
  running: dict[int, _Running] = {}
  ended: list[Ended] = []
  with _interruptions() as interruptions:
    try:
      try:
        while (waiting or running) and not interruptions:
          for place in range(at_once):
            if waiting and place not in running:
              running[place] = _start(waiting.pop(), slices[place])
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


def _start(command: Command, cores: Sequence[int]) -> _Running:
  """Starts a command on its cores, in a session of its own."""
  command.log.parent.mkdir(parents=True, exist_ok=True)
  with open(command.log, 'ab') as log, _pin(cores):
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
    )
  return _Running(command, process, time.monotonic())


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


def _collect(running: dict[int, _Running], ended: list[Ended]) -> None:
  """Moves the commands that have ended out of `running`."""
  for place, (command, process, started) in list(running.items()):
    if (status := process.poll()) is not None:
      del running[place]
      seconds = time.monotonic() - started
      ended.append(Ended(command.name, status, seconds))


def _stop(running: dict[int, _Running], ended: list[Ended]) -> None:
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
      # The whole session: a trainer's own workers must not outlive it.
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(current.process.pid, signal.SIGKILL)
      current.process.wait()
    _collect(running, ended)

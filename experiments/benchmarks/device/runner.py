"""Starts a child per slice, outlives those that die, and keeps the time.

It imports no jax, so that the device belongs to the child alone. A child is a
process group of its own: what it started ends with it, and it ends with the
runner.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

from . import book as book_lib
from . import child
from . import order
from . import setting as setting_lib

# Seconds that a child may go on for after its time. It ends a case that hangs
# itself: this is for one that cannot.
_GRACE = 620
# A rented machine may have several GPUs: one is measured, and the memory of the
# others stays free. The definitions compute on the CPU.
_DEVICE = {'CUDA_VISIBLE_DEVICES': '0'}
# By default JAX leaves a quarter of a GPU's memory unused. It has two names for
# the share, and refuses both at once.
_MEMORY = 'CLIENT_MEM_FRACTION', 'CLIENT_PREALLOCATE', 'CLIENT_ALLOCATOR'


class Refused(ValueError):
  """Nothing can be measured: a child has said why, or the message does."""


def run(
  names: Sequence[str],
  setting: setting_lib.Setting,
  seconds: float,
  say: Callable[[str], None] = print,
) -> None:
  """Works on slices until all are done or the time is up.

  Args:
    names: slices, in order of worth. Those of which an earlier run has
      finished a case come after the others.
    setting: the same for all slices.
    seconds: time for all of them.
    say: prints a line.

  Raises:
    Refused: see there.
  """
  end = time.time() + seconds
  books = {name: book_lib.Book(setting.out, name) for name in names}
  for book in books.values():
    if (book.data['device'] or {}).get('dry', setting.dry) != setting.dry:
      kind = 'a device' if setting.dry else 'a rehearsal'
      raise Refused(f'{book.path} holds figures of {kind}. Name another --out.')
  if setting.retry:
    for book in books.values():
      if book.path.exists():
        book.forget_failures()
  left = {name: book.count_left() for name, book in books.items()}
  for name in names:
    if left[name] == 0:
      say(f'{name}: finished before')
  seen = [n for n in names if any(map(books[n].has, books[n].cases))]
  fresh = [name for name in names if left[name] != 0 and name not in seen]
  again = [name for name in names if left[name] != 0 and name in seen]
  # A rehearsal saves the children's starts: one works on all slices.
  groups = [[*fresh, *again]] if setting.dry else [[n] for n in fresh + again]
  for group in groups:
    _run_group(group, setting, end, say)
  if setting.dry:
    return
  # Time that is over goes to slices that reached their most.
  for name in names:
    if book_lib.Book(setting.out, name).count_left():
      _run_group([name], setting, end, say, whole=True)


def _run_group(group, setting, end, say, whole=False) -> None:
  """Starts children until the slices are done, as far as time allows."""
  # A rehearsal has one child for all, and each slice as long as it takes.
  whole = whole or setting.dry
  seconds = {
    name: end - time.time() if whole else order.SLICES[name].most
    for name in group
  }
  group = list(group)
  while group and time.time() < end:
    begun = time.time()
    limit = end - begun + (setting.case_s or 0) + _GRACE
    status = _run_child(child.Task(group, seconds, end, setting), limit)
    if status == child.DONE:
      return
    if status == child.REFUSED:
      raise Refused(f'{group[0]} and the slices after it cannot be measured.')
    if status != child.MORE:
      problem = _tell(status, time.time() - begun)
      name, case = _bury(group, setting, problem)
      say(f'{name}: {case or "no case"}: {problem}')
      # Without a case to blame, the same child would die in the same way.
      group = group[group.index(name) + (case is None) :]
    for name in group:
      seconds[name] -= time.time() - begun


def _bury(group, setting, problem: str) -> tuple[str, str | None]:
  """Marks what ran when a child died; returns (slice, case)."""
  for name in group:
    book = book_lib.Book(setting.out, name)
    if case := book.fail_running(problem):
      return name, case
  # It died between two cases, before its slice had one.
  untouched = [n for n in group if not book_lib.Book(setting.out, n).cases]
  name = (untouched or group)[0]
  book_lib.Book(setting.out, name).note_problem(problem)
  return name, None


def _tell(status: int, seconds: float) -> str:
  if status == 1:
    return (
      f'the process ended with status 1 after {seconds:.0f} s: it hung, or see'
      ' its last lines'
    )
  if status < 0:
    with contextlib.suppress(ValueError):
      return f'the process was ended by {signal.Signals(-status).name}'
  return f'the process ended with status {status}'


def _environment() -> dict[str, str]:
  """Returns a child's environment; what the user has set stays."""
  made = _DEVICE | os.environ
  if not any(name.endswith(_MEMORY) for name in made):
    made['XLA_CLIENT_MEM_FRACTION'] = '0.92'
  platforms = os.environ.get('JAX_PLATFORMS', '')
  if platforms and 'cpu' not in platforms.split(','):
    made['JAX_PLATFORMS'] = f'{platforms},cpu'
  return made


def _run_child(task: child.Task, limit: float) -> int:
  """Returns the status of a child; ends its group on every other way out."""
  words = [sys.executable, '-m', f'{__package__}.child']
  process = subprocess.Popen(
    [*words, json.dumps(dataclasses.asdict(task))],
    stdin=subprocess.PIPE,
    start_new_session=True,
    env=_environment(),
  )
  try:
    return process.wait(limit)
  except subprocess.TimeoutExpired:
    return -signal.SIGKILL
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    process.wait()

"""A process that works on slices, case by case, until its time is up.

The runner starts it with a `Task` as JSON. It exits with DONE where it has
gone through its slices, with MORE where a case is left for another process,
and with REFUSED, after a line on stderr, where it cannot work at all.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from kaiju_jax.experiments.benchmarks import harness

from . import book as book_lib
from . import order
from . import setting as setting_lib

DONE, REFUSED, MORE = 0, 2, 3


@dataclasses.dataclass(frozen=True)
class Task:
  """What a child shall do."""

  slices: list[str]  # Their names, in order.
  seconds: dict[str, float]  # {slice: seconds that it may take}.
  end: float  # The time, as `time.time` counts it, after which no case begins.
  setting: setting_lib.Setting  # As in `setting`.


def work(task: Task) -> int:
  """Works on the slices; returns the exit status.

  Raises:
    ValueError: the device is not the one that the files are of, or is none.
  """
  facts = None
  for name in task.slices:
    slice_ = order.SLICES[name]
    book = book_lib.Book(task.setting.out, name)
    if slice_.device:
      facts = facts or setting_lib.device(task.setting)
      book.bind(facts)
    else:
      book.bind({'device': None, 'dry': task.setting.dry})
    with _playing(task.setting, slice_):
      try:
        module = load(name)
        cases = list(module.cases(task.setting).items())
        cases = cases[: task.setting.most_cases]
        book.note_cases([case for case, _ in cases])
      except Exception as error:  # The other slices go on, whatever it was.
        traceback.print_exc()
        book.note_problem(f'{type(error).__name__}: {error}')
        continue
      if not _run_slice(name, module, cases, book, task):
        return MORE
  return DONE


def load(name: str) -> Any:
  """Returns a slice, whose functions `__init__` describes."""
  if name in order.KERNELS:
    from . import kernels

    return kernels.Bench(*order.KERNELS[name])
  return importlib.import_module(f'.{name}', __package__)


@contextlib.contextmanager
def _playing(
  setting: setting_lib.Setting, slice_: order.Slice
) -> Iterator[None]:
  """Makes a rehearsal choose and interpret the kernels of its platform."""
  if not (setting.dry and slice_.plays):
    yield
    return
  from kaiju_jax.kernels import dispatch

  with dispatch.compiling_for(setting.platform), dispatch.interpret():
    yield


def _run_slice(name, module, cases, book, task) -> bool:
  """Works on one slice; returns False where another process is to go on."""
  slice_, setting = order.SLICES[name], task.setting
  end = min(task.end, time.time() + task.seconds[name])
  todo = [each for each in cases if not book.has(each[0])]
  print(f'== {name}: {len(todo)} of {len(cases)} cases to do', flush=True)
  for number, (case, (estimate, what)) in enumerate(todo):
    expected, left = estimate * book.pace(), end - time.time()
    if expected > left and not (setting.dry and left > 0):
      why = f'needs about {expected:.0f} s, {max(left, 0):.0f} s are left'
      print(f'{name}: {case}: skipped: {why}', flush=True)
      book.end(case, book_lib.SKIPPED, why=why)
      continue
    book.begin(case)
    can_go_on = _run_case(name, module, case, estimate, what, book, setting)
    if not can_go_on or (slice_.apart and number + 1 < len(todo)):
      return False
  return True


def _run_case(name, module, case, estimate, what, book, setting) -> bool:
  """Measures one case and notes what came of it.

  Returns whether this process can measure more: after a bad address a GPU
  computes nothing more for it.
  """
  from kaiju_jax.kernels import timing

  start = time.time()
  # A first case has none before it, and one that a fault ended has.
  fault = None if book.cases else setting.fault_of(name)
  faulthandler.dump_traceback_later(
    setting.limit(estimate), exit=True, file=sys.__stderr__
  )
  try:
    _strike(fault)
    # A case is not cut off: only its rounds become fewer.
    with (
      timing.bound_time(max(2 * estimate, 10)),
      timing.watch(book.note_trial, book.refusals(case)),
    ):
      record = module.measure(setting, what)
  except timing.DeviceLost as error:
    lost, trial = f'the device was lost: {error}', book.data['trial']
    book.fail_running(lost)
    print(f'{name}: {case}: again without {trial}: {lost}', flush=True)
    return False
  except Exception as error:  # The other cases go on, whatever it was.
    traceback.print_exc()
    book.end(case, book_lib.FAILED, problem=timing.tell(error))
    print(f'{name}: {case}: failed: {timing.tell(error)}', flush=True)
    return not order.SLICES[name].device or timing.answers()
  else:
    seconds = time.time() - start
    book.end(
      case,
      book_lib.DONE,
      seconds=seconds,
      estimate=estimate,
      record=record,
      versions=harness.versions(),
    )
    print(f'{name}: {case}: done, {seconds:.1f} s', flush=True)
    return True
  finally:
    faulthandler.cancel_dump_traceback_later()


def _strike(fault: str | None) -> None:
  """Does what a rehearsal asks for: raises, dies, hangs or interrupts."""
  if fault == 'raise':
    raise RuntimeError('a planted fault')
  if fault == 'kill':
    os.kill(os.getpid(), signal.SIGKILL)
  if fault == 'interrupt':
    os.kill(os.getppid(), signal.SIGINT)
  if fault is not None:
    threading.Event().wait()


def _end_with_the_runner() -> None:
  """Kills this process and what it started once the runner's end is closed."""

  def watch():
    while os.read(0, 1):
      pass
    os.killpg(os.getpgrp(), signal.SIGKILL)

  threading.Thread(target=watch, daemon=True).start()


def main(words: list[str]) -> int:
  fields = json.loads(words[0])
  setting = setting_lib.Setting(**fields.pop('setting'))
  _end_with_the_runner()
  try:
    return work(Task(setting=setting, **fields))
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr, flush=True)
    return REFUSED


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))

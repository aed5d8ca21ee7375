"""Times computations side by side in one process, as far as time is left."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import contextvars
import math
import statistics
import time
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_end = contextvars.ContextVar('end', default=math.inf)
_watch = contextvars.ContextVar('watch', default=None)


class DeviceLost(BaseException):
  """The device is unusable in this process, e.g. after an illegal address.

  Not an `Exception`, so that benchmark loops which skip failures stop.
  """


class Spread(NamedTuple):
  """A figure that was taken several times, such as the seconds of a call."""

  median: float  # Of all rounds.
  least: float  # Of all rounds.
  most: float  # Of all rounds.
  rounds: int  # How often it was taken.


def spread(values: Sequence[float]) -> Spread:
  """Returns the spread of one or more values."""
  middle = statistics.median(values)
  return Spread(middle, min(values), max(values), len(values))


@contextlib.contextmanager
def bound_time(seconds: float) -> Iterator[None]:
  """Makes timings inside it begin no further round after so many seconds."""
  token = _end.set(min(_end.get(), time.perf_counter() + seconds))
  try:
    yield
  finally:
    _end.reset(token)


def time_left() -> float:
  """Returns the seconds that `bound_time` leaves; infinity outside of it."""
  return _end.get() - time.perf_counter()


class _Watch(NamedTuple):
  note: Callable[[str | None], None]
  refused: Mapping[str, str]


@contextlib.contextmanager
def watch(
  note: Callable[[str | None], None], refused: Mapping[str, str]
) -> Iterator[None]:
  """Reports each `trial` inside it before it begins.

  Args:
    note: takes the name of the trial that begins, and None when it has ended.
      What it wrote last tells which trial ended the process.
    refused: {trial: why it is not to begin}.
  """
  token = _watch.set(_Watch(note, refused))
  try:
    yield
  finally:
    _watch.reset(token)


@contextlib.contextmanager
def trial(name: str) -> Iterator[None]:
  """Surrounds a computation that may end the process, or lose the device.

  Raises:
    RuntimeError: `watch` refuses it; says why.
    DeviceLost: the computation failed, and the device computes no more.
  """
  watch = _watch.get()
  if watch is None:
    yield
    return
  if name in watch.refused:
    raise RuntimeError(f'left out: {watch.refused[name]}')
  watch.note(name)
  try:
    yield
  except Exception as error:
    if not answers():
      raise DeviceLost(tell(error)) from error
    watch.note(None)
    raise
  watch.note(None)


def answers() -> bool:
  """Returns whether the device still computes for this process."""
  try:
    return int(jnp.sum(jax.device_put(np.arange(4, dtype=np.int32)))) == 6
  except Exception:  # Whatever a lost device raises.
    return False


def spreads(
  runs: Mapping[str, Callable[[], Any]],
  repeats: int,
  calls: int = 1,
  clock: Callable[[], float] | None = None,
) -> dict[str, Spread]:
  """Returns the seconds of a call of each run.

  Every round times each run once, so that other load on the machine affects all
  runs alike. An untimed call precedes each timed one, because a run that frees
  gigabytes slows down the call after it. There is at least one round.

  Args:
    runs: calls by name, each of which returns arrays.
    repeats: rounds, as far as `bound_time` leaves time.
    calls: calls per timing. They are dispatched one after the other with one
      wait at the end, so that an accelerator computes while Python dispatches.
    clock: by default the wall's. `time.process_time` gives processor time, of
      all threads together: other work on the machine changes it little, where
      wall time says how long a long computation waited for its core.
  """
  clock = clock or time.perf_counter
  seconds = {name: [] for name in runs}
  for number in range(repeats):
    if number and time_left() <= 0:
      break
    for name, run in runs.items():
      # A race may lose the device in a later call than the first.
      with trial(name) if not number else contextlib.nullcontext():
        jax.block_until_ready(run())
      start = clock()
      for _ in range(calls):
        last = run()
      jax.block_until_ready(last)
      seconds[name].append((clock() - start) / calls)
  return {name: spread(each) for name, each in seconds.items()}


def tell(error: Exception) -> str:
  """Returns an error's type and the first line of its message."""
  return f'{type(error).__name__}: {error}'.splitlines()[0]


def medians(
  runs: Mapping[str, Callable[[], Any]],
  repeats: int,
  calls: int = 1,
  clock: Callable[[], float] | None = None,
) -> dict[str, float]:
  """Returns the median seconds of a call of each run; see `spreads`."""
  found = spreads(runs, repeats, calls, clock)
  return {name: each.median for name, each in found.items()}

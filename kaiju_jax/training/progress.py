"""Shows how far something is: a live line on a terminal, plain lines elsewhere.

The one progress bar of the project; training uses it, and so do all commands.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import datetime
import time
from typing import Any
from typing import Self

import rich.console
import rich.progress


class Progress:
  """A line on stderr with what is done, and the time left.

  On a terminal it stays in place and messages appear above it; elsewhere a new
  line is printed now and then.
  """

  def __init__(
    self,
    what: str,
    total: float = 0,
    console: rich.console.Console | None = None,
    *,
    quiet: bool = False,
    every: float = 20.0,
  ):
    """Shows nothing yet.

    Args:
      what: is counted, such as 'step'.
      total: how many there are; 0 if nobody knows. `update` may change it.
      console: by default stderr.
      quiet: shows nothing, for all but one of several processes.
      every: seconds between two plain lines at least; the last one is always
        printed.
    """
    self._what, self._total, self._every = what, total, every
    self._console = console or rich.console.Console(stderr=True, quiet=quiet)
    self._live = self._first = self._said = None

  @property
  def is_live(self) -> bool:
    """Whether the line stays in place."""
    return self._console.is_terminal and not self._console.is_dumb_terminal

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self._leave()

  def say(self, text: str) -> None:
    """Prints a message without markup or wrapping."""
    self._console.print(text, markup=False, highlight=False, soft_wrap=True)

  def end(self, text: str) -> None:
    """Stops the progress line, and prints the last message below it."""
    self._leave()
    self.say(text)

  def begin(self, done: float, text: str) -> None:
    """Shows the line before there is a pace, such as while a step compiles."""
    if self.is_live:
      self._show(done, text)
    else:
      self.say(f'{self._count(done)}  {text}')

  def update(
    self,
    done: float,
    *texts: str,
    total: float | None = None,
    left: float | None = None,
  ) -> None:
    """Shows how many are done.

    Args:
      done: of `total`.
      *texts: shown behind it; '' is left out.
      total: a new total.
      left: seconds left; by default as the pace since the first call says.
    """
    now = time.monotonic()
    self._total = self._total if total is None else total
    self._first = self._first or (now, done)
    left = self._left(now, done) if left is None else left
    timed = () if left is None else (f'{_clock(left)} left',)
    text = '  '.join(filter(None, (*texts, *timed)))
    if self.is_live:
      self._show(done, text)
    elif (
      self._said is None
      or now >= self._said + self._every
      or (self._total and done >= self._total)
    ):
      self._said = now
      self.say('  '.join(filter(None, (self._count(done), text))))

  def _count(self, done: float) -> str:
    of = f'/{self._total:.0f}' if self._total else ''
    return f'{self._what} {done:.0f}{of}'

  def _left(self, now: float, done: float) -> float | None:
    begun, before = self._first
    if done <= before or not self._total:
      return None
    return (now - begun) / (done - before) * (self._total - done)

  def _leave(self) -> None:
    if self._live:
      self._live.stop()

  def _show(self, done: float, text: str) -> None:
    if not self._live:
      self._live = rich.progress.Progress(
        rich.progress.TextColumn(self._what, markup=False),
        rich.progress.MofNCompleteColumn(),
        rich.progress.BarColumn(),
        rich.progress.TextColumn('{task.fields[text]}', markup=False),
        console=self._console,
        refresh_per_second=4,
      )
      self._live.add_task('', total=self._total or None, text=text)
      self._live.start()
    task = self._live.task_ids[0]
    # rich shows None as '?'.
    total = self._total or None
    self._live.update(task, completed=done, total=total, text=text)


def track(items: Iterable[Any], what: str, total: int = 0) -> Iterator[Any]:
  """Yields the items, and shows on a terminal how many were taken.

  Args:
    items: what is counted.
    what: its name.
    total: how many; by default as many as `items` has.
  """
  with Progress(what, total or len(items), every=float('inf')) as progress:
    for done, item in enumerate(items):
      if progress.is_live:
        progress.update(done)
      yield item


def stdout() -> rich.console.Console:
  """Returns what shows a `Progress` on stdout."""
  return rich.console.Console()


@contextlib.contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
  """Shows on a terminal what is being done; yields what changes the text."""
  with stdout().status(text) as shown:
    yield shown.update


def short(quantity: float) -> str:
  """Returns a quantity in few characters: 950, 45.1k, 3.2M, 1.2G."""
  for unit in ('', 'k', 'M'):
    if quantity < 999.5:
      return f'{quantity:.0f}' if not unit else f'{quantity:.1f}{unit}'
    quantity /= 1000
  return f'{quantity:.1f}G'


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))

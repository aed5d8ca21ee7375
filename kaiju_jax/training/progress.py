"""Shows a run's progress to the user: one live line, or plain log lines."""

import datetime
from typing import Self

import rich.console
import rich.progress


class Progress:
  """A line with loss, tokens/s and time left, on stderr.

  On a terminal it stays in place and messages appear above it; elsewhere each
  update prints a new line. `quiet` shows nothing, for all but one of several
  processes.
  """

  def __init__(
    self,
    steps: int,
    console: rich.console.Console | None = None,
    quiet: bool = False,
  ):
    self._steps = steps
    self._console = console or rich.console.Console(stderr=True, quiet=quiet)
    self._live = None

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self._leave()

  def say(self, text: str) -> None:
    """Prints a message without markup or wrapping."""
    self._console.print(text, markup=False, highlight=False, soft_wrap=True)

  def end(self, text: str) -> None:
    """Stops the progress line, and prints the last message below it."""
    self._leave()
    self.say(text)

  def update(
    self,
    step: int,
    loss: float | None,
    rate: float | None,
    left: float | None,
  ) -> None:
    """Shows a step's loss, tokens per second, and seconds left."""
    texts = {
      'loss': '' if loss is None else f'loss {loss:.4f}',
      'rate': '' if rate is None else f'{_short(rate)} tokens/s',
      'left': '' if left is None else f'{_clock(left)} left',
    }
    if self._console.is_terminal and not self._console.is_dumb_terminal:
      self._show(step, texts)
    else:
      line = [f'step {step}/{self._steps}', *filter(None, texts.values())]
      self.say('  '.join(line))

  def _leave(self) -> None:
    if self._live:
      self._live.stop()

  def _show(self, step: int, texts: dict[str, str]) -> None:
    if not self._live:
      self._live = rich.progress.Progress(
        rich.progress.TextColumn('step'),
        rich.progress.MofNCompleteColumn(),
        rich.progress.BarColumn(),
        *(
          rich.progress.TextColumn(f'{{task.fields[{name}]}}', markup=False)
          for name in texts
        ),
        console=self._console,
        refresh_per_second=4,
      )
      self._live.add_task('', total=self._steps, **texts)
      self._live.start()
    task = self._live.task_ids[0]
    self._live.update(task, completed=step, **texts)


def _short(quantity: float) -> str:
  """Returns 950, 45.1k, 3.2M, 1.2G."""
  for unit in ('', 'k', 'M'):
    if quantity < 999.5:
      return f'{quantity:.0f}' if not unit else f'{quantity:.1f}{unit}'
    quantity /= 1000
  return f'{quantity:.1f}G'


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))

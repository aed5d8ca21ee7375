"""Shows a grid of runs at a terminal: the share done, and the time left."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import datetime
import time
from typing import Any
from typing import Self

import rich.console
import rich.progress

from kaiju_jax.runs.ablation import jobs
from kaiju_jax.training import metrics

_LOOKED = 2.0  # Seconds between two looks at the runs' records.
_SAID = 20.0  # Seconds between two lines where there is no terminal.


def show(parts: Iterable[Any], written: Sequence[Any]) -> None:
  """Prints a study's tables and sentences, and the files that hold them."""
  console = rich.console.Console()
  for part in parts:
    console.print(part, highlight=False, soft_wrap=isinstance(part, str))
  console.print(
    f'Written: {", ".join(map(str, written))}', highlight=False, soft_wrap=True
  )


class Watch:
  """One bar on a terminal; elsewhere a line now and then.

  What is done is weighed by `Run.cost`: a wide model's tokens take longer.
  """

  def __init__(
    self,
    runs: Sequence[Any],
    missing: Sequence[Any],
    result: Callable[[Any], Any],
  ):
    self._total, self._missing, self._result = len(runs), missing, result
    self._cost = sum(run.cost for run in missing)
    self._console = rich.console.Console(stderr=True)
    self._progress = rich.progress.Progress(
      '{task.description}',
      rich.progress.BarColumn(),
      rich.progress.TaskProgressColumn(),
      rich.progress.TextColumn('{task.fields[left]} left'),
      console=self._console,
      disable=not self._console.is_terminal,
    )
    self._bar = self._progress.add_task('runs', total=1.0, left='?')
    self._began, self._before = time.monotonic(), None
    self._looked = self._said = 0.0

  def __enter__(self) -> Self:
    self._progress.start()
    count = self._total - len(self._missing)
    if count:
      self._say(f'{count} of {self._total} runs were complete before.')
    return self

  def __exit__(self, *_) -> None:
    self._progress.stop()

  def on_start(self, job: jobs.Job) -> None:
    """Notes a process that starts; nothing is shown."""

  def on_end(self, job: jobs.Job, status: int, seconds: float) -> None:
    """Says which process failed."""
    if status > 0 and status != 130:
      self._say(f'failed with status {status}: {job.name}; see {job.log}')
    self._looked = 0.0

  def tick(self) -> None:
    """Looks at the records now and then, and shows what they say."""
    now = time.monotonic()
    if now < self._looked + _LOOKED:
      return
    self._looked = now
    complete = [run for run in self._missing if self._result(run) is not None]
    done = self._share_done(complete)
    if self._before is None:
      self._before = done
    count = self._total - len(self._missing) + len(complete)
    left = (
      _clock((now - self._began) / (done - self._before) * (1 - done))
      if (done > self._before)
      else '?'
    )
    text = f'{count} of {self._total} runs'
    self._progress.update(
      self._bar, description=text, completed=done, left=left
    )
    if self._progress.disable and now >= self._said + _SAID:
      self._said = now
      self._say(f'{text}, {100 * done:.0f} %, {left} left')

  def _share_done(self, complete: Sequence[Any]) -> float:
    """Returns the share of all that was missing which is trained by now."""
    done = sum(run.cost for run in complete)
    for run in self._missing:
      if run not in complete:
        tokens = max(0, _tokens(run) - run.skipped)
        done += run.cost * tokens / (run.tokens - run.skipped)
    return done / self._cost

  def _say(self, text: str) -> None:
    self._progress.console.print(
      text, markup=False, highlight=False, soft_wrap=True
    )


def _tokens(run: Any) -> float:
  """Returns the tokens of a run's last record."""
  try:
    return max((one['tokens'] for one in metrics.read(run.folder)), default=0)
  except FileNotFoundError:
    return 0


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))

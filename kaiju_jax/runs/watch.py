"""Runs jobs that train, and shows the share done and how each job ended."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
import signal
import time
from typing import Protocol
from typing import Self

import rich.console

from kaiju_jax.costs import footprint
from kaiju_jax.runs import jobs
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import metrics
from kaiju_jax.training import progress
from kaiju_jax.training import workdir

_LOOKED = 2.0  # Seconds between two looks at the runs' records.
_TAIL = 4096  # Bytes of a log in which its last line is looked for.


class Run(Protocol):
  """A run that a job trains.

  Attributes:
    experiment: what is trained.
    folder: its workdir.
    skipped: tokens that another run trained before this one branched off.
  """

  experiment: experiment_lib.Experiment
  folder: pathlib.Path
  skipped: int


def cost(run: Run) -> float:
  """Returns what a run costs beside others: its own tokens × parameters.

  A wide model's tokens take longer.
  """
  tokens = batch_schedule.schedule_of(run.experiment).tokens - run.skipped
  parameters = footprint.parameters(run.experiment.model)
  return float(tokens) * footprint.count(parameters)


def run(
  planned: Mapping[jobs.Job, Sequence[Run]],
  at_once: int,
  is_done: Callable[[Run], bool],
  console: rich.console.Console | None = None,
) -> tuple[dict[str, str], bool]:
  """Runs jobs side by side, and shows how far their runs are.

  Args:
    planned: {job: the runs that it trains}.
    at_once: how many jobs at a time.
    is_done: whether a run needs nothing more.
    console: by default stderr.

  Returns:
    {job's name: 'finished', 'stopped', 'diverged at step …' or 'failed (…)'} of
    those that ended, and whether no Ctrl-C cut it short.
  """
  by_name = {job.name: own for job, own in planned.items()}
  with Watch(by_name, is_done, console) as watch:
    try:
      completed = jobs.run(
        list(planned),
        at_once,
        on_start=watch.on_start,
        on_end=watch.on_end,
        tick=watch.tick,
      )
    except KeyboardInterrupt:
      completed = False
  return watch.statuses, completed


class Watch:
  """Answers `jobs.run`: its callbacks show what happens.

  Attributes:
    statuses: {name of a job that ended: see `run`}.
  """

  def __init__(
    self,
    runs: Mapping[str, Sequence[Run]],
    is_done: Callable[[Run], bool],
    console: rich.console.Console | None = None,
  ):
    """Looks at nothing yet.

    Args:
      runs: each job's runs, by its name.
      is_done: whether a run needs nothing more.
      console: by default stderr.
    """
    self._runs, self._is_done = runs, is_done
    self._all = [run for own in runs.values() for run in own]
    self._costs = [cost(run) for run in self._all]
    self._progress = progress.Progress('trained, %', 100, console)
    self._looked = 0.0
    self.statuses: dict[str, str] = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self._progress.__exit__()

  def on_start(self, job: jobs.Job) -> None:
    """Notes a process that starts; nothing is shown."""

  def on_end(self, job: jobs.Job, status: int, seconds: float) -> None:
    """Says how a process ended; its log and last line unless all is done."""
    runs = self._runs[job.name]
    lost = [workdir.find_divergence(run.folder) for run in runs]
    if all(map(self._is_done, runs)):
      text = 'finished'
    elif len(runs) == 1 and lost[0] is not None:
      text = describe_divergence(lost[0])
    else:
      text = f'failed ({_exit(status)})' if status else 'stopped'
    self.statuses[job.name] = text
    count = f'[{len(self.statuses)}/{len(self._runs)}]'
    line = f'{count} {job.name}: {text}, {seconds:.0f} s'
    if text != 'finished':
      line += f', see {job.log}'
    if text.startswith('failed') and (last := _read_last_line(job.log)):
      line += f'\n  {last}'
    self._progress.say(line)
    self._looked = 0.0

  def tick(self) -> None:
    """Looks at the records now and then, and shows what they say."""
    now = time.monotonic()
    if now < self._looked + _LOOKED:
      return
    self._looked = now
    shares = [1.0 if self._is_done(r) else _share_trained(r) for r in self._all]
    done = sum(share * cost for share, cost in zip(shares, self._costs))
    count = sum(map(self._is_done, self._all))
    self._progress.update(
      100 * done / sum(self._costs), f'{count} of {len(self._all)} runs'
    )


def _share_trained(run: Run) -> float:
  """Returns the share of a run's own tokens that its records show."""
  try:
    tokens = max((one['tokens'] for one in metrics.read(run.folder)), default=0)
  except FileNotFoundError:
    return 0.0
  whole = batch_schedule.schedule_of(run.experiment).tokens
  return max(0.0, tokens - run.skipped) / (whole - run.skipped)


def describe_divergence(step: int) -> str:
  """Returns the status of a run that diverged at a step."""
  return f'diverged at step {step}'


def _read_last_line(log: pathlib.Path) -> str:
  """Returns the last line that a job wrote, '' for none."""
  try:
    with log.open('rb') as file:
      file.seek(max(0, file.seek(0, 2) - _TAIL))
      lines = file.read().decode(errors='replace').splitlines()
  except OSError:
    return ''
  lines = [line.strip() for line in lines if line.strip()]
  # The first line of a job is its command.
  return lines[-1] if lines and not lines[-1].startswith('$ ') else ''


def _exit(status: int) -> str:
  return signal.Signals(-status).name if status < 0 else f'exit {status}'

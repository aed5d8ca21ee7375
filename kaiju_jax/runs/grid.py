"""A grid of runs: each is trained once, and its result stays on the disk.

Every run is a workdir of its own. Its config.json is written before anything
trains, and `trained.py` needs no more than that to train it, in a process of
its own on its share of the cores. result.json stands in the folder once the run
is complete, so that a second call repeats nothing.
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any
from typing import NamedTuple

from kaiju_jax.runs import jobs
from kaiju_jax.runs import train
from kaiju_jax.runs import watch
from kaiju_jax.storage import files
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir

RESULT = 'result.json'
# A process trains several runs, so that not every run pays for its start.
_PER_PLACE = 4


class Run(NamedTuple):
  """One run of a grid.

  Attributes:
    name: what it is called on the screen.
    experiment: what is trained.
    folder: its workdir.
    skipped: tokens of the run that another one trained before it branched off.
  """

  name: str
  experiment: experiment_lib.Experiment
  folder: pathlib.Path
  skipped: int = 0

  @property
  def tokens(self) -> int:
    """Row tokens at the run's end."""
    return batch_schedule.schedule_of(self.experiment).tokens


def result(run: Run) -> dict[str, Any] | None:
  """Returns a complete run's result, None before.

  That is {'loss': held-out nats per token, 'steps', 'tokens', …}, or where it
  diverged {'loss': 'nan', 'diverged': step}.
  """
  file = run.folder / RESULT
  return files.read_json(file) if file.exists() else None


def losses(runs: Sequence[Run]) -> dict[str, float]:
  """Returns {name: held-out loss} of complete runs; NaN where it diverged."""
  return {run.name: float(result(run)['loss']) for run in runs}


def check(runs: Sequence[Run]) -> None:
  """Refuses runs that cannot work, before anything compiles or is written.

  Raises:
    OSError, ValueError: see `train.check` and `workdir.check`.
  """
  for run in runs:
    train.check(run.experiment)
    workdir.check(run.folder, train.resolve(run.experiment))


def complete(runs: Sequence[Run], at_once: int | None = None) -> None:
  """Trains what is not complete, side by side.

  Args:
    runs: checked ones; their order does not matter.
    at_once: how many processes; by default one per core.

  Raises:
    SystemExit: status 130 after an interruption; the same call goes on.
    ValueError: runs ended without a result; names their logs.
  """
  missing = [run for run in runs if result(run) is None]
  if not missing:
    return
  for run in missing:
    with workdir.open_workdir(run.folder, train.resolve(run.experiment)):
      pass  # Its config.json is all that the process needs.
  places = at_once or jobs.count_cores()
  # Runs of one cost are of one size: a process compiles few programs.
  by_cost = sorted(missing, key=watch.cost, reverse=True)
  shares = min(len(missing), places * _PER_PLACE)
  chunks = [by_cost[share::shares] for share in range(shares)]
  if len(missing) < len(runs):
    before = len(runs) - len(missing)
    print(
      f'{before} of {len(runs)} runs were complete before.', file=sys.stderr
    )
  _, whole = watch.run(
    {_job(chunk): chunk for chunk in chunks},
    min(places, shares),
    lambda run: result(run) is not None,
  )
  if not whole:
    print('Interrupted. The same command goes on.', file=sys.stderr)
    raise SystemExit(130)
  if failed := [run for run in missing if result(run) is None]:
    logs = ', '.join(
      dict.fromkeys(
        str(_log(chunk))
        for chunk in chunks
        if any(run in failed for run in chunk)
      )
    )
    raise ValueError(
      f'{len(failed)} of {len(missing)} runs ended without a result, the first'
      f' being {failed[0].name}: see {logs}.'
    )
  for run in missing:
    if 'diverged' in result(run):
      step = result(run)['diverged']
      print(f'{run.name}: diverged at step {step}.', file=sys.stderr)


def _job(chunk: Sequence[Run]) -> jobs.Job:
  folders = [str(run.folder) for run in chunk]
  module = 'kaiju_jax.experiments.studies.sweeps.trained'
  command = sys.executable, '-m', module, *folders
  more = f' and {len(chunk) - 1} more' if len(chunk) > 1 else ''
  return jobs.Job(f'{chunk[0].name}{more}', command, _log(chunk))


def _log(chunk: Sequence[Run]) -> pathlib.Path:
  return chunk[0].folder / 'log.txt'

"""Runs a grid: arms × seeds, each trained once in a workdir of its own.

    jobs = grid.cross(config.get_config, arms, seeds, out)
    grid.run(jobs)

A job is done once its last checkpoint is saved or, where something is made of
the trained model (`Finish`), once that file is in its workdir. So the same call
resumes what was interrupted, and repeats nothing. One at a time, jobs train in
this process. Side by side, or on a cluster (`slurm.Launch`), they train in
processes, each with a log.txt in its workdir:

    python -m kaiju_jax.runs.grid WORKDIR WORKDIR …

trains workdirs, of which each needs no more than its config.json, and writes
result.json into them. SIGTERM saves and ends with status 130. A run that
diverges has a result, the step at which it did.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import math
import pathlib
import signal
import sys
import time
from typing import Any
from typing import NamedTuple

from kaiju_jax.costs import footprint
from kaiju_jax.evaluation import run_results
from kaiju_jax.runs import pool
from kaiju_jax.runs import slurm
from kaiju_jax.runs import start
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.tasks import texts
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import progress
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics

INTERRUPTED = 130  # Exit status.
_JOBS_PER_PLACE = 4  # A process trains several jobs, to pay for fewer starts.
_POLL_S = 2.0  # Seconds between two reads of the runs' records.
_TAIL = 4096  # Bytes of a log in which its last line is looked for.
_IN_TURN = slurm.Launch(jobs=1)


class Job(NamedTuple):
  """One arm on one seed."""

  arm: str  # Name of the arm.
  experiment: experiment_lib.Experiment  # What is trained.
  folder: pathlib.Path  # Its workdir.
  # Tokens that another run trained before this one branched off.
  skipped: int = 0

  @property
  def name(self) -> str:
    return f'{self.arm} seed {self.experiment.seed}'

  @property
  def steps(self) -> int:
    """Optimizer steps at the run's end."""
    return batch_schedule.schedule_of(self.experiment).steps

  @property
  def tokens(self) -> int:
    """Row tokens at the run's end."""
    return batch_schedule.schedule_of(self.experiment).tokens

  @property
  def log(self) -> pathlib.Path:
    return self.folder / 'log.txt'

  @property
  def is_trained(self) -> bool:
    """Whether the last step's checkpoint is saved.

    Its records do not suffice: the final evaluation and save follow them.
    """
    return workdir.holds_checkpoint(self.folder, self.steps)

  @property
  def diverged(self) -> int | None:
    """The step at which the run diverged; None if it did not."""
    return workdir.find_divergence(self.folder)


class Finish(NamedTuple):
  """What is made of a trained model and kept in its workdir."""

  file: str  # Name of the JSON file, with which the job is done.
  make: Callable[[Job, Any], Any]  # (job, `state.TrainState`) → its content.
  # Step → the content for a run that diverged at that step; None where a
  # divergence is an error.
  of_diverged: Callable[[int], Any] | None = None


def cross(
  get_config: Callable[[str], experiment_lib.Experiment],
  arms: Iterable[str],
  seeds: Sequence[int],
  out: pathlib.Path,
) -> list[Job]:
  """Returns the job of every arm on every seed, in OUT/ARM/seedSEED."""
  jobs = []
  for arm in arms:
    for seed in seeds:
      experiment = get_config(arm)
      experiment.seed = seed
      jobs.append(Job(arm, experiment, out / arm / f'seed{seed}'))
  return jobs


def check(jobs: Sequence[Job]) -> None:
  """Refuses jobs that cannot work, before anything compiles or is written.

  Raises:
    OSError, ValueError: see `train.check` and `workdir.check`.
  """
  for job in jobs:
    experiment = start.resolve(job.experiment)
    train.check(experiment)
    workdir.check(job.folder, experiment)


def is_done(job: Job, finish: Finish | None = None) -> bool:
  """Returns whether a job needs nothing more."""
  if finish is None:
    return job.is_trained
  return (job.folder / finish.file).exists()


def run(
  jobs: Sequence[Job],
  how: slurm.Launch = _IN_TURN,
  finish: Finish | None = None,
  command: Callable[[Job], tuple[str, ...]] | None = None,
  root: pathlib.Path | None = None,
) -> None:
  """Trains and finishes what is not done.

  Args:
    jobs: what to train; one that cannot work is refused before any starts.
    how: where, and how many at a time; by default one after the other, here.
    finish: what is made of each trained model.
    command: returns the words of the command that does one job; by default
      processes train several jobs each, with `RESULT`, which `finish` must be.
    root: the folder of all jobs; by default that of the first one's arm.

  Raises:
    SystemExit: status 130 after an interruption; the same call resumes. Or a
      dry run has shown what is missing.
    OSError, ValueError: see `check` and `train.train`; or processes ended
      without their jobs' files, and the message names the logs.
  """
  check(jobs)
  if jobs:
    root = root or jobs[0].folder.parent.parent
    texts.keep_stores(root)
  missing = [job for job in jobs if not is_done(job, finish)]
  if len(missing) < len(jobs):
    _say(f'{len(jobs) - len(missing)} of {len(jobs)} runs: finished before.')
  if not missing:
    return
  # A lone run is a process, too, where others may stand beside later ones: what
  # this process opens would have no room for them.
  lone = 1 if len(missing) == 1 else None
  launcher = how.prepare(max(2, len(missing)), root, on_cpu=lone)
  if command is None:
    planned = _in_chunks(missing, launcher.at_once)
  else:
    planned = {
      pool.Command(job.name, command(job), job.log): [job] for job in missing
    }
  if how.dry_run:
    launcher.show(list(planned), len(missing), len(jobs), dry_run=True)
    raise SystemExit(0)
  if (launcher.at_once, how.devices_per_job) == (1, None):
    _train_here(missing, finish)
    return
  # A task of an array that was submitted before may be training there.
  busy = (BlockingIOError,) if how.launch == 'slurm' else ()
  for job in missing if command is None else ():
    experiment = start.resolve(job.experiment)
    with (
      contextlib.suppress(*busy),
      workdir.open_workdir(job.folder, experiment),
    ):
      pass  # Its config.json is all that the process needs.
  statuses, completed = run_commands(planned, launcher, finish)
  if not completed:
    raise SystemExit(INTERRUPTED)
  failed = [
    (command, job)
    for command, own in planned.items()
    for job in own
    if not is_done(job, finish)
  ]
  if failed:
    command, first = failed[0]
    logs = ', '.join(dict.fromkeys(str(one.log) for one, _ in failed))
    raise ValueError(
      f'{len(failed)} of {len(missing)} runs ended without a result, the first'
      f' being {first.name} ({statuses.get(command.name, "not run")}): see'
      f' {logs}.'
    )
  for job in missing:
    if job.diverged is not None:
      _say(f'{job.name}: {describe_divergence(job.diverged)}.')


def _say(text: str) -> None:
  progress.Progress('runs').say(text)


def _train_here(jobs: Sequence[Job], finish: Finish | None) -> None:
  """Trains and finishes jobs one after the other, in this process."""
  from kaiju_jax.training import divergence

  programs = {}
  for job in jobs:
    _say(f'{job.folder}: {job.name}.')
    try:
      state = train.train(job.experiment, job.folder, programs=programs)
    except divergence.Diverged as error:
      if finish is None or finish.of_diverged is None:
        raise
      _say(str(error))
      files.write_json(job.folder / finish.file, finish.of_diverged(error.step))
      continue
    if int(state.step) < job.steps:
      raise SystemExit(INTERRUPTED)  # The loop has said how to resume.
    if finish is not None:
      files.write_json(job.folder / finish.file, finish.make(job, state))


def _in_chunks(
  jobs: Sequence[Job], at_once: int
) -> dict[pool.Command, list[Job]]:
  """Returns commands that train some jobs each, in the order of their costs.

  Jobs of one cost are of one size: a process compiles few programs.
  """
  by_cost = sorted(jobs, key=cost, reverse=True)
  count = min(len(jobs), at_once * _JOBS_PER_PLACE)
  planned = {}
  for chunk in (by_cost[first::count] for first in range(count)):
    words = (
      *(sys.executable, '-m', 'kaiju_jax.runs.grid'),
      *(str(job.folder) for job in chunk),
    )
    more = f' and {len(chunk) - 1} more' if len(chunk) > 1 else ''
    name = f'{chunk[0].name}{more}'
    planned[pool.Command(name, words, chunk[0].log)] = chunk
  return planned


def run_commands(
  planned: Mapping[pool.Command, Sequence[Job]],
  launcher: slurm.Launcher,
  finish: Finish | None = None,
  console: Any = None,
) -> tuple[dict[str, str], bool]:
  """Runs commands side by side, and shows how far their jobs are.

  A Ctrl-C lets the running commands save, and says how to resume.

  Args:
    planned: {command: the jobs that it trains and finishes}.
    launcher: what runs them.
    finish: as in `run`.
    console: of rich; by default stderr.

  Returns:
    {command's name: 'finished', 'stopped', 'diverged at step …' or 'failed
    (…)'} of those that ended, and whether no Ctrl-C cut it short.
  """
  jobs = [job for own in planned.values() for job in own]
  by_name = {command.name: command for command in planned}
  costs = [cost(job) for job in jobs]
  statuses, read_at = {}, 0.0
  with (
    progress.Progress('trained, %', 100, console) as shown,
    contextlib.closing(launcher.run(list(planned))) as events,
  ):
    try:
      for event in events:
        now = time.monotonic()
        if event is not None:
          command = by_name[event.name]
          statuses[event.name] = _status(planned[command], event, finish)
          count = f'[{len(statuses)}/{len(planned)}]'
          shown.say(f'{count} {_describe(command, event, statuses)}')
        elif now >= read_at + _POLL_S:
          shares = [_share_trained(job, finish) for job in jobs]
          done = sum(map(math.prod, zip(shares, costs)))
          text = f'{sum(is_done(job, finish) for job in jobs)} of {len(jobs)}'
          shown.update(100 * done / sum(costs), f'{text} runs')
          read_at = now
    except KeyboardInterrupt:
      shown.end('Interrupted. The same command goes on.')
      return statuses, False
  return statuses, True


def cost(job: Job) -> float:
  """Returns what a job costs beside others: its own tokens × parameters.

  A wide model's tokens take longer.
  """
  parameters = footprint.parameters(job.experiment.model)
  return float(job.tokens - job.skipped) * footprint.count(parameters)


def _share_trained(job: Job, finish: Finish | None) -> float:
  """Returns the share of a job's own tokens that its records show."""
  if is_done(job, finish):
    return 1.0
  try:
    tokens = max((one['tokens'] for one in metrics.read(job.folder)), default=0)
  except FileNotFoundError:
    return 0.0
  return max(0.0, tokens - job.skipped) / (job.tokens - job.skipped)


def _status(
  jobs: Sequence[Job], event: pool.Ended, finish: Finish | None
) -> str:
  """Returns how a command's jobs ended."""
  if all(is_done(job, finish) for job in jobs):
    return 'finished'
  if len(jobs) == 1 and jobs[0].diverged is not None:
    return describe_divergence(jobs[0].diverged)
  if not event.status:
    return 'stopped'
  if event.status < 0:
    return f'failed ({signal.Signals(-event.status).name})'
  return f'failed (exit {event.status})'


def describe_divergence(step: int) -> str:
  """Returns the status of a run that diverged at a step."""
  return f'diverged at step {step}'


def _describe(
  command: pool.Command, event: pool.Ended, statuses: Mapping[str, str]
) -> str:
  """Returns how a command ended, with its log and last line on a failure."""
  status = statuses[command.name]
  line = f'{command.name}: {status}, {event.seconds:.0f} s'
  if status != 'finished':
    line += f', see {command.log}'
  if status.startswith('failed') and (last := _read_last_line(command.log)):
    line += f'\n  {last}'
  return line


def _read_last_line(log: pathlib.Path) -> str:
  """Returns the last line that a command wrote, '' for none."""
  try:
    with log.open('rb') as file:
      file.seek(max(0, file.seek(0, 2) - _TAIL))
      lines = file.read().decode(errors='replace').splitlines()
  except OSError:
    return ''
  lines = [line.strip() for line in lines if line.strip()]
  # The first line is the command itself.
  return lines[-1] if lines and not lines[-1].startswith('$ ') else ''


def result(
  folder: pathlib.Path, experiment: experiment_lib.Experiment
) -> dict[str, Any] | None:
  """Returns what a workdir's records say of the finished run, None before.

  `loss` is the held-out one, or where nothing is held out the training loss of
  the last steps. A loss that is not finite is the string that float() reads.
  """
  records = metrics.read(folder)
  tokens = records[-1]['tokens'] if records else 0
  if tokens < batch_schedule.schedule_of(experiment).tokens:
    return None
  found = run_results.summarize(records)
  loss = found.get('eval_loss', found.get('loss'))
  if loss is None:
    raise ValueError(
      f'{folder}: no record holds a loss; loop.log_every='
      f'{experiment.loop.log_every} must be at most the run’s steps.'
    )
  return {'loss': loss if math.isfinite(loss) else str(loss), 'tokens': tokens}


def _make_result(job: Job, state: Any) -> dict[str, Any]:
  return result(job.folder, job.experiment) | {'steps': int(state.step)}


RESULT = Finish(
  'result.json', _make_result, lambda step: {'loss': 'nan', 'diverged': step}
)


def losses(
  jobs: Mapping[Any, Job],
  how: slurm.Launch = _IN_TURN,
  root: pathlib.Path | None = None,
) -> dict[Any, float]:
  """Trains what is missing; returns {key: held-out loss}, NaN if it diverged.

  Args:
    jobs: {key: job}.
    how: as in `run`.
    root: as in `run`.

  Raises:
    OSError, ValueError, SystemExit: see `run`.
  """
  run(list(jobs.values()), how, RESULT, root=root)
  return {
    key: float(files.read_json(job.folder / RESULT.file)['loss'])
    for key, job in jobs.items()
  }


def main(folders: Sequence[str]) -> None:
  """Trains the workdirs that have no result yet, one after the other."""
  jobs = [
    Job(str(folder), workdir.load_experiment(folder), folder)
    for folder in map(pathlib.Path, folders)
  ]
  _train_here([job for job in jobs if not is_done(job, RESULT)], RESULT)


if __name__ == '__main__':
  pool.end_with_parent()
  try:
    main(sys.argv[1:])
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error

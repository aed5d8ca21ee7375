"""Runs commands on this machine, or as one array job of Slurm by `submitit`.

    launcher = slurm.Launch(launch='slurm').prepare(len(commands), root)
    for event in launcher.run(commands): …  # As those of `pool.run`.

A task of the array starts one command, whose output goes to its own log as it
does on one machine. `PATIENCE` seconds before the time limit Slurm signals the
task (USR2, or what SUBMITIT_PREEMPT_SIGNAL names): the command gets SIGTERM,
saves and ends, and the task is requeued with the same command, which resumes. A
plain SIGTERM, which `scancel` sends too, saves alone; whether Slurm then
requeues what it preempted is its own setting.

The process that submitted may end, and the jobs go on: `submit` finds those
that still wait or run in jobs.json, beside submitit's files, and submits them
no second time. (Delete it where the cluster has forgotten them.)

Source: submitit's guide to checkpoints,
https://facebookincubator.github.io/submitit/checkpointing.html.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import time
from typing import Annotated
from typing import Any
from typing import Literal
from typing import NamedTuple

from kaiju_jax.runs import devices
from kaiju_jax.runs import flags
from kaiju_jax.runs import pool
from kaiju_jax.storage import files

FOLDER = 'slurm'  # Of submitit's files, in that of all runs.
_JOBS = 'jobs.json'  # {name of a command: id of its job}
_POLL_S = 0.1
_WATCH_S = 2.0
# Each turn trains on, so that only a mistake ends a run after so many.
_MOST_TURNS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
  """What a task of the array gets."""

  # With --launch=slurm: the partition; by default the cluster's own default.
  partition: str = ''
  # With --launch=slurm: the time limit. A run that reaches it saves, waits and
  # resumes.
  minutes: Annotated[int, flags.Bounds(5)] = 240
  # With --launch=slurm: another option of sbatch, such as account=lab; can be
  # repeated.
  option: flags.Repeated = ()


class Launcher(NamedTuple):
  """What runs commands."""

  # Runs commands, and yields as `pool.run` does.
  run: Callable[[Sequence[pool.Command]], Iterator[pool.Ended | None]]
  describe: Callable[[Sequence[pool.Command]], str]  # How it would, in words.
  at_once: int  # How many at a time, as far as that is known here.

  def show(
    self,
    commands: Sequence[pool.Command],
    missing: int,
    runs: int,
    dry_run: bool,
  ) -> None:
    """Prints how many runs are to do, and in a dry run by which commands."""
    how = self.describe(commands)
    print(f'{missing} of {runs} runs to do, {how}.', flush=True)
    for command in commands if dry_run else ():
      print(shlex.join(command.words))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
  """Where the runs of a command go."""

  # Runs at once; the cores are split. By default as many as the GPUs or TPU
  # chips suffice for; on a CPU one per core, or one of ablate's.
  jobs: flags.Positive | None = None
  # GPUs or TPU chips of each run; by default as many as its mesh spreads over.
  # With 0 runs stay on the CPU.
  devices_per_job: flags.NonNegative | None = None
  # Where runs go: processes of this machine, or one array job of Slurm, which
  # needs the extra slurm.
  launch: Literal['here', 'slurm'] = 'here'
  resources: Annotated[Resources, flags.Prefix('slurm_')] = dataclasses.field(
    default_factory=Resources
  )
  # Print what would run, and run nothing.
  dry_run: bool = False

  def prepare(
    self,
    runs: int,
    root: pathlib.Path,
    width: int | None = 1,
    on_cpu: int | None = None,
  ) -> Launcher:
    """Returns what runs the commands; checks the devices.

    Args:
      runs: how many there are to run.
      root: the folder of all runs.
      width: as in `devices.find_places`.
      on_cpu: as in `devices.find_places`.

    Raises:
      ValueError: the devices do not suffice, or submitit or Slurm is missing.
    """
    per_job = self.devices_per_job
    if self.launch == 'here':
      places = devices.find_places(runs, self.jobs, per_job, width, on_cpu)
      return Launcher(
        lambda commands: pool.run(commands, places),
        lambda _: f'{len(places)} at a time',
        len(places),
      )
    if per_job != 0:
      per_job = devices.choose_width(per_job, width)
    made = parameters(self.resources, per_job, self.jobs)
    folder = root / FOLDER
    if runs and not self.dry_run:
      executor(folder, made)
    return Launcher(
      lambda commands: watch(submit(commands, folder, made)),
      lambda commands: f'as {describe(commands, made)}',
      runs,
    )


class Task:
  """What a task of the array calls: runs a command, returns its status."""

  def __init__(self, command: pool.Command):
    self._command, self._child = command, None

  def __call__(self) -> int:
    own = signal.Signals[f'SIG{_signal_name()}']
    if own != signal.SIGTERM:
      signal.signal(signal.SIGTERM, lambda *_: self._stop())
    # The command inherits the mask: it must not end by this signal, which some
    # clusters send to all of a task's processes.
    mask = {own} - {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, mask)
    self._child = pool.start(self._command, pool.Place()).process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, mask)
    while (status := self._child.poll()) is None:
      time.sleep(_POLL_S)
    return status

  def checkpoint(self) -> Any:
    """Lets the command save; returns what submitit then requeues."""
    import submitit

    self._stop()
    if self._child is not None:
      # Not `wait`, whose lock the interrupted `poll` may hold.
      with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
    return submitit.helpers.DelayedSubmission(Task(self._command))

  def _stop(self) -> None:
    if self._child is not None:
      self._child.terminate()


def _signal_name() -> str:
  """Returns the signal before the time limit, as submitit reads it."""
  return os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')


def parameters(
  resources: Resources, per_job: int, jobs: int | None = None
) -> dict[str, Any]:
  """Returns the options of `submitit.SlurmExecutor`.

  Args:
    resources: of each task.
    per_job: GPUs of each task; 0 for none.
    jobs: tasks at a time; by default submitit's 256.
  """
  made = {
    'job_name': 'kaiju',
    'time': resources.minutes,
    'signal_delay_s': int(pool.PATIENCE),
    'stderr_to_stdout': True,
  }
  if resources.partition:
    made['partition'] = resources.partition
  if per_job:
    made['gpus_per_node'] = per_job
  if jobs is not None:
    made['array_parallelism'] = jobs
  options = (one.partition('=') for one in resources.option)
  # A name alone is an option without a value, such as exclusive.
  more = {name: value if equals else True for name, equals, value in options}
  # Without it, some clusters requeue nothing.
  return made | {'additional_parameters': {'requeue': True} | more}


def describe(commands: Sequence[pool.Command], made: Mapping[str, Any]) -> str:
  """Returns the `sbatch` that `parameters` are for."""
  if not commands:
    return 'no job'
  own = {
    'array': f'0-{len(commands) - 1}',
    'time': made['time'],
    'signal': f'{_signal_name()}@{made["signal_delay_s"]}',
    **{x: made[x] for x in ('partition', 'gpus_per_node') if x in made},
    **made['additional_parameters'],
  }
  if 'array_parallelism' in made:
    own['array'] += f'%{made["array_parallelism"]}'
  words = (
    f'--{name.replace("_", "-")}' + ('' if value is True else f'={value}')
    for name, value in own.items()
  )
  return f'sbatch {" ".join(words)}'


def executor(folder: pathlib.Path, made: Mapping[str, Any]) -> Any:
  """Returns what submits to Slurm; tests have one that runs here.

  Raises:
    ValueError: submitit is missing, or Slurm is.
  """
  try:
    import submitit

    found = submitit.SlurmExecutor(folder / '%j', max_num_timeout=_MOST_TURNS)
  except ImportError as error:
    raise ValueError(
      "--launch=slurm: needs submitit: pip install 'kaiju_jax[slurm]'."
    ) from error
  except RuntimeError as error:
    raise ValueError(f'--launch=slurm: {error}') from error
  found.update_parameters(**made)
  return found


def submit(
  commands: Sequence[pool.Command],
  folder: pathlib.Path,
  made: Mapping[str, Any],
) -> dict[str, Any]:
  """Submits the commands that neither wait nor run, as one array.

  Args:
    commands: what to run.
    folder: where submitit's files go; the compute nodes must share it.
    made: as `parameters` returns.

  Returns:
    {command: its `submitit.Job`}, those from before included.

  Raises:
    ValueError, OSError: see `executor`; or Slurm refused the array.
  """
  if not commands:
    return {}
  submitting = executor(folder, made)
  file = folder / _JOBS
  held = files.read_json(file) if file.exists() else {}
  known = {
    one: submitting.job_class(submitting.folder, held[one.name])
    for one in commands
    if one.name in held
  }
  jobs = {one: job for one, job in known.items() if not job.done()}
  fresh = [one for one in commands if one not in jobs]
  if fresh:
    try:
      with submitting.batch():
        jobs |= {one: submitting.submit(Task(one)) for one in fresh}
    except RuntimeError as error:  # What sbatch said.
      raise ValueError(f'--launch=slurm: {error}') from error
  ids = {one.name: job.job_id for one, job in jobs.items()}
  files.write_json(file, held | ids)
  return jobs


def watch(jobs: Mapping[pool.Command, Any]) -> Iterator[pool.Ended | None]:
  """Yields each command that ended, and None every two seconds, as `pool.run`.

  Ctrl-C leaves the jobs alone. If Slurm ended a job, its log gets the reason.
  """
  started, waiting = time.monotonic(), dict(jobs)
  while waiting:
    for command, job in list(waiting.items()):
      if not job.done():
        continue
      del waiting[command]
      try:
        status = job.result()
      except RuntimeError as error:  # All that submitit raises.
        status = 1
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open('a') as log:
          log.write(f'{error}\nJob {job.job_id}: {job.state}\n')
      yield pool.Ended(command.name, status, time.monotonic() - started)
    yield None
    time.sleep(_WATCH_S)

"""Runs the arms of a config on several seeds, and writes one report.

    python -m experiments.ablate --config=experiments/configs/ablation.py \\
        --root=runs/ablation --seeds=3 --jobs=4 [--config.loop.steps=300 …]

A config that can be ablated names its arms in ARMS, and `get_config(arm)`
takes each of these names. ARMS is a tuple, whose first arm is the baseline of
the others, or a dict from each arm to its own baseline.

Each arm and seed is a process of its own,

    python -m experiments.train --config=CONFIG:ARM --config.seed=SEED
        --config.… --workdir=ROOT/ARM/seedSEED

whose output goes to that workdir's log.txt. `--jobs` run at once, each on its
share of the cores. A run that fails is a line of the report and stops no
other. The same command again runs what is missing: a run is finished once its
metrics.jsonl holds the last step, and a started one resumes. Ctrl-C lets
running jobs save, and reports what there is.

ROOT/report.md: means and spreads over the seeds, paired differences to the
baseline with 95 % intervals, figures, commands, environment.
"""

from collections.abc import Sequence
import dataclasses
import importlib.util
import pathlib
import shlex
import signal
import sys
import time
import types

from absl import app
from absl import flags
from ml_collections import config_flags
import rich.console
import rich.progress

from experiments import ablation_report
from experiments import jobs
from experiments import run as run_lib
from kaiju_jax import config as config_lib
from kaiju_jax.training import metrics
from kaiju_jax.training import workdir as workdir_lib

_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'Config file with ARMS. Every --config.FIELD=VALUE is an override that all'
  ' runs get.',
)
_ROOT = flags.DEFINE_string(
  'root', None, 'Folder of all workdirs and of report.md.'
)
_SEEDS = flags.DEFINE_integer(
  'seeds', 3, 'How many seeds each arm runs on: 0, 1, …', lower_bound=1
)
_JOBS = flags.DEFINE_integer(
  'jobs', 1, 'How many runs at once; the cores are split.', lower_bound=1
)
_ARMS = flags.DEFINE_list('arms', None, 'Which of ARMS to run; all by default.')
_BASELINE = flags.DEFINE_string(
  'baseline', None, "Arm that all others are compared with, instead of ARMS's."
)
_MODULE = flags.DEFINE_string(
  'module', 'experiments.train', 'What runs: python -m MODULE.'
)


@dataclasses.dataclass(frozen=True)
class Run:
  """One arm on one seed.

  Attributes:
    arm: name of the arm.
    seed: of the run.
    workdir: where it trains.
    experiment: what it trains, overrides applied.
    command: that trains it.
  """

  arm: str
  seed: int
  workdir: pathlib.Path
  experiment: config_lib.Experiment
  command: tuple[str, ...]

  @property
  def name(self) -> str:
    return f'{self.arm} seed {self.seed}'

  @property
  def log(self) -> pathlib.Path:
    return self.workdir / 'log.txt'

  def last_step(self) -> int:
    """Returns the last step that metrics.jsonl holds, 0 for none."""
    try:
      return max((r['step'] for r in metrics.read(self.workdir)), default=0)
    except FileNotFoundError:
      return 0

  def is_finished(self) -> bool:
    return self.last_step() >= self.experiment.loop.steps


def load(path: str) -> types.ModuleType:
  """Returns the config module of a file.

  Raises:
    ValueError: there is no such file, or it names no arms.
  """
  if not pathlib.Path(path).is_file():
    raise ValueError(f'--config={path}: no such file.')
  spec = importlib.util.spec_from_file_location('ablated_config', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not getattr(module, 'ARMS', None):
    raise ValueError(
      f'--config={path}: has no ARMS. An ablation needs the names that its'
      " get_config takes, as ARMS = ('bf16', 'int8')."
    )
  return module


def baselines(
  arms: Sequence[str] | dict[str, str],
  chosen: Sequence[str] | None = None,
  baseline: str | None = None,
) -> dict[str, str]:
  """Returns {arm: its baseline} of the chosen arms, in their order.

  Raises:
    ValueError: an arm or a baseline that is none of the config's.
  """
  if not isinstance(arms, dict):
    arms = dict.fromkeys(arms, arms[0])
  for flag, names in (
    ('arms', chosen or ()),
    ('baseline', [baseline] if baseline else arms.values()),
  ):
    for name in names:
      if name not in arms:
        raise ValueError(f'--{flag}={name}: must be one of {", ".join(arms)}.')
  return {arm: baseline or arms[arm] for arm in chosen or arms}


def resolve(config: str, arguments: Sequence[str]) -> config_lib.Experiment:
  """Returns the experiment of 'PATH:ARM' with '--config.FIELD=VALUE' applied.

  Raises:
    ValueError: an unknown or ill-typed field, an experiment that cannot run,
      or a last step that leaves no record.
  """
  argv = ['ablate', f'--config={config}', *arguments]
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=argv)
  try:
    values(argv)
  except (flags.Error, AttributeError, KeyError) as error:
    # str() of a KeyError is in quotes.
    raise ValueError(f'{shlex.join(argv[1:])}: {error.args[0]}') from error
  experiment = values.config
  run_lib.check(experiment)
  loop = experiment.loop
  if loop.steps % loop.log_every:
    raise ValueError(
      f'loop.log_every={loop.log_every}: must divide loop.steps={loop.steps},'
      ' or the last step leaves no record and the run never counts as'
      ' finished.'
    )
  return experiment


def plan(
  config: str,
  arms: Sequence[str],
  seeds: int,
  root: pathlib.Path,
  overrides: Sequence[str] = (),
  module: str = 'experiments.train',
) -> list[Run]:
  """Returns all runs, every arm's first seed before any second one.

  Raises:
    ValueError: a bad override, or a workdir that holds another experiment.
  """
  for override in overrides:
    if not override.startswith('--config.') or '=' not in override:
      raise ValueError(
        f'{override}: is no flag of ablate, and no --config.FIELD=VALUE.'
      )
    if override.startswith('--config.seed='):
      raise ValueError(f'{override}: --seeds says how many seeds there are.')
  runs = []
  for seed in range(seeds):
    for arm in arms:
      arguments = (f'--config.seed={seed}', *overrides)
      workdir = root / arm / f'seed{seed}'
      experiment = resolve(f'{config}:{arm}', arguments)
      workdir_lib.check(workdir, experiment)
      command = (
        sys.executable,
        '-m',
        module,
        f'--config={config}:{arm}',
        *arguments,
        f'--workdir={workdir}',
      )
      runs.append(Run(arm, seed, workdir, experiment, command))
  return runs


class _Watch:
  """Shows what runs: a bar each on a terminal, else a line at each end."""

  def __init__(self, runs: Sequence[Run], console: rich.console.Console):
    self._runs = {run.name: run for run in runs}
    self._bars = {}
    self._progress = rich.progress.Progress(
      '{task.description}',
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeRemainingColumn(),
      console=console,
      disable=not console.is_terminal,
    )
    self._all = self._progress.add_task('all runs', total=len(runs))
    self._looked = 0.0
    self.statuses: dict[str, str] = {}

  def __enter__(self):
    self._progress.start()
    return self

  def __exit__(self, *_):
    self._progress.stop()

  def started(self, job: jobs.Job) -> None:
    run = self._runs[job.name]
    self._bars[job.name] = self._progress.add_task(
      job.name, total=run.experiment.loop.steps
    )

  def ended(self, job: jobs.Job, status: int, seconds: float) -> None:
    run = self._runs[job.name]
    if run.is_finished():
      text = 'finished'
    elif status:
      text = f'failed ({_exit(status)})'
    else:
      text = 'stopped'
    self.statuses[job.name] = text
    self._progress.remove_task(self._bars.pop(job.name))
    self._progress.advance(self._all)
    done = len(self.statuses)
    line = f'[{done}/{len(self._runs)}] {job.name}: {text}, {seconds:.0f} s'
    if text != 'finished':
      line += f', see {run.log}'
    self._progress.console.print(
      line, markup=False, highlight=False, soft_wrap=True
    )

  def tick(self) -> None:
    if self._progress.disable or time.monotonic() < self._looked + 1:
      return
    self._looked = time.monotonic()
    for name, bar in self._bars.items():
      self._progress.update(bar, completed=self._runs[name].last_step())


def _exit(status: int) -> str:
  if status < 0:
    return signal.Signals(-status).name
  return f'exit {status}'


def run_all(
  runs: Sequence[Run], at_once: int, console: rich.console.Console
) -> tuple[dict[str, str], bool]:
  """Runs what is not finished.

  Returns:
    Each run's status by name, and whether no Ctrl-C cut the ablation short.
  """
  statuses = {run.name: 'finished' for run in runs if run.is_finished()}
  missing = [run for run in runs if run.name not in statuses]
  console.print(
    f'{len(missing)} of {len(runs)} runs to do, {at_once} at a time.',
    highlight=False,
  )
  with _Watch(missing, console) as watch:
    try:
      completed = jobs.run(
        [jobs.Job(run.name, run.command, run.log) for run in missing],
        at_once,
        started=watch.started,
        ended=watch.ended,
        tick=watch.tick,
      )
    except KeyboardInterrupt:
      completed = False
  statuses |= watch.statuses
  return {
    run.name: statuses.get(run.name, 'not run') for run in runs
  }, completed


def main(argv: Sequence[str]) -> int:
  config, root = _CONFIG.value, pathlib.Path(_ROOT.value)
  try:
    module = load(config)
    compared = baselines(module.ARMS, _ARMS.value, _BASELINE.value)
    arms = tuple(dict.fromkeys([*compared, *compared.values()]))
    runs = plan(config, arms, _SEEDS.value, root, argv[1:], _MODULE.value)
  except ValueError as error:
    sys.exit(f'error: {error}')
  console = rich.console.Console()
  statuses, completed = run_all(runs, _JOBS.value, console)
  report = ablation_report.write(
    root,
    title=(module.__doc__ or config).strip().splitlines()[0],
    command=('python', '-m', 'experiments.ablate', *sys.argv[1:]),
    runs=[
      ablation_report.Outcome(
        arm=run.arm,
        seed=run.seed,
        status=statuses[run.name],
        workdir=run.workdir,
        command=('python', *run.command[1:]),
      )
      for run in runs
    ],
    baselines=compared,
  )
  console.print(f'Report: {report}', highlight=False, soft_wrap=True)
  if not completed:
    console.print('Interrupted. The same command goes on.', highlight=False)
  return 0 if all(s == 'finished' for s in statuses.values()) else 1


def _parse(argv: Sequence[str]) -> list[str]:
  """Leaves --config.FIELD=VALUE to the runs."""
  return flags.FLAGS(argv, known_only=True)


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'root'])
  app.run(main, flags_parser=_parse)

"""Runs the arms of a config on several seeds, and writes one report.

Every run is checked, with overrides applied, before the first one starts.
"""

from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
import pathlib
import shlex
import sys
from typing import Any
from typing import NamedTuple

from absl import flags

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies.ablation import cells as cells_lib
from kaiju_jax.experiments.studies.ablation import report
from kaiju_jax.reporting import figures
from kaiju_jax.runs import configs
from kaiju_jax.runs import flags as flags_lib
from kaiju_jax.runs import grid
from kaiju_jax.runs import overrides as overrides_lib
from kaiju_jax.runs import own_parts
from kaiju_jax.runs import pool
from kaiju_jax.runs import slurm
from kaiju_jax.runs import start
from kaiju_jax.runs import train
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks import texts
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import progress
from kaiju_jax.training import workdir as workdir_lib

_TRAIN = 'experiments.train'


def load(path: str, needs_arms: bool = True) -> Any:
  """Returns the config module of a name or a path.

  Raises:
    ValueError: there is no such file, or the file has no ARMS.
  """
  path = configs.config_path(path)
  if not pathlib.Path(path).is_file():
    raise ValueError(f'--config={path}: no such file.')
  module = own_parts.execute(path, pathlib.Path(path).read_bytes())
  if needs_arms and not getattr(module, 'ARMS', None):
    raise ValueError(
      f'--config={path}: has no ARMS. An ablation needs the names that its'
      " get_config takes, as ARMS = ('bf16', 'int8'), or --grid."
    )
  return module


def baselines(
  arms: Sequence[str] | dict[str, str],
  chosen: Sequence[str] | None = None,
  baseline: str | None = None,
) -> dict[str, str]:
  """Returns {arm: its baseline} of the chosen arms, in their order.

  Raises:
    ValueError: the config has no such arm or baseline, or no arm is named.
  """
  if chosen is not None and not chosen:
    raise ValueError(f'--arms=: must name some of {", ".join(arms)}.')
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


def resolve(config: str, arguments: Sequence[str]) -> experiment_lib.Experiment:
  """Returns the experiment of 'NAME:ARM' with '--config.FIELD=VALUE' applied.

  Raises:
    OSError, ValueError: an unknown or ill-typed field, an experiment that
      cannot run, or one that leaves no record.
  """
  argv = ['ablate', f'--config={configs.config_path(config)}', *arguments]
  configs.check_fields(argv)
  values = flags.FlagValues()
  configs.define('config', values=values, argv=argv)
  try:
    values(argv)
  except (flags.Error, AttributeError, KeyError) as error:
    # str() of a KeyError is in quotes.
    raise ValueError(f'{shlex.join(argv[1:])}: {error.args[0]}') from error
  experiment = start.resolve(values.config)
  train.check(experiment)
  steps = batch_schedule.schedule_of(experiment).steps
  if experiment.loop.log_every > steps:
    raise ValueError(
      f'loop.log_every={experiment.loop.log_every}: must be at most'
      f' loop.steps={steps}, or no loss is left to compare.'
    )
  return experiment


class Plan(NamedTuple):
  """What is compared with what."""

  cells: dict[cells_lib.Cell, str]  # {cell, without --grid an arm: baseline}.
  arms: dict[str, str]  # {each of ARMS: its baseline}.
  config: str  # Without the arm that --grid crosses.
  title: str  # The first line of the config's docstring.


def plan(settings: settings_lib.Ablate) -> Plan:
  """Returns what the flags name.

  Raises:
    ValueError: a flag is wrong.
  """
  config, fields = settings.config, cells_lib.parse(settings.grid)
  name, _, arm = config.partition(':')
  module = load(name if fields else config, not fields)
  arms, title = getattr(module, 'ARMS', None), module.__doc__ or config
  if arm and fields:
    is_arm = arm in (arms or ())
    config, arms = (name, {arm: arm}) if is_arm else (config, None)
  if settings.arms is not None and not arms:
    raise ValueError(f'--arms: --config={config} has no ARMS.')
  baseline = None if fields else settings.baseline
  known = baselines(arms, None, baseline) if arms else {}
  chosen = baselines(arms, settings.arms, baseline) if arms else {}
  every = {arm: known[arm] for arm in (*chosen, *chosen.values())}
  found = cells_lib.cross(config, every, fields)
  if fields and settings.baseline:
    names = [cell.name for cell in found]
    named = baselines(names, None, settings.baseline)
    found = {cell: named[cell.name] for cell in found}
  return Plan(found, known, config, title.strip().splitlines()[0])


def commands(
  cells: Collection[cells_lib.Cell],
  seeds: Sequence[int],
  root: pathlib.Path,
  overrides: Sequence[str] = (),
  module: str = _TRAIN,
  mesh: sharding_config.MeshConfig | None = None,
) -> dict[pool.Command, grid.Job]:
  """Returns what trains each run, every arm's first seed before any second one.

  With a mesh, each run spreads over its devices.

  Raises:
    OSError, ValueError: a bad override, arms that are the same experiment, or a
      workdir that holds another one.
  """
  for override in overrides:
    if not override.startswith('--config.') or '=' not in override:
      raise ValueError(
        f'{override}: is no flag of ablate, and no --config.FIELD=VALUE.'
      )
    if override.startswith('--config.seed='):
      raise ValueError(f'{override}: --seeds lists the seeds.')
  values = _values(overrides)
  for cell in cells:
    for field in _values(cell.words).keys() & values.keys():
      raise ValueError(
        f'--config.{field}={values[field]}: has no effect with --grid={field}.'
      )
  planned = {}
  for seed in seeds:
    found = {}
    for cell in cells:
      arguments = (f'--config.seed={seed}', *overrides, *cell.words)
      workdir = root / cell.name / f'seed{seed}'
      try:
        experiment = found[cell.name] = resolve(cell.config, arguments)
      except (OSError, ValueError) as error:
        raise ValueError(f'arm {cell.name!r}: {error}') from error
      workdir_lib.check(workdir, experiment)
      digest = experiment.parts.digest
      if mesh is not None:
        fit.check(experiment, mesh)
      words = (
        sys.executable,
        '-m',
        module,
        f'--config={cell.config}',
        *arguments,
        # A file that changes while arms train is refused.
        *([f'--config.parts.digest={digest}'] if digest else []),
        *([] if mesh is None else [f'--fsdp={mesh.fsdp}']),
        *([] if mesh is None else [f'--tensor={mesh.tensor}']),
        f'--workdir={workdir}',
      )
      job = grid.Job(cell.name, experiment, workdir)
      planned[pool.Command(job.name, words, job.log)] = job
    overrides_lib.check_arms(found, values)
  return planned


def _values(words: Sequence[str]) -> dict[str, str]:
  """Returns {FIELD: VALUE} of words --config.FIELD=VALUE."""
  split = (one.removeprefix('--config.').partition('=') for one in words)
  return {name: value for name, _, value in split}


def find_others(
  config: str,
  root: pathlib.Path,
  overrides: Sequence[str],
  planned: Collection[grid.Job],
  arms: Collection[str] = (),
) -> list[tuple[pool.Command, grid.Job, str]]:
  """Returns the runs that a folder holds beside the planned ones.

  Each comes with the command that last trained it, without words if unknown,
  and with the names of its fields that this command would set otherwise, '' for
  none: only such a run may be compared with the planned ones. The fields that a
  cell is named for are its own.

  Raises:
    ValueError: a planned cell has the values of one that is there, written
      otherwise.
  """
  known = {job.folder for job in planned}
  found = []
  for folder in sorted(root.glob('*/seed*')):
    seed = folder.name.removeprefix('seed')
    if folder in known or not seed.isdecimal():
      continue
    try:
      held = workdir_lib.load_experiment(folder)
    except (OSError, ValueError):
      continue  # No run, or one that only an earlier version could read.
    job = grid.Job(folder.parent.name, held, folder)
    arm, own = cells_lib.split(job.arm, arms)
    for one in planned if own else ():
      if one.arm == job.arm or cells_lib.split(one.arm, arms) != (arm, own):
        continue
      both = strict.dump(one.experiment), strict.dump(held)
      if workdir_lib.compare(*both).keys() <= {'seed'}:
        raise ValueError(
          f'--grid: {one.arm} has the values of {job.arm}, which is in {root}:'
          ' write them as there.'
        )
    try:
      arguments = (f'--config.seed={seed}', *overrides)
      ours = resolve(f'{config}:{arm}' if arm else config, arguments)
      fields = workdir_lib.compare(strict.dump(ours), strict.dump(held))
      apart = ', '.join(field for field in fields if field not in own)
    except (OSError, ValueError):
      apart = 'arm'
    command = pool.Command(job.name, read_command(folder), job.log)
    found.append((command, job, apart))
  return found


def read_command(folder: pathlib.Path) -> tuple[str, ...]:
  """Returns the command that last trained in a workdir, () if unknown."""
  file = folder / 'environment.json'
  described = files.read_json(file) if file.is_file() else {}
  return tuple(described.get('command', ()))


def check_data(jobs: Sequence[grid.Job]) -> None:
  """Reads the data of all runs once, so that no run starts with unusable ones.

  Raises:
    OSError, ValueError: as `tasks.registry.Task.load`.
  """
  import jax

  # An accelerator's memory is the runs' own.
  jax.config.update('jax_platforms', 'cpu')
  read = set()
  for job in jobs:
    experiment = dataclasses.replace(job.experiment, seed=0)
    data = experiment.data, experiment.objective, experiment.parts
    data += (experiment.init,)
    key = repr((*data, experiment.model.vocab_size))
    if key not in read:
      tasks.task_of(experiment).load(experiment)
      read.add(key)


def run(settings: settings_lib.Ablate, overrides: Sequence[str]) -> int:
  """Runs what is missing, and writes the report; returns the exit status.

  Args:
    settings: which arms and seeds.
    overrides: --config.FIELD=VALUE, which all runs get.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  figures.require_figures()
  root = flags_lib.folder('out', settings.out)
  _check_folder(root)
  cells, known, config, title = plan(settings)
  mesh = None
  if settings.fsdp is not None or settings.tensor is not None:
    mesh = sharding_config.MeshConfig(settings.fsdp or 1, settings.tensor or 1)
  planned = commands(
    cells, settings.seeds, root, overrides, settings.module, mesh
  )
  found = find_others(config, root, overrides, planned.values(), known)
  missing = {
    command: [job]
    for command, job in planned.items()
    if not job.is_trained and job.diverged is None
  }
  width = 1 if settings.module == _TRAIN else None
  width = width if mesh is None else mesh.devices
  launcher = settings.prepare(len(missing), root, width, on_cpu=1)
  dry_run, console = settings.dry_run, progress.stdout()
  launcher.show(list(missing), len(missing), len(planned), dry_run)
  if dry_run:
    return 0
  texts.keep_stores(root)
  if settings.module == _TRAIN and len(missing) > 1:
    check_data([job for [job] in missing.values()])
  files.make_folder(root)
  ended, _ = grid.run_commands(missing, launcher, console=console)
  outcomes = [
    report.Outcome(job, ended.get(job.name) or _status(job), command.words)
    for command, job in planned.items()
  ]
  others = [
    report.Outcome(job, _status(job, apart), command.words)
    for command, job, apart in found
  ]
  compared = {cell.name: baseline for cell, baseline in cells.items()}
  of_arm = {cell.arm: compared[cell.name] for cell in cells}
  if not settings.grid:
    compared = known | compared
  for one in others:
    arm, _ = cells_lib.split(one.arm, known)
    compared.setdefault(one.arm, of_arm.get(arm, one.arm))
  arms = list(compared)
  page = report.write(
    root,
    title=title,
    command=('python', '-m', 'experiments.ablate', *sys.argv[1:]),
    runs=[
      one._replace(command=('python', *one.command[1:]))
      for one in sorted(
        [*outcomes, *others], key=lambda one: arms.index(one.arm)
      )
    ],
    baselines=compared,
  )
  console.print(f'Report: {page}', highlight=False, soft_wrap=True)
  return 0 if all(one.status == 'finished' for one in outcomes) else 1


def _check_folder(root: pathlib.Path) -> None:
  """Refuses a folder with files of others, and neither runs nor an array."""
  held = root.glob('[!.]*') if root.is_dir() else ()
  names = sorted(path.name for path in held)
  if names and not any(root.glob('*/seed*')) and slurm.FOLDER not in names:
    raise ValueError(
      f'--out={root}: has {names[0]}, and no runs of an ablation; must be a new'
      ' or an empty folder, or that of earlier runs.'
    )


def _status(job: grid.Job, apart: str = '') -> str:
  """Returns the status of a run that is not started now."""
  status = 'finished' if job.is_trained else 'not run'
  if job.diverged is not None:
    status = grid.describe_divergence(job.diverged)
  return f'{status}, with another {apart}' if apart else status

"""Finds runs below folders, lists them, and compares them as arms."""

from collections.abc import Iterator
from collections.abc import Sequence
import json
import os
import pathlib
import re
import sys
from typing import Any

from kaiju_jax.evaluation import run_results
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.experiments.studies.ablation import report as report_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.training import workdir


def find_jobs(paths: Sequence[str]) -> list[grid.Job]:
  """Returns the runs of workdirs, and of all workdirs below folders.

  The arm of a run is its path in the folder, without a last seedS.

  Raises:
    ValueError: there is none.
  """
  found = {}
  for root in map(pathlib.Path, paths):
    jobs = list(_walk(root))
    if not jobs:
      raise ValueError(f'{root}: neither a workdir nor a folder with some.')
    for job in jobs:
      found.setdefault(job.folder.resolve(), job)
  return list(found.values())


def _walk(root: pathlib.Path) -> Iterator[grid.Job]:
  for name, folders, _ in os.walk(root):
    folders.sort()
    folder = pathlib.Path(name)
    try:
      experiment = workdir.load_experiment(folder)
    except (OSError, ValueError):
      continue  # No run, or one that only an earlier version could read.
    folders.clear()
    home = _home(folder.resolve())
    is_below = root.resolve() in home.parents
    arm = home.relative_to(root.resolve()) if is_below else home.name
    yield grid.Job(str(arm), experiment, folder)


def _home(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder of all seeds of a run ARM/seedS, else its own."""
  return folder.parent if re.fullmatch(r'seed\d+', folder.name) else folder


def state(job: grid.Job) -> str:
  """Returns 'finished', 'running', 'stopped' or 'diverged at step …'."""
  if job.diverged is not None:
    return grid.describe_divergence(job.diverged)
  if job.is_trained:
    return 'finished'
  is_running = workdir.find_trainer(job.folder) is not None
  return 'running' if is_running else 'stopped'


def table(jobs: Sequence[grid.Job], only: str | None = None) -> report.Table:
  """Returns a row per run, of those in the state `only` if there is one."""
  rows = []
  for job in jobs:
    status = state(job)
    if only and not status.startswith(only):
      continue
    records = report_lib.Outcome(job, status, ()).records()
    last = {}
    for record in records:
      last |= record
    rows.append(
      (
        job.arm,
        job.experiment.seed,
        f'{last.get("step", 0)} of {job.steps}',
        *(_cell(last, name) for name in ('loss', 'eval_loss')),
        _cell(last, 'tokens_per_second', ',.0f'),
        status,
      )
    )
  columns = 'arm', 'seed', 'step', 'loss', 'eval loss', 'tokens/s', 'state'
  return report.Table(rows, columns, look='light')


def _cell(values: dict[str, Any], name: str, form: str = '.4f'):
  return report.Number(values[name], form) if name in values else None


def name_arms(jobs: Sequence[grid.Job]) -> list[grid.Job]:
  """Returns the jobs with names of arms, whose runs differ only in the seed.

  Runs of ARM/seedS are of one arm if their configs are the same, and so are all
  other runs of one config. A second run of the same seed begins another arm.
  """
  arms: dict[Any, dict[int, grid.Job]] = {}
  for job in jobs:
    settings = strict.dump(job.experiment)
    del settings['seed']
    home, folder = _home(job.folder.resolve()), job.folder.resolve()
    shared = None if home == folder else home
    key, count = (shared, json.dumps(settings, sort_keys=True)), 0
    while job.experiment.seed in arms.setdefault((*key, count), {}):
      count += 1
    arms[*key, count][job.experiment.seed] = job
  first = [next(iter(runs.values())) for runs in arms.values()]
  named = []
  for one, runs in zip(first, arms.values()):
    name = one.arm
    if sum(other.arm == name for other in first) > 1:
      name = str(_home(one.folder))
    taken = {job.arm for job in named}
    free, number = name, 1
    while free in taken:
      number += 1
      free = f'{name} ({number})'
    named += [job._replace(arm=free) for job in runs.values()]
  return named


def _recorded_baseline(paths: Sequence[str], arms: Sequence[str]) -> str | None:
  """Returns the baseline of all arms in a folder's report, if it has one."""
  file = pathlib.Path(paths[0]) / report.JSON
  if len(paths) > 1 or not file.exists():
    return None
  try:
    found = set(files.read_json(file)['data']['baselines'].values())
  except (KeyError, TypeError, AttributeError):
    return None  # The report of another command.
  return found.pop() if len(found) == 1 and found <= {*arms} else None


def cut(
  runs: Sequence[report_lib.Outcome], unit: str, most: int
) -> list[report_lib.Outcome]:
  """Returns the runs, each read up to the last place that all have recorded.

  A run that diverged before enters no figures, as ever.

  Args:
    runs: finished or not.
    unit: 'step' or 'tokens'.
    most: steps or tokens up to which each measure's place is looked for.

  Raises:
    ValueError: a run was not there, or no loss up to there is of all runs.
  """
  read = {}
  for index, one in enumerate(runs):
    records = one.records()
    last = max((record[unit] for record in records), default=0)
    if one.status == 'finished':  # The last step may be on no record.
      last = max(last, {'step': one.job.steps, 'tokens': one.job.tokens}[unit])
    if last >= most:
      read[index] = records
    elif one.job.diverged is None:
      raise ValueError(
        f'--{unit}={most}: {one.job.name} ({one.job.folder}) has come to {unit}'
        f' {last:,}; must be at most that.'
      )
  found = run_results.find_common(read.values(), unit, most)
  if 'loss' not in found.places:
    raise ValueError(
      f'--{unit}={most}: no loss up to there is on record of all runs; must be'
      ' more.'
    )
  return [
    one._replace(cut=found if index in read else None)
    for index, one in enumerate(runs)
  ]


def run(settings: settings_lib.Compare, paths: Sequence[str]) -> None:
  """Prints the comparison, and writes it into a folder if there is one.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  root = pathlib.Path()
  if settings.out is not None:
    figures.require_figures()
    root = flags.folder('out', settings.out)
  jobs = name_arms(find_jobs(paths))
  arms = list(dict.fromkeys(job.arm for job in jobs))
  baseline = settings.baseline
  if baseline is None:
    baseline = _recorded_baseline(paths, arms) or arms[0]
  if baseline not in arms:
    raise ValueError(
      f'--baseline={baseline}: must be one of {", ".join(arms)}.'
    )
  runs = [
    report_lib.Outcome(job, state(job), ablate.read_command(job.folder))
    for job in sorted(jobs, key=lambda job: job.arm != baseline)
  ]
  if settings.step or settings.tokens:
    unit = 'step' if settings.step else 'tokens'
    runs = cut(runs, unit, settings.step or settings.tokens)
  page = report_lib.make(
    root,
    title=f'{len(jobs)} runs of {len(arms)} arms',
    command=('kaiju', 'compare', *sys.argv[1:]),
    runs=runs,
    baselines=dict.fromkeys(arms, baseline),
    draws=settings.out is not None,
  )
  written = []
  if settings.out is not None:
    files.make_folder(root)
    page.save(root)
    written = [root / name for name in (report.FILE, report.JSON, report.HTML)]
  page.show(written, as_markdown=True)

"""Runs the arms of a config on several seeds, and writes one report."""

from collections.abc import Sequence
import sys

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies.ablation import plan
from kaiju_jax.experiments.studies.ablation import report
from kaiju_jax.reporting import figures
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import files
from kaiju_jax.training import progress

_TRAIN = 'experiments.train'


def run(settings: settings_lib.Ablate, overrides: Sequence[str]) -> int:
  """Runs what is missing, and writes the report; returns the exit status.

  Args:
    settings: which arms and seeds.
    overrides: --config.FIELD=VALUE, which all runs get.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  figures.require_figures()
  config, root = settings.config, flags.folder('out', settings.out)
  module = plan.load(config)
  compared = plan.baselines(module.ARMS, settings.arms, settings.baseline)
  arms = tuple(dict.fromkeys([*compared, *compared.values()]))
  planned = plan.commands(
    config,
    arms,
    settings.seeds,
    root,
    overrides,
    settings.module,
    _mesh(settings),
  )
  missing = {
    command: [job]
    for command, job in planned.items()
    if not job.is_trained and job.diverged is None
  }
  if settings.module == _TRAIN and len(missing) > 1:
    plan.check_data([job for [job] in missing.values()])
  files.make_folder(root)
  console = progress.stdout()
  console.print(
    f'{len(missing)} of {len(planned)} runs to do, {settings.jobs} at a time.',
    highlight=False,
  )
  ended, _ = grid.run_commands(missing, settings.jobs, console=console)
  outcomes = [
    report.Outcome(job, ended.get(job.name) or _status(job), command.words)
    for command, job in planned.items()
  ]
  others = [
    report.Outcome(job, _status(job, apart), command.words)
    for command, job, apart in plan.find_others(
      config, root, overrides, planned.values()
    )
  ]
  arms = list(module.ARMS)
  page = report.write(
    root,
    title=(module.__doc__ or config).strip().splitlines()[0],
    command=('python', '-m', 'experiments.ablate', *sys.argv[1:]),
    runs=[
      one._replace(command=('python', *one.command[1:]))
      for one in sorted(
        [*outcomes, *others],
        key=lambda one: arms.index(one.arm) if one.arm in arms else len(arms),
      )
    ],
    baselines=plan.baselines(module.ARMS, None, settings.baseline) | compared,
  )
  console.print(f'Report: {page}', highlight=False, soft_wrap=True)
  return 0 if all(one.status == 'finished' for one in outcomes) else 1


def _status(job: grid.Job, apart: str = '') -> str:
  """Returns the status of a run that is not started now."""
  status = 'finished' if job.is_trained else 'not run'
  if job.diverged is not None:
    status = grid.describe_divergence(job.diverged)
  return f'{status}, with another {apart}' if apart else status


def _mesh(settings: settings_lib.Ablate) -> sharding_config.MeshConfig | None:
  if settings.fsdp is None and settings.tensor is None:
    return None
  return sharding_config.MeshConfig(settings.fsdp or 1, settings.tensor or 1)

"""Runs the arms of a config on several seeds, and writes one report.

    python -m experiments.ablate --config=ablation \\
        --out=runs/ablation --seeds=0,1,2 --jobs=4 [--config.loop.steps=300 …]

A config that can be ablated names its arms in ARMS, and `get_config(arm)`
takes each of these names. ARMS is a tuple, whose first arm is the baseline of
the others, or a dict from each arm to its own baseline.

Each arm and seed is a process of its own,

    python -m experiments.train --config=CONFIG:ARM --config.seed=SEED
        --config.… --workdir=OUT/ARM/seedSEED

whose output goes to that workdir's log.txt. `--jobs` run at once, each on its
share of the cores. A run that fails or diverges is a line of the report and
stops no other. The same command again runs what is missing: a run is finished
once the checkpoint of its last step is, and a started one resumes; one that
diverged is not repeated while its workdir stands. Ctrl-C lets running jobs
save, and reports what there is. The data are read once before anything starts.

The report is of all runs in the folder. Those of other settings are listed and
not compared.

OUT/report.md: means and spreads over the seeds, paired differences to the
baseline with 95 % intervals, figures, commands, environment.
"""

from collections.abc import Sequence
import sys

from absl import flags

from kaiju_jax.experiments.studies.ablation import plan
from kaiju_jax.experiments.studies.ablation import report
from kaiju_jax.reporting import figures
from kaiju_jax.runs import command as command_lib
from kaiju_jax.runs import grid
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import files
from kaiju_jax.training import progress

_TRAIN = f'{__package__}.train'
_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'A config with ARMS: NAME of experiments/configs/, or a path. Every'
  ' --config.FIELD=VALUE is an override that all runs get.',
)
_OUT = flags.DEFINE_string(
  'out', None, 'Folder of all workdirs and of report.md.'
)
_SEEDS = command_lib.define_seeds('0,1,2', 'Seeds that each arm runs on.')
_JOBS = flags.DEFINE_integer(
  'jobs', 1, 'How many runs at once; the cores are split.', lower_bound=1
)
_ARMS = flags.DEFINE_list('arms', None, 'Which of ARMS to run; all by default.')
_BASELINE = flags.DEFINE_string(
  'baseline', None, "Arm that all others are compared with, instead of ARMS's."
)
_MODULE = flags.DEFINE_string(
  'module', _TRAIN, 'What is run: python -m MODULE.'
)
_FSDP = flags.DEFINE_integer('fsdp', None, 'FSDP width of each run.')
_TENSOR = flags.DEFINE_integer('tensor', None, 'Tensor width of each run.')


def main(argv: Sequence[str]) -> int:
  return _ablate(argv[1:])


def _ablate(overrides: Sequence[str]) -> int:
  figures.require_figures()
  config, root = _CONFIG.value, command_lib.folder(_OUT)
  module = plan.load(config)
  compared = plan.baselines(module.ARMS, _ARMS.value, _BASELINE.value)
  arms = tuple(dict.fromkeys([*compared, *compared.values()]))
  planned = plan.commands(
    config,
    arms,
    command_lib.seeds(_SEEDS),
    root,
    overrides,
    _MODULE.value,
    _mesh(),
  )
  missing = {
    command: [job]
    for command, job in planned.items()
    if not job.is_trained and job.diverged is None
  }
  if _MODULE.value == _TRAIN and len(missing) > 1:
    plan.check_data([job for [job] in missing.values()])
  files.make_folder(root)
  console = progress.stdout()
  console.print(
    f'{len(missing)} of {len(planned)} runs to do, {_JOBS.value} at a time.',
    highlight=False,
  )
  ended, _ = grid.run_commands(missing, _JOBS.value, console=console)
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
    command=('python', '-m', f'{__package__}.ablate', *sys.argv[1:]),
    runs=[
      one._replace(command=('python', *one.command[1:]))
      for one in sorted(
        [*outcomes, *others],
        key=lambda one: arms.index(one.arm) if one.arm in arms else len(arms),
      )
    ],
    baselines=plan.baselines(module.ARMS, None, _BASELINE.value) | compared,
  )
  console.print(f'Report: {page}', highlight=False, soft_wrap=True)
  return 0 if all(one.status == 'finished' for one in outcomes) else 1


def _status(job: grid.Job, apart: str = '') -> str:
  """Returns the status of a run that is not started now."""
  status = 'finished' if job.is_trained else 'not run'
  if job.diverged is not None:
    status = grid.describe_divergence(job.diverged)
  return f'{status}, with another {apart}' if apart else status


def _mesh() -> sharding_config.MeshConfig | None:
  if _FSDP.value is None and _TENSOR.value is None:
    return None
  return sharding_config.MeshConfig(_FSDP.value or 1, _TENSOR.value or 1)


def _parse(argv: Sequence[str]) -> list[str]:
  """Leaves --config.FIELD=VALUE to the runs."""
  return flags.FLAGS(argv, known_only=True)


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'out'])
  command_lib.run(main, parser=_parse)

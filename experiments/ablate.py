"""Run the arms of a config on several seeds, and write one report.

    python -m experiments.ablate --config=ablation \\
        --out=runs/ablation --seeds=0,1,2 --jobs=4 [--config.loop.steps=300 …]

A config that can be ablated names its arms in ARMS, and `get_config(arm)`
takes each of these names. ARMS is a tuple, whose first arm is the baseline of
the others, or a dict from each arm to its own baseline.

    python -m experiments.ablate --config=tiny:int8 --out=runs/grid \\
        --grid=model.window=16,64 --grid=data.batch=4,8

runs a grid: each combination of the values is an arm. Each of several ARMS is
crossed with it. The first values are the baseline. A later grid in the same
folder, with more values, runs what is new, and its report is of all cells.

Each arm and seed is a process of its own,

    python -m experiments.train --config=CONFIG:ARM --config.seed=SEED
        --config.… --workdir=OUT/ARM/seedSEED

whose output goes to that workdir's log.txt. `--jobs` run at once, each on its
share of the cores and on GPUs or TPU chips of its own (--devices_per_job). A
run that fails or diverges is a line of the report and stops no other. The same
command again runs what is missing: a run is finished once the checkpoint of its
last step is, and a started one resumes; one that diverged is not repeated while
its workdir stands. Ctrl-C lets running jobs save, and reports what there is.
The data are read once before anything starts. --launch=slurm submits one array
job instead, and --dry_run prints what would run.

The report is of all runs in the folder. Those of other settings are listed and
not compared.

    python -m experiments.ablate --out=runs/induction --reading=eval_answered

runs nothing: it prints after how many tokens the reading of each arm is at
--least and stays there, or for a loss at --most, below that of
uniform guesses, and draws OUT/learning.<reading>.png. Runs under way are read
as far as they are, and those of a needle comparison, too.

OUT/report.md, report.html, report.json: fields that differ, means and spreads
over the seeds, differences to the baseline with 95 % intervals (paired, or
Welch's), effects and interactions of a full grid, figures, commands,
environment.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_OF_RUNS = (
  *('config', 'seeds', 'jobs', 'devices_per_job', 'launch', 'dry_run'),
  *('baseline', 'grid', 'module', 'fsdp', 'tensor'),
)
FLAGS = flags.flags_of(settings_lib.Ablate)


def main(argv: Sequence[str]) -> int:
  settings = FLAGS.read(argv[:1])
  if settings.reading:
    from kaiju_jax.experiments.studies import learning

    FLAGS.refuse_beside('reading', *_OF_RUNS)
    learning.show(settings)
    return 0
  from kaiju_jax.experiments.studies.ablation import ablate

  return ablate.run(settings, argv[1:])


if __name__ == '__main__':
  # --config.FIELD=VALUE is left to the runs.
  command.run(main, parser=flags.parse_known)

"""List the runs below a folder: how far each is, and its last figures.

    python -m experiments.runs runs/ablation [--state=running]

A row for each workdir: its arm, which is its path but for a last seedS, its
seed, step, last losses and tokens/s, and

    finished   the checkpoint of the last step is saved
    running    a process of this machine holds the workdir's lock
    diverged   the run ended so
    stopped    none of these; the command that began it goes on

Nothing is written, and no run is disturbed.
"""

from collections.abc import Sequence

from absl import app

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Runs)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv[:1])
  if len(argv) < 2:
    raise app.UsageError('a folder is missing.')
  from kaiju_jax.experiments.studies.ablation import compare
  from kaiju_jax.reporting import report

  jobs = compare.find_jobs(argv[1:])
  report.Report().add(compare.table(jobs, settings.state)).show(
    has_markup=False
  )


if __name__ == '__main__':
  command.run(main)

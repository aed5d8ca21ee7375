"""Compare runs: what differs in their configs, curves, last values, effects.

    python -m experiments.compare runs/ablation [--out=runs/compared]
    python -m experiments.compare runs/first runs/second --baseline=second

Each RUN is a workdir, or a folder with workdirs below it. Runs that differ only
in their seed are seeds of one arm: those of ARM/seedS, and others of one config
wherever they are. Arms are compared with --baseline, with the baseline of the
report in the only folder that is named, or with the first one,

    paired over the seeds that both have, two at least; else
    by Welch's interval, if both have two seeds; else
    without an interval, and the table says so

with p corrected by Holm's method, the smallest effect that the design could
detect, and, if the arms are a full grid, main effects and interactions of two
factors. Only finished runs enter these figures. With --step=N, or --tokens=N,
they are of the last record up to there that all runs have, finished or not, and
each heading says which it is; a run that was not there is refused.

With --out it writes report.md, report.json and report.html, with curves over
tokens, seconds and FLOPs; the page loads nothing.
"""

from collections.abc import Sequence

from absl import app

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Compare)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv[:1])
  if len(argv) < 2:
    raise app.UsageError('a run is missing.')
  from kaiju_jax.experiments.studies.ablation import compare

  compare.run(settings, argv[1:])


if __name__ == '__main__':
  command.run(main)

"""Measure how far the batch may grow while a run trains, without a loss.

    python -m experiments.train --config=sweep:batch \\
        --workdir=runs/batch/base
    python -m experiments.critical_batch --model=runs/batch/base --at=.1,.3

Branches off the checkpoints of one run with a small batch: from each place, m
times the batch at √m times the rate, on equally many tokens over which the rate
falls. The largest m that costs no more than ε of the loss is the critical batch
of that place. Prints them, and the schedule that `--config.optimizer.batch`
takes.

Then trains three runs from the beginning on the same tokens (unless
--noconfirm): the small batch, that schedule, and the largest batch throughout.

The run must keep checkpoints at the places: loop.checkpoint_every and
loop.checkpoints_kept. --out gets a workdir per run, critical_batch.json and
critical_batch.png. The same command goes on where it was stopped and repeats
nothing.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

from kaiju_jax.experiments.studies.sweeps import study as study_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(study_lib.CriticalBatch):
  # The run with a small batch, finished or not.
  model: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  model = flags.folder('model', settings.model)
  settings.check()
  from kaiju_jax.experiments.studies.sweeps import critical_batch

  out = pathlib.Path(f'{model}-critical_batch')
  settings.run(critical_batch, model, out)


if __name__ == '__main__':
  command.run(main)

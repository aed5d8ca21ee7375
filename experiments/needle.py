"""Compare full attention, Kaiju's layers, and windows alone on needles.

    python -m experiments.needle [--arms=full,kaiju] [--seeds=0,1,2]
    python -m experiments.needle --task=needle_text --data=FOLDER

Trains each arm (one layout) of `experiments/configs/<task>.py` on each seed in
<workdir>/<arm>/seed<S>, asks all arms the same questions, and writes into the
workdir

    needle.json   records (arm, seed, length, depth, distance, distractors,
                  accuracy, count)
    needle.png    heatmaps of depth × length, and the curve along the distance

and to the terminal a table and a verdict on each arm, with 95 % intervals. They
show the arms and seeds that the command names. Where there are several runs and
no accelerator, each is a process of its own on its share of the cores, which
prints into log.txt in its folder (`--jobs`), or a task of an array of Slurm
(`--launch=slurm`). The same command goes on where it was stopped; what is
finished is not repeated.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Needle)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import needle

  needle.run(settings)


if __name__ == '__main__':
  command.run(main)

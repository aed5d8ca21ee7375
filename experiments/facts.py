"""Compare what filtered synthetic questions teach with repeated passages.

    python -m experiments.facts [--seeds=0,1,2] [--out=runs/facts]

Trains the generator of `experiments/configs/facts.py`, has it write variations
of the students' passages, plants errors in some, filters, trains the students
on each seed, and asks them about new persons. Writes facts.json into the
workdir, and prints how well the filters found the errors and what each student
answered, with 95 % intervals. The same command goes on where it was stopped.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Facts)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import facts

  facts.run(settings, flags.folder('out', settings.out))


if __name__ == '__main__':
  command.run(main)

"""Run `experiments/configs/distill.py`: teacher, stores, students, verdict.

    python -m experiments.distill [--seeds=0,1,2] [--jobs=2]

    1  a tokenizer of 1,024 tokens, from the training text
    2  the teacher               python -m experiments.train
    3  the draws of each method that take as many bytes per token as those of
       `systematic`, judged by the first 4,096 tokens
    4  a store per method        python -m experiments.teach
    5  all arms on all seeds     python -m experiments.ablate
    6  a table: held-out loss against `full`'s and `top_k`'s, bytes per token

All of it lies in runs/distill. What is finished is not repeated: the same
command goes on where it was stopped.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Distill)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import distill

  distill.run(settings)


if __name__ == '__main__':
  command.run(main)

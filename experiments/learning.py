"""Show after how many tokens the runs of a folder have learnt their task.

    python -m experiments.ablate --config=induction \\
      --out=runs/induction --seeds=0,1,2
    python -m experiments.learning --runs=runs/induction --reading=eval_answered

Reads ROOT/ARM/seedS of any ablation or needle comparison whose runs evaluate
along the way (`loop.evaluate_every`). Prints a row per arm with the tokens
after which the reading is at --least and stays there, or for a loss at --most,
which must be below the loss of uniform guesses, and writes
ROOT/learning.<reading>.png, the reading over tokens. Runs under way are read
as far as they are.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Learning)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.experiments.studies import show_learning

  show_learning.show(settings)


if __name__ == '__main__':
  command.run(main)

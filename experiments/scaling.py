"""Fit how the loss falls with parameters and tokens, and predict a larger run.

    python -m experiments.scaling [--widths=32,48,64] [--out=runs/scaling]

Trains the config in each width on each number of tokens, fits

    L(N, D) = E + A / N^α + B / D^β

and predicts a run that has more of both than any that was fitted, beside two
contrasts: the law without E, and the loss of the largest fitted run. The
report says where the fit is not to be trusted.

ROOT gets a workdir per run, scaling.json and scaling.png. The same command goes
on where it was stopped and repeats nothing.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies.sweeps import study as study_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import overrides

FLAGS = flags.flags_of(study_lib.Scaling)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  overrides.refuse(
    {'loop.tokens': '--tokens', 'loop.steps': '--tokens', 'seed': '--seeds'}
  )
  settings.check()
  from kaiju_jax.experiments.studies.sweeps import scaling

  settings.run(scaling, settings.config)


if __name__ == '__main__':
  command.run(main)

"""Find the best learning rate at several widths, and predict the next one's.

    python -m experiments.rates [--widths=48,64,96,128] [--out=runs/rates]

Trains the config in each width at each rate on each seed, fits a parabola in
ln rate per width and a line in ln width through the optima, predicts the rate
of the next width, and runs that: at the predicted rate, at half and twice as
much, and at the narrowest width's best rate. With optimizer.transfer='width'
(--transfer) one rate should serve all widths. Nothing is predicted from an
optimum at the edge of --rates.

ROOT gets a workdir per run, rates.json and rates.png. The same command goes on
where it was stopped and repeats nothing.
"""

from collections.abc import Sequence

from kaiju_jax.experiments.studies.sweeps import study as study_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import overrides

FLAGS = flags.flags_of(study_lib.RateGrid)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  overrides.refuse(
    {
      'optimizer.learning_rate': '--rates',
      'optimizer.transfer': '--transfer',
      'optimizer.transfer_base': '--widths',
      'seed': '--seeds',
    }
  )
  settings.check()
  from kaiju_jax.experiments.studies.sweeps import rates

  settings.run(rates, settings.config)


if __name__ == '__main__':
  command.run(main)

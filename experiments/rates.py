"""Which learning rate is best, and how does it move with the width?

    python -m experiments.rates [--widths=48,64,96,128] [--predict=192]
        [--rates=2e-3,4e-3,…] [--seeds=0,1] [--transfer=none,width]
        [--config=PATH] [--config.FIELD=VALUE …] [--out=runs/rates]

Trains the config in each width at each rate on each seed, fits a parabola in
ln rate per width and a line in ln width through the optima, predicts the rate
of the next width, and then runs it there: at the predicted rate, at half and
twice as much, and at the narrowest width's best rate, which is what one does
without a line. --transfer compares `optimizer.transfer`: with 'width' one rate
should serve all widths. An optimum at the edge of --rates is refused: what
follows from it is printed, but not predicted from.

ROOT gets a workdir per run, rates.json and rates.png. The same command goes on
where it was stopped and repeats nothing.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.runs import command
from kaiju_jax.runs import overrides

_CONFIG = study.define_config('sweep')
_WIDTHS = flags.DEFINE_list(
  'widths', ['48', '64', '96', '128'], 'Widths d_model that are measured.'
)
_PREDICT = flags.DEFINE_integer(
  'predict', 192, 'The width whose rate is predicted, then run.', lower_bound=1
)
_RATES = flags.DEFINE_list(
  'rates',
  ['2e-3', '4e-3', '8e-3', '1.6e-2', '3.2e-2', '6.4e-2'],
  'Learning rates that every width is trained at.',
)
_FACTOR = flags.DEFINE_float(
  'factor',
  2.0,
  'The parabola goes through rates within this factor of the best one.',
  lower_bound=1.0,
)
_TRANSFER = flags.DEFINE_list(
  'transfer', ['none', 'width'], 'Values of optimizer.transfer.'
)
_STUDY = study.define('runs/rates', '0,1')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  overrides.refuse(
    {
      'optimizer.learning_rate': '--rates',
      'optimizer.transfer': '--transfer',
      'optimizer.transfer_base': '--widths',
      'seed': '--seeds',
    }
  )
  widths = command.numbers(_WIDTHS, int, 2, 'a line needs two or more')
  rates = command.numbers(_RATES, float, 3, 'a parabola needs three or more')
  if _PREDICT.value <= widths[-1]:
    raise ValueError(
      f'--predict={_PREDICT.value}: must be wider than all of --widths, the'
      f' widest of which is {widths[-1]}.'
    )
  transfers = command.choose(_TRANSFER, ('none', 'width'))
  _STUDY.check()
  from kaiju_jax.experiments.studies.sweeps import rates as rates_lib
  from kaiju_jax.experiments.studies.sweeps import rates_report

  settings = rates_lib.Settings(
    tuple(transfers),
    tuple(widths),
    tuple(rates),
    _STUDY.seeds,
    _PREDICT.value,
    _FACTOR.value,
  )
  _STUDY.run(rates_lib, rates_report, _CONFIG.value, settings)


if __name__ == '__main__':
  command.run(main)

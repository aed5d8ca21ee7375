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
import pathlib

from absl import flags
from ml_collections import config_flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report
from kaiju_jax.storage import addresses

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  str(pathlib.Path(__file__).parent / 'configs' / 'sweep.py'),
  'What is trained, at any width: NAME:ARM, or PATH:ARM.',
)
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
_SEEDS = command.define_seeds('0,1')
_TRANSFER = flags.DEFINE_list(
  'transfer', ['none', 'width'], 'Values of optimizer.transfer.'
)
_OUT = flags.DEFINE_string('out', 'runs/rates', 'Where everything goes.')
_JOBS = flags.DEFINE_integer(
  'jobs',
  None,
  'Processes at once, the cores split among them; by default one per core.'
  ' Give 1 on an accelerator.',
  lower_bound=1,
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  report.require_figures()
  widths, rates = _widths(), _rates()
  _check()
  command.seeds(_SEEDS)
  _study(widths, rates)


def _widths() -> list[int]:
  wanted = _numbers('widths', int)
  if len(wanted) < 2:
    raise ValueError(f'--widths={_WIDTHS.value}: a line needs two or more.')
  if _PREDICT.value <= wanted[-1]:
    raise ValueError(
      f'--predict={_PREDICT.value}: must be wider than all of --widths, the'
      f' widest of which is {wanted[-1]}.'
    )
  return wanted


def _rates() -> list[float]:
  wanted = _numbers('rates', float)
  if len(wanted) < 3:
    raise ValueError(f'--rates={_RATES.value}: a parabola needs three or more.')
  return wanted


def _numbers(flag: str, kind: type) -> list:
  """Returns a list flag's positive numbers, rising."""
  values = []
  for text in flags.FLAGS[flag].value:
    try:
      values.append(kind(text))
    except ValueError:
      values.append(0)
    if not 0 < values[-1] < float('inf'):
      raise ValueError(f'--{flag}: {text!r} is not a positive {kind.__name__}.')
  return sorted(set(values))


def _check() -> None:
  for transfer in _TRANSFER.value:
    if transfer not in ('none', 'width'):
      raise ValueError(f"--transfer: {transfer!r} is not 'none' or 'width'.")
  if not _TRANSFER.value or not _OUT.value:
    raise ValueError('--transfer and --out each need a value.')
  addresses.refuse(_OUT.value, f'--out={_OUT.value}')


def _study(widths: list[int], rates: list[float]) -> None:
  """Runs the grid, then the predicted width, and reports both."""
  from kaiju_jax.runs.sweeps import rates as rates_lib
  from kaiju_jax.runs.sweeps import rates_report
  from kaiju_jax.runs.sweeps import watch

  root = pathlib.Path(_OUT.value)
  studies, predictions = rates_lib.measure(
    _CONFIG.value,
    rates_lib.Asked(
      tuple(dict.fromkeys(_TRANSFER.value)),
      tuple(widths),
      tuple(rates),
      command.seeds(_SEEDS),
      _PREDICT.value,
      _FACTOR.value,
    ),
    root,
    _JOBS.value,
  )
  files = rates_report.write(root, studies, predictions, _PREDICT.value)
  watch.show(rates_report.parts(studies, predictions, _PREDICT.value), files)


if __name__ == '__main__':
  command.run(main)

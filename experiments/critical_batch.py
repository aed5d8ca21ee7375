"""How far may the batch grow while a run trains, without a loss?

    python -m experiments.train --config=sweep:batch \\
        --workdir=runs/batch/base
    python -m experiments.critical_batch --model=runs/batch/base --at=.1,.3
        [--multiples=1,2,4,8] [--epsilon=0.003] [--share=0.4] [--seeds=0,1]

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
import pathlib

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report
from kaiju_jax.storage import addresses

_MODEL = flags.DEFINE_string(
  'model', None, 'The run with a small batch, finished or not.'
)
_AT = flags.DEFINE_list(
  'at', ['0.1', '0.3'], "Fractions of the run's tokens to branch off at."
)
_MULTIPLES = flags.DEFINE_list(
  'multiples', ['1', '2', '4', '8'], 'Times the batch; 1 among them.'
)
_EPSILON = flags.DEFINE_float(
  'epsilon', 0.003, 'Relative loss that a larger batch may cost.'
)
_SHARE = flags.DEFINE_float(
  'share', 0.4, "The part of the run's tokens that a branch trains on."
)
_SEEDS = command.define_seeds(
  '0,1', "Orders of the data, counted from the run's own."
)
_CONFIRM = flags.DEFINE_bool(
  'confirm', True, 'Whether three runs from the beginning follow.'
)
_OUT = flags.DEFINE_string(
  'out', None, 'Where everything goes; by default MODEL-critical_batch.'
)
_JOBS = flags.DEFINE_integer(
  'jobs',
  None,
  'Processes at once, the cores split among them; by default one per core.'
  ' Give 1 on an accelerator.',
  lower_bound=1,
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  report.require_figures()
  at, multiples = _fractions(), _multiples()
  command.seeds(_SEEDS)
  if not 0 < _EPSILON.value < 1:
    raise ValueError(f'--epsilon={_EPSILON.value}: must lie between 0 and 1.')
  if not 0 < _SHARE.value <= 1:
    raise ValueError(f'--share={_SHARE.value}: must lie in 0…1, above 0.')
  for flag in (_MODEL, _OUT):
    addresses.refuse(flag.value or '', f'--{flag.name}={flag.value}')
  _study(at, multiples)


def _fractions() -> list[float]:
  values = []
  for text in _AT.value:
    try:
      values.append(float(text))
    except ValueError:
      values.append(-1.0)
    if not 0 < values[-1] < 1:
      raise ValueError(f'--at: {text!r} is not a fraction between 0 and 1.')
  if not values:
    raise ValueError('--at is empty: at least one is needed, as 0.1.')
  return sorted(set(values))


def _multiples() -> list[int]:
  for text in _MULTIPLES.value:
    if not (text.isascii() and text.isdigit() and int(text)):
      raise ValueError(f'--multiples: {text!r} is not a positive whole number.')
  values = sorted({int(text) for text in _MULTIPLES.value})
  if len(values) < 2 or values[0] != 1:
    raise ValueError(
      f'--multiples={",".join(_MULTIPLES.value)}: must have 1, which the others'
      ' are compared with, and at least one more.'
    )
  return values


def _study(at: list[float], multiples: list[int]) -> None:
  from kaiju_jax.runs.sweeps import critical_batch
  from kaiju_jax.runs.sweeps import critical_batch_report
  from kaiju_jax.runs.sweeps import watch

  workdir = pathlib.Path(_MODEL.value)
  root = pathlib.Path(_OUT.value or f'{workdir}-critical_batch')
  study = critical_batch.measure(
    workdir,
    critical_batch.Asked(
      tuple(at),
      tuple(multiples),
      _EPSILON.value,
      _SHARE.value,
      command.seeds(_SEEDS),
      _CONFIRM.value,
    ),
    root,
    _JOBS.value,
  )
  files = critical_batch_report.write(root, study)
  watch.show(critical_batch_report.parts(study), files)


if __name__ == '__main__':
  command.run(main)

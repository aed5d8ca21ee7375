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

from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.runs import command

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
_CONFIRM = flags.DEFINE_bool(
  'confirm', True, 'Whether three runs from the beginning follow.'
)
_STUDY = study.define(
  None,
  '0,1',
  out_text='Where everything goes; by default MODEL-critical_batch.',
  seeds_text="Orders of the data, counted from the run's own.",
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  at = command.numbers(_AT, float, below=1)
  multiples = command.numbers(_MULTIPLES, int)
  if len(multiples) < 2 or multiples[0] != 1:
    raise ValueError(
      f'--multiples={",".join(_MULTIPLES.value)}: must have 1, which the others'
      ' are compared with, and at least one more.'
    )
  if not 0 < _EPSILON.value < 1:
    raise ValueError(f'--epsilon={_EPSILON.value}: must lie between 0 and 1.')
  if not 0 < _SHARE.value <= 1:
    raise ValueError(f'--share={_SHARE.value}: must lie in 0…1, above 0.')
  model = command.folder(_MODEL)
  _STUDY.check()
  from kaiju_jax.experiments.studies.sweeps import critical_batch
  from kaiju_jax.experiments.studies.sweeps import critical_batch_report

  settings = critical_batch.Settings(
    tuple(at),
    tuple(multiples),
    _EPSILON.value,
    _SHARE.value,
    _STUDY.seeds,
    _CONFIRM.value,
  )
  out = pathlib.Path(f'{model}-critical_batch')
  _STUDY.run(critical_batch, critical_batch_report, model, settings, out)


if __name__ == '__main__':
  command.run(main)

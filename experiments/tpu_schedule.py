"""What the compiler says of the TPU's attention kernels, without a TPU.

    python -m experiments.tpu_schedule --accelerator=v5e_256 --heads=12 \\
        [--window=1024] [--kind=bfloat16] [--rows=768 --keys=256]

Compiles forward, dq and dk/dv of one layer on 32,768 tokens and prints each
stretch of their code: cycles by the compiler's schedule, and how much of a
unit's slots they fill. The two long ones in a kernel are a visit of a block of
keys (or of rows) with its mask and without; before them stands what a step
of the grid begins with, after them what it ends with.

Nothing was timed. No accelerator is needed: pip install 'kaiju_jax[aot-tpu]'.
"""

from collections.abc import Sequence

from absl import app
from absl import flags

from kaiju_jax.runs import command

_ACCELERATOR = flags.DEFINE_string('accelerator', 'v5e_256', 'A TPU slice.')
_HEADS = flags.DEFINE_integer('heads', 12, 'Heads per device.', lower_bound=1)
_WINDOW = flags.DEFINE_integer('window', None, 'Tokens; none by default.')
_KIND = flags.DEFINE_enum(
  'kind', 'bfloat16', ('bfloat16', 'int8', 'float32'), 'Dtype of q, k and v.'
)
_ROWS = flags.DEFINE_integer(
  'rows', None, 'Rows per tile; those of blocks.py by default.'
)
_KEYS = flags.DEFINE_integer(
  'keys', None, 'Keys per block; those of blocks.py by default.'
)
UNITS = 'MXU', 'VALU', 'XLU', 'EUP', 'VLOAD', 'VSTORE'


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  if (_ROWS.value is None) != (_KEYS.value is None):
    raise app.UsageError('--rows and --keys: give both or neither.')
  import functools

  from kaiju_jax.aot import attention_kernels
  from kaiju_jax.aot import schedule

  make = functools.partial(
    attention_kernels.alone,
    _HEADS.value,
    _WINDOW.value,
    _KIND.value,
    tiles=(_ROWS.value, _KEYS.value) if _ROWS.value else None,
  )
  for name, stretches in schedule.read(make, _ACCELERATOR.value).items():
    if not any(stretch.busy['MXU'] for stretch in stretches):
      continue
    print(f'{name}\n  cycles ' + ' '.join(f'{unit:>6}' for unit in UNITS))
    for stretch in stretches:
      shares = ' '.join(f'{stretch.busy[unit]:6.0%}' for unit in UNITS)
      print(f'  {stretch.bundles:6} {shares}')


if __name__ == '__main__':
  command.run(main, compiles=False)

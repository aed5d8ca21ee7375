"""Measures all that the accelerator at hand can tell, in half an hour.

    python -m experiments.benchmarks.device --minutes=9 [--out=runs/device]
        [--slices=numerics,attention]
    python -m experiments.benchmarks.device --dry

Works through slices in the order of their worth (`order.py` lists them with
their estimates) and writes OUT/<slice>.json after each case, so that the same
command goes on where it was stopped, by the time, a Ctrl-C or a kill. What
does not fit into the time is skipped with a line, for the next run. Then it
draws OUT/tables/{kernels,step,decoding}.md for the pages of
`experiments/results/`, and OUT/tables/proposal.md: which implementation should
be each platform's default, and why.

--dry rehearses every slice on a CPU, at tiny sizes, with interpreted kernels.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command

from . import order
from . import runner
from . import setting as setting_lib
from . import tables

_MINUTES = flags.DEFINE_float(
  'minutes', 9, 'Minutes that it may take.', lower_bound=0
)
_OUT = flags.DEFINE_string('out', 'runs/device', 'Where everything is written.')
_SLICES = flags.DEFINE_list(
  'slices', None, 'Slices to work on; all by default.'
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 9, 'Rounds of each timing.', lower_bound=1
)
_CASE_S = flags.DEFINE_float(
  'case_s',
  None,
  'Seconds after which a case counts as hung; by default 4 times its estimate,'
  ' at least 120.',
  lower_bound=1,
)
_MOST_CASES = flags.DEFINE_integer(
  'most_cases', None, 'Cases of each slice; all by default.', lower_bound=1
)
_RETRY = flags.DEFINE_bool('retry', False, 'Run cases again that failed.')
_DRY = flags.DEFINE_bool('dry', False, 'Rehearse on a CPU.')
_PLATFORM = flags.DEFINE_enum(
  'platform', 'gpu', ['gpu', 'tpu'], 'The platform that a rehearsal plays.'
)
_FAULTS = flags.DEFINE_list(
  'faults',
  [],
  'Faults to rehearse, each SLICE:FAULT; a fault is one of'
  f' {", ".join(setting_lib.FAULTS)}.',
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  names = order.choose(_SLICES.value)
  setting = setting_lib.Setting(
    out=_OUT.value,
    dry=_DRY.value,
    platform=_PLATFORM.value if _DRY.value else None,
    repeats=1 if _DRY.value else _REPEATS.value,
    case_s=_CASE_S.value,
    most_cases=_MOST_CASES.value,
    retry=_RETRY.value,
    faults=setting_lib.faults(_FAULTS.value, _DRY.value),
  )
  pathlib.Path(_OUT.value).mkdir(parents=True, exist_ok=True)
  try:
    runner.run(names, setting, 60 * _MINUTES.value)
  finally:
    print(tables.write(_OUT.value))


if __name__ == '__main__':
  command.run(main)

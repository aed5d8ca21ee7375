"""Measure all that the accelerator at hand can tell, in half an hour.

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
import dataclasses
import pathlib
from typing import Annotated

from kaiju_jax.runs import command
from kaiju_jax.runs import flags

from . import order
from . import runner
from . import setting as setting_lib
from . import tables


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is measured, and how long it may take."""

  # Minutes that it may take.
  minutes: Annotated[float, flags.Bounds(0)] = 9.0
  # Slices to work on; all by default.
  slices: tuple[str, ...] = tuple(order.SLICES)
  setting: setting_lib.Setting = dataclasses.field(
    default_factory=setting_lib.Setting
  )


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  setting = settings.setting
  flags.choose('slices', settings.slices, order.SLICES)
  setting.check()
  if setting.dry:
    setting = dataclasses.replace(setting, repeats=1)
  pathlib.Path(setting.out).mkdir(parents=True, exist_ok=True)
  names = [name for name in order.SLICES if name in settings.slices]
  try:
    runner.run(names, setting, 60 * settings.minutes)
  finally:
    print(tables.write(setting.out))


if __name__ == '__main__':
  command.run(main)

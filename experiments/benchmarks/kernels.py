"""Count what the kernels' shapes need, and time their implementations.

    python -m experiments.benchmarks.kernels [--kernel=squinch] [--json=PATH]

A row is one implementation, or another library's, at one of a kernel's shapes.
Operations, bytes and tiles (visited / needed) are counted, the same anywhere.
On an accelerator each is timed beside its peers and the device's ceilings; on a
CPU times would mean nothing, and there are none. `benchmarks.device` measures
the same with a guard against crashes, and checks numerics first.
"""

from collections.abc import Sequence
import dataclasses
import importlib
from typing import Literal

from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_KERNELS = 'visibility_attention', 'int8_matmul', 'paged_decode', 'squinch'
_COUNTED = 'kernel', 'shape', 'implementation', 'operations', 'bytes', 'tiles'


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is counted and timed."""

  # Folders of kernels/.
  kernel: tuple[
    Literal['visibility_attention', 'int8_matmul', 'paged_decode', 'squinch'],
    ...,
  ] = _KERNELS
  # Rounds of each timing.
  repeats: flags.Positive = 9
  # File that gets the figures as JSON.
  json: str | None = None


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.kernels import benchmark
  from kaiju_jax.kernels import ceilings

  rates = ceilings.measure() if benchmark.is_timed() else None
  rows = []
  for kernel in settings.kernel:
    bench = importlib.import_module(f'kaiju_jax.kernels.{kernel}.bench')
    for name, shape in bench.SHAPES.items():
      rows += benchmark.measure(bench.subjects(name, shape), settings.repeats)
  page = report.Report()
  page.table(
    [
      (
        *row[:3],
        f'{row.operations:.3g}',
        f'{row.bytes:.3g}',
        row.tiles and ' / '.join(f'{count:,}' for count in row.tiles),
        *(harness.row_cells(row, rows, rates) if rates else ()),
      )
      for row in rows
    ],
    (*_COUNTED, *(harness.ROW_COLUMNS if rates else ())),
    left=3,
  )
  page.show()
  harness.keep({'ceilings': rates, 'rows': rows}, settings.json)


if __name__ == '__main__':
  command.run(main)

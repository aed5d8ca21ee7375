"""Compare blockwise attention with a dense mask, in seconds and in memory.

    python -m experiments.benchmarks.attention [--table=memory]

Prints the seconds that output and gradients take, and the memory that the
compiled step asks for beside its operands, of `visibility_attention` and of
the same attention written plainly (einsum, where, softmax, einsum, with and
without remat): float32, one row, in one process. Five minutes on 4 cores.

What came out on 4 cores of a CPU that had other work too, 4 heads of 64:

    length  window  ours, ms   dense, ms   with remat, ms   ratio
     8,192     256       165      11,138           11,272   67.5×
     2,048    None        75         465              407    5.4×
     8,192    None       733       9,455            7,935   10.8×

    MiB        1,024   4,096   8,192   16,384   32,768
    ours        10.6    11.2    15.4     25.7     46.4   (window 256)
    dense       51.0     780   3,096   12,337   49,249

The dense step is bound by memory, hence a ratio beyond that of the sums. Ours
holds one step's blocks, some 8 MiB, and then grows with the length.
"""

from collections.abc import Sequence
import dataclasses
from typing import Literal

from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is compared."""

  # What to measure.
  table: tuple[Literal['time', 'memory'], ...] = ('time', 'memory')
  # Length at which the window is timed.
  length: flags.Positive = 8192
  # Positions that a query looks back.
  window: flags.Positive = 256
  # Lengths timed without a window.
  causal_length: tuple[int, ...] = (2048, 8192)
  # Lengths of the memory table; compiled, not run.
  memory_length: tuple[int, ...] = (1024, 2048, 4096, 8192, 16_384, 32_768)
  # Query heads.
  heads: flags.Positive = 4
  # Key size.
  head_dim: flags.Positive = 64
  # Rounds, each timing every contender once.
  repeats: flags.Positive = 3


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.experiments.benchmarks.parts import dense_attention

  page = report.Report()
  if 'time' in settings.table:
    dense_attention.add_times(page, settings)
  if 'memory' in settings.table:
    dense_attention.add_memory(page, settings)
  page.show()


if __name__ == '__main__':
  command.run(main)

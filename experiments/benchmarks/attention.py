"""Is blockwise attention worth its code, against a dense mask?

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
import math
import statistics

from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_TABLE = flags.DEFINE_multi_enum(
  'table', ['time', 'memory'], ['time', 'memory'], 'What to measure.'
)
_LENGTH = flags.DEFINE_integer(
  'length', 8192, 'Length at which the window is timed.', lower_bound=1
)
_WINDOW = flags.DEFINE_integer(
  'window', 256, 'Positions that a query looks back.', lower_bound=1
)
_CAUSAL_LENGTH = flags.DEFINE_multi_integer(
  'causal_length', [2048, 8192], 'Lengths timed without a window.'
)
_MEMORY_LENGTH = flags.DEFINE_multi_integer(
  'memory_length',
  [1024, 2048, 4096, 8192, 16384, 32768],
  'Lengths of the memory table; compiled, not run.',
)
_HEADS = flags.DEFINE_integer('heads', 4, 'Query heads.', lower_bound=1)
_HEAD_DIM = flags.DEFINE_integer('head_dim', 64, 'Key size.', lower_bound=1)
_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'Rounds, each timing every contender once.', lower_bound=1
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  if 'time' in _TABLE.value:
    report.Report().add(_times()).show()
  if 'memory' in _TABLE.value:
    report.Report().add(_memory()).show()


def _times():
  """Median seconds, and their ratio to the faster dense step's."""
  from kaiju_jax.kernels.visibility_attention import against_dense

  rows = []
  cases = [(_LENGTH.value, _WINDOW.value)]
  cases += [(length, None) for length in _CAUSAL_LENGTH.value]
  for length, window in cases:
    seconds = against_dense.seconds(_shape(length, window), _REPEATS.value)
    ratio = (
      min(seconds[against_dense.DENSE], seconds[against_dense.DENSE_REMAT])
      / (seconds[against_dense.OURS])
    )
    times = [f'{1e3 * seconds[name]:,.1f}' for name in against_dense.CONTENDERS]
    rows.append((length, window, *times, f'{ratio:.1f}×'))
  return report.Table(
    rows,
    ('length', 'window', *against_dense.CONTENDERS, 'ratio'),
    f'Output and gradients, median ms of {_REPEATS.value} rounds',
  )


def _memory():
  """MiB that the compiled step asks for, and the exponents of its growth."""
  from kaiju_jax.kernels.visibility_attention import against_dense

  lengths = sorted(set(_MEMORY_LENGTH.value))
  columns = [
    (name, window)
    for window in (_WINDOW.value, None)
    for name in (against_dense.OURS, against_dense.DENSE_REMAT)
  ]
  mib = {
    column: [
      against_dense.temporary_bytes(column[0], _shape(length, column[1]))
      / 2**20
      for length in lengths
    ]
    for column in columns
  }
  rows = [
    (length, *(f'{mib[column][row]:,.1f}' for column in columns))
    for row, length in enumerate(lengths)
  ]
  if len(lengths) > 1:
    powers = [f'L^{_power(lengths, mib[column]):.2f}' for column in columns]
    rows.append(('growth', *powers))
  return report.Table(
    rows,
    ('length', *(f'{name}\nwindow {window}' for name, window in columns)),
    'Temporary memory of the compiled step, MiB',
  )


def _power(lengths: Sequence[int], values: Sequence[float]) -> float:
  """The p of the least-squares fit values ∝ lengths^p."""
  return statistics.linear_regression(
    [math.log(length) for length in lengths],
    [math.log(value) for value in values],
  ).slope


def _shape(length: int, window: int | None):
  from kaiju_jax.kernels.visibility_attention import against_dense

  return against_dense.Shape(length, window, _HEADS.value, _HEAD_DIM.value)


if __name__ == '__main__':
  command.run(main)

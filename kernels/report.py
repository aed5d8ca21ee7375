"""Reports a kernel's benchmark: turns rows into a table and a JSON file.

    found = report.make(rows, ceilings.measure())
    report.show(found)
    report.write(found, path)

`report.command(measure)`, at the end of a `bench.py`, does all three. A row is
one implementation at one shape. Its seconds are measured; the operations and
bytes that the shape needs are counted. Then

    of ceiling = max(operations / matmul's rate, bytes / copy's rate) / seconds

is the fraction that it reached of the device's best rates, which `ceilings`
measures. A peer is another library's implementation of the same computation; a
row says how many times as fast as each peer it is.
"""

from collections.abc import Callable
from collections.abc import Sequence
import datetime
import json
import pathlib
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.kernels import ceilings as ceilings_lib
from kaiju_jax.kernels import timing

NO_TIMES = (
  'On a CPU times mean nothing: interpreted kernels are slow, and what is fast'
  ' here is not what is fast on an accelerator. Operations, bytes and tiles are'
  ' counted and the same anywhere.'
)


class Row(NamedTuple):
  """One implementation at one shape.

  Attributes:
    kernel: the kernel's folder, and the pass where it has several.
    shape: the shape's name.
    implementation: a module's name, or a peer's.
    seconds: the median time of a call; None where it was not timed.
    operations: operations that the shape needs, two per multiply-add.
    bytes: bytes that the shape must read and write.
    ceiling: the field of `Ceilings` that bounds the operations.
    tiles: numbers of tiles (visited, needed); None where none are skipped.
    max_error: the result's largest error against the reference; None where they
      were not compared.
    is_peer: whether the implementation is another library's.
    spread: the times of all rounds; None where it was not timed.
    problem: why it could not be timed on this platform; None where it was.
  """

  kernel: str
  shape: str
  implementation: str
  seconds: float | None
  operations: float
  bytes: float
  ceiling: str = 'bf16_matmul'
  tiles: tuple[int, int] | None = None
  max_error: float | None = None
  is_peer: bool = False
  spread: timing.Spread | None = None
  problem: str | None = None


def time_fields(spread: timing.Spread | None) -> dict[str, Any]:
  """Returns the fields of a `Row` that hold its times."""
  return {'seconds': spread and spread.median, 'spread': spread}


def make(
  rows: Sequence[Row], ceilings: ceilings_lib.Ceilings
) -> dict[str, Any]:
  """Returns the report of the rows and the device, ready for JSON.

  Args:
    rows: at least one; at most one per shape and implementation.
    ceilings: the rates that were measured in this run.
  """
  device = jax.devices()[0]
  return {
    'device': device.device_kind,
    'platform': jax.default_backend(),
    'driver': device.client.platform_version.splitlines()[0],
    'jax': jax.__version__,
    'date': datetime.datetime.now(datetime.UTC).date().isoformat(),
    'ceilings': ceilings._asdict(),
    'rows': [
      row._asdict() | derive(row, ceilings) | {'times': _times(row, rows)}
      for row in rows
    ],
  }


def derive(row: Row, ceilings: ceilings_lib.Ceilings) -> dict[str, Any]:
  """Returns a row's rates; None where it was not timed."""
  least = max(
    row.operations / getattr(ceilings, row.ceiling), row.bytes / ceilings.copy
  )

  def over(amount):
    return None if row.seconds is None else amount / row.seconds

  return {
    'operations_per_second': over(row.operations),
    'bytes_per_second': over(row.bytes),
    'of_ceiling': over(least),
  }


def _times(row: Row, rows: Sequence[Row]) -> dict[str, float]:
  """Returns {peer: how many times as fast the row is}, at the same shape."""
  if row.seconds is None:
    return {}
  return {
    peer.implementation: peer.seconds / row.seconds
    for peer in rows
    if peer.is_peer
    and peer.seconds is not None
    and (peer.kernel, peer.shape) == (row.kernel, row.shape)
    and peer.implementation != row.implementation
  }


def write(found: dict[str, Any], path: str | pathlib.Path) -> None:
  """Writes a report of `make` as JSON."""
  pathlib.Path(path).write_text(f'{json.dumps(found, indent=2)}\n')


def show(found: dict[str, Any]) -> None:
  """Prints a report of `make`: the device, and a table per kernel.

  On a CPU it shows counts only.
  """
  import rich.console

  rates = found['ceilings']
  # A file has no width; this is wide enough for two peers.
  console = rich.console.Console()
  console.width = console.width if console.is_terminal else 140
  console.print(
    f'{found["device"]} ({found["platform"]}), JAX {found["jax"]},'
    f' {found["date"]}.',
    highlight=False,
  )
  if found['platform'] == 'cpu':
    console.print(NO_TIMES, highlight=False)
  else:
    console.print(
      f'Measured ceilings: {rates["bf16_matmul"] / 1e12:.4g} TFLOP/s bf16,'
      f' {rates["int8_matmul"] / 1e12:.4g} TOP/s int8, copy'
      f' {rates["copy"] / 1e9:.4g} GB/s.',
      highlight=False,
    )
  for kernel in dict.fromkeys(row['kernel'] for row in found['rows']):
    rows = [row for row in found['rows'] if row['kernel'] == kernel]
    console.print(_table(kernel, rows, found['platform'] == 'cpu'))


def _table(kernel: str, rows: Sequence[dict[str, Any]], counts_only: bool):
  import rich.table

  columns = _COUNTED if counts_only else _MEASURED
  peers = (
    [] if counts_only else [r['implementation'] for r in rows if r['is_peer']]
  )
  peers = list(dict.fromkeys(peers))
  table = rich.table.Table(title=kernel)
  table.add_column('shape')
  table.add_column('implementation')
  for name in (*columns, 'max error', *(f'× {peer}' for peer in peers)):
    table.add_column(name, justify='right')
  for row in rows:
    table.add_row(
      row['shape'],
      row['implementation'],
      *(_cell(row[field], *form) for field, *form in columns.values()),
      _cell(row['max_error'], '.1e'),
      *(_cell(row['times'].get(peer), '.2f') for peer in peers),
    )
  return table


# {column: (field, format, factor of the unit)}.
_COUNTED = {
  'operations': ('operations', '.3g'),
  'bytes': ('bytes', '.3g'),
  'tiles / needed': ('tiles', ','),
}
_MEASURED = {
  'ms': ('seconds', '.3f', 1e3),
  'Tera/s': ('operations_per_second', ',.1f', 1e-12),
  'GB/s': ('bytes_per_second', ',.0f', 1e-9),
  'of ceiling': ('of_ceiling', '.0%'),
}


def _cell(value: Any, form: str, factor: float = 1) -> str:
  if value is None:
    return ''
  if isinstance(value, Sequence):
    return ' / '.join(format(each, form) for each in value)
  return format(value * factor, form)


def command(measure: Callable[[int], Sequence[Row]]) -> None:
  """Runs a kernel's benchmark as a command: prints it, and writes JSON.

  Args:
    measure: takes a number of rounds and returns the rows.
  """
  # Imported here, so that importing the module defines no flags.
  from absl import app
  from absl import flags

  repeats = flags.DEFINE_integer('repeats', 9, 'Rounds.', lower_bound=1)
  path = flags.DEFINE_string('json', '', 'File for the numbers.')

  def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
    found = make(measure(repeats.value), ceilings_lib.measure())
    show(found)
    if path.value:
      write(found, path.value)

  app.run(main)

"""Runs contenders in turns, and keeps what they took.

Contenders take turns within each round, so that other work on the machine
disturbs all alike. `kernels/timing.py` gives medians of single calls;
`take_turns` the least of figures that a run measures itself, because what
disturbs only adds.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import importlib.metadata
import pathlib
import platform
import sys
from typing import Any

from kaiju_jax.reporting import report
from kaiju_jax.storage import files


def take_turns(
  runs: Mapping[str, Callable[[], Sequence[float]]],
  turns: int,
  warm: bool = False,
) -> dict[str, list[float]]:
  """Returns the least of each run's figures, such as seconds, over all turns.

  Args:
    runs: calls by name, each of which returns its figures.
    turns: how often each runs.
    warm: whether each runs once before, which does not count.
  """
  least: dict[str, list[float]] = {}
  for turn in range(-warm, turns):
    for name, run in runs.items():
      found = run()
      if turn >= 0:
        least[name] = list(map(min, least.get(name, found), found))
        figures = ', '.join(f'{x:.4g}' for x in found)
        print(f'turn {turn}: {name}: {figures}', file=sys.stderr, flush=True)
  return least


def tell(spread: Mapping[str, float] | None, unit: float = 1e3) -> str:
  """Returns a median with its range, in thousandths unless `unit` differs.

  What was taken once has no range, and says so.
  """
  if spread is None:
    return ''
  median, least, most = (
    f'{unit * spread[name]:,.3g}' for name in ('median', 'least', 'most')
  )
  around = f'{least}–{most}' if spread['rounds'] > 1 else 'once'
  return f'{median} ({around})'


ROW_COLUMNS = 'ms (least–most)', 'of ceiling', 'max error', 'times as fast as'


def row_cells(row: Any, rows: Sequence[Any], ceilings: Any) -> tuple[str, ...]:
  """Returns what was measured of a kernel's row, by ROW_COLUMNS.

  Args:
    row: a `benchmark.Row`.
    rows: all rows, of which peers are compared with it.
    ceilings: the device's `Ceilings`; None where they were not measured.
  """
  from kaiju_jax.kernels import benchmark  # It imports jax.

  if row.spread is None:
    return f'not timed: {row.problem}', '', '', ''
  spread = row.spread
  if not isinstance(spread, Mapping):
    spread = spread._asdict()
  share = error = ''
  if ceilings is not None:
    share = f'{benchmark.of_ceiling(row, ceilings):.0%}'
  if row.max_error is not None:
    error = f'{float(row.max_error):.1e}'
  peers = benchmark.times_as_fast(row, rows).items()
  faster = ', '.join(f'{name} {ratio:.2f}' for name, ratio in peers)
  return tell(spread), share, error, faster


def versions() -> dict[str, str]:
  """Returns the versions of what decides on figures, and the date."""
  found = {'python': platform.python_version()}
  for name in ('jax', 'jaxlib', 'triton', 'jax-triton', 'libtpu'):
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  found['date'] = datetime.datetime.now(datetime.UTC).date().isoformat()
  return found


def keep(figures: Mapping[str, Any], json: str | None) -> None:
  """Writes figures with the versions as JSON, where a path is given."""
  if json:
    path = pathlib.Path(json)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {'versions': versions(), **report.plain(figures)})

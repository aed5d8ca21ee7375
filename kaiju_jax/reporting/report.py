"""Tables and figures of the commands, with one palette.

Figures need matplotlib, from the extra `report`. Importing this module does
not.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import rich.console
import rich.table


def table(
  columns: Sequence[str],
  rows: Iterable[Sequence[object]],
  title: str | None = None,
) -> rich.table.Table:
  """Returns a table for a terminal: the first column left, the others right."""
  found = rich.table.Table(title=title)
  for index, name in enumerate(columns):
    found.add_column(name, justify='right' if index else 'left')
  for row in rows:
    found.add_row(*map(str, row))
  return found


def markdown(
  columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> Iterator[str]:
  """Yields the lines of a table in Markdown."""
  yield f'| {" | ".join(columns)} |'
  yield '|' + '---|' * len(columns)
  for row in rows:
    yield f'| {" | ".join(map(str, row))} |'


def show(
  parts: Iterable[Any], written: Sequence[Any] = (), width: int | None = None
) -> None:
  """Prints tables and sentences, and the files that hold them.

  Args:
    parts: tables, and sentences as strings.
    written: paths.
    width: columns of the terminal; by default as many as it has.
  """
  console = rich.console.Console(width=width)
  for part in parts:
    console.print(part, highlight=False, soft_wrap=isinstance(part, str))
  if written:
    names = ', '.join(map(str, written))
    console.print(f'Written: {names}', highlight=False, soft_wrap=True)


def share(count: int, total: int) -> str:
  """Returns a share in percent with its 95 % interval; '—' of nothing."""
  from kaiju_jax.reporting import statistics

  if not total:
    return '—'
  low, high = statistics.wilson(count, total)
  return f'{100 * count / total:.1f} % ({100 * low:.0f} … {100 * high:.0f})'


def verdict(target: str, is_met: bool) -> str:
  """Returns a target in words, and whether it is met."""
  return f'target {target}, {"met" if is_met else "MISSED"}'


def interval(found: Mapping[str, Any]) -> str:
  """Returns a `value` with its `low` and `high` ends, where it has some."""
  if found['value'] is None:
    return '–'
  if found['low'] is None:
    return f'{found["value"]:.2f}'
  return f'{found["value"]:.2f} ({found["low"]:.2f}–{found["high"]:.2f})'


def plain(value: Any) -> Any:
  """Returns what JSON can hold: lists, names, None for what is not finite."""
  if hasattr(value, '_asdict'):
    value = value._asdict()
  if hasattr(value, 'tolist'):
    value = value.tolist()
  if isinstance(value, dict):
    return {str(key): plain(one) for key, one in value.items()}
  if isinstance(value, list | tuple):
    return [plain(one) for one in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value

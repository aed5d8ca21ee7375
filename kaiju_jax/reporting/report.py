"""Tables and figures of the commands, with one palette.

Figures need matplotlib, from the extra `report`. Importing this module does
not.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
from typing import Any

import rich.console
import rich.table

# Readers who cannot tell red from green can tell the first ones apart.
PALETTE = '#0b4f8a', '#009e73', '#d55e00', '#cc79a7', '#56b4e9', '#7f6000'
INK, FAINT, GREY = '#222222', '#767676', '#c4c4c4'
BLUE, ORANGE = PALETTE[0], PALETTE[2]
_DASHES = '-', '--', ':', '-.'


class MissingExtra(ValueError):
  """A package of an extra is not installed; the message names the extra."""


def require_figures() -> None:
  """Refuses a command that could not draw its figures at the end.

  Raises:
    MissingExtra: matplotlib is not installed.
  """
  try:
    import matplotlib.figure  # noqa: F401
  except ImportError as error:
    raise MissingExtra(
      "figures need matplotlib: pip install 'kaiju_jax[report]'."
    ) from error


def figure(width: float, height: float) -> Any:
  """Returns an empty `matplotlib.figure.Figure`.

  Args:
    width, height: in inches.

  Raises:
    MissingExtra: matplotlib is not installed.
  """
  require_figures()
  import matplotlib.figure

  return matplotlib.figure.Figure(figsize=(width, height), layout='constrained')


def save(page: Any, path: str | os.PathLike) -> None:
  """Writes a figure as a PNG."""
  page.savefig(path, format='png', dpi=130)


def style(index: int) -> dict[str, str]:
  """Returns the colour and the dashes of the index-th line of a figure."""
  return {
    'color': PALETTE[index % len(PALETTE)],
    'linestyle': _DASHES[index // len(PALETTE) % len(_DASHES)],
  }


def label_ticks(axis: Any, places: Sequence[float], labels: Iterable) -> None:
  """Labels the given places of an axis, and removes minor labels.

  Args:
    axis: `axes.xaxis` or `axes.yaxis`.
    places, labels: places and their labels, equally many.
  """
  from matplotlib import ticker

  axis.set_ticks(places, [str(label) for label in labels])
  axis.set_minor_formatter(ticker.NullFormatter())


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
  from kaiju_jax.evaluation import proportion

  if not total:
    return '—'
  low, high = proportion.wilson(count, total)
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

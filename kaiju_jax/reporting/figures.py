"""Figures, with one palette; the only module that imports matplotlib.

It comes with the extra `report`. Importing this module does not need it.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import io
import os
import re
from typing import Any

import numpy as np

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


def save(page: Any, path: str | os.PathLike[str]) -> None:
  """Writes a figure as a PNG."""
  page.savefig(path, format='png', dpi=130)


def draw_svg(page: Any, name: str) -> str:
  """Returns a figure as an SVG element of an HTML page, with text as text.

  Args:
    page: see `figure`.
    name: another one for each figure of the page; begins the element's ids.
  """
  import matplotlib

  with io.StringIO() as file:
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name}):
      page.savefig(file, format='svg')
    text = file.getvalue()
  # HTML knows the namespaces, and needs neither the head nor the metadata.
  text = text[text.index('<svg') :]
  head = r'<metadata>.*?</metadata>|\sxmlns(:\w+)?="[^"]*"'
  text = re.sub(head, '', text, flags=re.DOTALL)
  prefix = re.sub(r'\W', '-', name)
  return re.sub(r'(\sid="|href="#|url\(#)', rf'\g<1>{prefix}-', text)


def style(index: int) -> dict[str, str]:
  """Returns the colour and the dashes of the index-th line of a figure."""
  return {
    'color': PALETTE[index % len(PALETTE)],
    'linestyle': _DASHES[index // len(PALETTE) % len(_DASHES)],
  }


def label_ticks(
  axis: Any, places: Sequence[float], labels: Iterable[Any]
) -> None:
  """Labels the given places of an axis, and removes minor labels.

  Args:
    axis: `axes.xaxis` or `axes.yaxis`.
    places, labels: places and their labels, equally many.
  """
  from matplotlib import ticker

  axis.set_ticks(places, [str(label) for label in labels])
  axis.set_minor_formatter(ticker.NullFormatter())


def draw_cells(
  axes: Any, percent: np.ndarray, columns: Sequence[Any], rows: Sequence[Any]
) -> None:
  """Draws a heatmap of percentages, each written into its cell.

  Args:
    axes: matplotlib's.
    percent: [rows, columns], 0…100; NaN leaves a cell empty.
    columns, rows: their labels.
  """
  axes.imshow(percent, cmap=_percent_colours(), vmin=0, vmax=100, aspect='auto')
  for (row, column), value in np.ndenumerate(percent):
    if np.isfinite(value):
      axes.text(
        column,
        row,
        f'{value:.0f}',
        ha='center',
        va='center',
        fontsize=7.5,
        color='white' if value > 85 or value < 18 else INK,
      )
  axes.set_xticks(range(len(columns)), columns)
  axes.set_yticks(range(len(rows)), rows)
  axes.tick_params(length=0, colors=INK)
  axes.spines[:].set_visible(False)
  axes.set_facecolor('#eeeeee')


def draw_colour_bar(page: Any, heatmaps: Any) -> None:
  """Draws the scale of `draw_cells` beside a figure's heatmaps."""
  from matplotlib import cm
  from matplotlib import colors

  bar = page.colorbar(
    cm.ScalarMappable(colors.Normalize(0, 100), _percent_colours()),
    ax=heatmaps,
    fraction=0.02,
    aspect=45,
    pad=0.01,
  )
  bar.set_label('accuracy (%)')
  bar.outline.set_visible(False)


def _percent_colours() -> Any:
  from matplotlib import colors

  return colors.LinearSegmentedColormap.from_list(
    'needle', ['#a63603', '#f1a340', '#f7f3ea', '#92c5de', '#2166ac']
  )

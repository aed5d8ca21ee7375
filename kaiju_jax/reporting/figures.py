"""Figures, with one palette; the only module that imports matplotlib.

It comes with the extra `report`. Importing this module does not need it.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import os
from typing import Any

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

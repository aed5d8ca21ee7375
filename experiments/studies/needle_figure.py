"""Draws the needle's records as one figure: heatmaps, and curves by distance.

The upper part has heatmaps of depth × length for each arm, one per number of
distractors; a line marks the arm's reach (how far it can carry information).
The lower part shows accuracy by the distance from the query at the trained
length.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any

import numpy as np

from kaiju_jax.reporting import figures
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.tasks.needle import report

# The widest line comes first, so that equal later lines stay visible on it.
_LINES = (
  (figures.GREY, 7.0),
  (figures.PALETTE[4], 4.2),
  (figures.BLUE, 1.6),
  (figures.ORANGE, 1.8),
  (figures.PALETTE[1], 1.8),
  (figures.PALETTE[3], 1.8),
)
_INCH = 2.75  # Width of a heatmap.


def draw(
  records: Sequence[needle.Record],
  setting: report.Setting,
  reach: Mapping[str, int | None],
  path: str | os.PathLike[str],
  title: str = 'Needle in a haystack',
) -> None:
  """Writes the figure as a PNG: see `page`."""
  figures.save(page(records, setting, reach, title), path)


def page(
  records: Sequence[needle.Record],
  setting: report.Setting,
  reach: Mapping[str, int | None],
  title: str = 'Needle in a haystack',
) -> Any:
  """Returns the figure.

  Args:
    records: the records of the arms to show.
    setting: the comparison's setting.
    reach: the tokens that each arm can look back; None for all.
    title: the first words above the panels.
  """
  arms = report.arms(records)
  distractors = sorted(needle.DISTRACTORS, reverse=True)
  columns = max(3, len(arms))
  drawn = figures.figure(_INCH * columns + 1.5, 11.4)
  drawn.get_layout_engine().set(h_pad=0.09, w_pad=0.06)
  above, below = drawn.subfigures(2, 1, height_ratios=(2.05, 1))
  heatmaps = above.subplots(
    len(distractors), len(arms), sharex=True, sharey=True, squeeze=False
  )
  for row, count in enumerate(distractors):
    for column, arm in enumerate(arms):
      own = [record for record in records if record.arm == arm]
      axes = heatmaps[row, column]
      _heatmap(axes, own, count, setting, reach[arm])
      if row == 0:
        _head(axes, arm, own, setting, reach[arm])
      if row == len(distractors) - 1:
        axes.set_xlabel('length of the row (tokens)')
    heatmaps[row, 0].set_ylabel(
      f'{_distractors(count)}\n\ndepth of the needle (%)'
    )
  figures.draw_colour_bar(above, heatmaps)
  curves = below.subplots(1, len(distractors), sharey=True, squeeze=False)[0]
  for axes, count in zip(curves, distractors):
    _curves(axes, records, arms, count, setting)
  curves[0].set_ylabel('accuracy (%)')
  curves[-1].legend(
    loc='center left', bbox_to_anchor=(1.01, 0.5), frameon=False
  )
  seeds = len({record.seed for record in records})
  drawn.suptitle(
    f'{title}: {seeds} seed{"s" if seeds > 1 else ""}, trained at length'
    f' {setting.length}, windows of {setting.window}\n{setting.note}',
    color=figures.INK,
    fontsize=11,
  )
  return drawn


def _head(axes, arm, own, setting, reach) -> None:
  """Writes the arm's name, accuracy and reach above its heatmaps."""
  score = report.score(
    report.on_grid(own, setting.length, max(needle.DISTRACTORS))
  )
  sees = 'sees the whole row'
  if reach is not None:
    sees = f'sees {reach} tokens, below the line'
  axes.set_title(f'{arm}\n', fontweight='bold', color=figures.INK)
  axes.annotate(
    f'{100 * score.mean:.1f} % at {setting.length}; {sees}',
    (0.5, 1),
    xycoords='axes fraction',
    xytext=(0, 6),
    textcoords='offset points',
    ha='center',
    fontsize=8.5,
    color=figures.INK,
  )


def _distractors(count: int) -> str:
  return f'{count} distractor needle{"s" if count > 1 else ""}'


def _heatmap(axes, own, count, setting, reach) -> None:
  """Draws percentages, with depth downwards and length to the right."""
  lengths = sorted({record.length for record in own})
  percent = np.full((len(needle.DEPTHS), len(lengths)), np.nan)
  for column, length in enumerate(lengths):
    grid = report.on_grid(own, length, count)
    for row, depth in enumerate(needle.DEPTHS):
      score = report.score(r for r in grid if r.depth == depth)
      if score:
        percent[row, column] = 100 * score.mean
  names = [name_length(length, setting.length) for length in lengths]
  figures.draw_cells(axes, percent, names, needle.DEPTHS)
  if reach is not None:
    _mark_reach(axes, own, lengths, reach)


def name_length(length: int, trained: int) -> str:
  """Returns the label of a column, which marks the trained length."""
  return f'{length}\ntrained' if length == trained else str(length)


def _mark_reach(axes, own, lengths, reach) -> None:
  """Draws a line between the depths beyond the reach, above, and the others."""
  edges = []
  for length in lengths:
    beyond = {r.depth for r in own if r.length == length and r.distance > reach}
    edges.append(sum(depth in beyond for depth in needle.DEPTHS) - 0.5)
  x = np.repeat(np.arange(len(lengths) + 1) - 0.5, 2)[1:-1]
  axes.plot(x, np.repeat(edges, 2), color=figures.INK, lw=1.8, clip_on=False)


def _curves(axes, records, arms, count, setting) -> None:
  """Draws all arms' accuracy by distance, with `count` distractors."""
  for number, arm in enumerate(arms):
    own = [record for record in records if record.arm == arm]
    along = report.on_curve(own, setting.length, count)
    if along:
      _curve(axes, along, number, arm)
  _landmarks(axes, setting)
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter('{x:.0f}')
  axes.set_ylim(-3, 104)
  axes.set_title(_distractors(count), fontsize=10, color=figures.INK)
  axes.set_xlabel('distance from the query to the needle (tokens)')
  axes.spines[['top', 'right']].set_visible(False)


def _curve(axes, along, number: int, arm: str) -> None:
  """Draws one arm's accuracy."""
  color, width = _LINES[number % len(_LINES)]
  distances = sorted({record.distance for record in along})
  scores = [
    report.score(r for r in along if r.distance == d) for d in distances
  ]
  axes.plot(
    distances,
    [100 * score.mean for score in scores],
    color=color,
    lw=width,
    label=arm,
    solid_capstyle='round',
    solid_joinstyle='round',
    zorder=2 + number,
  )


def _landmarks(axes, setting: report.Setting) -> None:
  """Marks chance, one window, and all windows end to end."""
  axes.axhline(100 * setting.chance, color=figures.FAINT, lw=0.8, ls=':')
  axes.annotate(
    f'chance {100 * setting.chance:.1f} %',
    (0.01, 100 * setting.chance),
    xycoords=('axes fraction', 'data'),
    xytext=(0, 3),
    textcoords='offset points',
    fontsize=8,
    color=figures.FAINT,
  )
  for place, text, side in (
    (setting.window, 'one window', 'right'),
    (setting.windows_reach, 'all windows\nend to end', 'left'),
  ):
    axes.axvline(place, color=figures.FAINT, lw=0.8, ls='--', zorder=1)
    axes.annotate(
      f'{text}\n{place}',
      (place, 50),
      xytext=(3 if side == 'left' else -3, 0),
      textcoords='offset points',
      fontsize=8,
      color=figures.FAINT,
      ha=side,
      va='center',
    )

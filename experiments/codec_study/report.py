"""What codecs and level maps amount to, as tables for a terminal."""

from collections.abc import Mapping
import math

import rich.box
import rich.table

from . import level_study
from . import quality as codec_quality

_CAPTION = (
  'SNR in dB; |ln|: mean |ln(|y|/|x|)| of what arrives; dist: mean'
  ' 2|x−y|/(|x|+|y|), 2 for what is flushed. In %: flushed, and of the wrong'
  ' sign, of the numbers that are not zero; raised of the zeros; bias: mean'
  ' (y−x)/x;'
  ' gain: Σxy/Σx² − 1.'
)


def qualities(
  title: str,
  rows: Mapping[str, codec_quality.Quality],
  bits: Mapping[str, float] | None = None,
) -> rich.table.Table:
  """Returns {name: quality} as a table for a terminal of 80 columns.

  Args:
    title: heading of the table.
    rows: {name: quality}, in the table's order.
    bits: {name: bits per number}; None leaves the column out.
  """
  table = _table(title, _CAPTION)
  table.add_column('codec' if bits else 'map', no_wrap=True)
  if bits:
    table.add_column('bits', justify='right', no_wrap=True)
  names = 'SNR', '|ln|', 'dist', 'flush', 'sign', 'bias', 'gain', 'raised'
  for name in names:
    table.add_column(name, justify='right', no_wrap=True)
  for name, found in rows.items():
    table.add_row(
      name,
      *([f'{bits[name]:g}'] if bits else []),
      'exact' if math.isinf(found.snr) else f'{found.snr:.1f}',
      _number(found.log_error),
      _number(found.distance),
      _percent(found.flushed),
      _percent(found.signs),
      _percent(found.bias),
      _percent(found.gain),
      _percent(found.raised),
    )
  return table


def studies(rows: Mapping[str, level_study.Study]) -> rich.table.Table:
  """Returns {distribution: study} as a table for a terminal of 80 columns."""
  table = _table(
    'Mean |ln| error of the level maps',
    'Log-uniform: over so many octaves. The header’s step is included. law: the'
    ' best power law ((k + c)/16)^p; best: the best 16 levels of that'
    ' distribution, or beside zero the best 15 for what zero does not flush.',
  )
  table.add_column('distribution', no_wrap=True)
  for name in (
    *('floor', 'law', 'p', 'c', 'best', '/law', '/best'),
    *('zero', '/best', 'fitted'),
  ):
    table.add_column(name, justify='right', no_wrap=True)
  for name, found in rows.items():
    table.add_row(
      name,
      _number(found.floor),
      _number(found.power.error),
      f'{found.power.power:.2f}',
      f'{found.power.offset:.2f}',
      _number(found.best_error),
      f'{found.floor / found.power.error:.3f}',
      f'{found.floor / found.best_error:.3f}',
      _number(found.zero),
      f'{found.zero / found.zero_best:.3f}',
      _number(found.fitted),
    )
  return table


def _table(title: str, caption: str) -> rich.table.Table:
  return rich.table.Table(
    title=title,
    caption=caption,
    box=rich.box.SIMPLE_HEAD,
    padding=0,
  )


def _number(value: float) -> str:
  if math.isnan(value):
    return '–'
  return '0' if value == 0 else f'{value:.4f}'.removeprefix('0')


def _percent(value: float) -> str:
  if math.isnan(value):
    return '–'
  return '0' if value == 0 else f'{100 * value:.2f}'

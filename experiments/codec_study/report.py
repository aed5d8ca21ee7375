"""The quality of codecs as a table for a terminal."""

from collections.abc import Mapping
import math

import rich.box
import rich.table

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
  bits: Mapping[str, float],
) -> rich.table.Table:
  """Returns {name: quality} as a table for a terminal of 80 columns.

  Args:
    title: heading of the table.
    rows: {name: quality}, in the table's order.
    bits: {name: bits per number}.
  """
  table = rich.table.Table(
    title=title, caption=_CAPTION, box=rich.box.SIMPLE_HEAD, padding=0
  )
  table.add_column('codec', no_wrap=True)
  for name in (
    *('bits', 'SNR', '|ln|', 'dist'),
    *('flush', 'sign', 'bias', 'gain', 'raised'),
  ):
    table.add_column(name, justify='right', no_wrap=True)
  for name, found in rows.items():
    table.add_row(
      name,
      f'{bits[name]:g}',
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


def _number(value: float) -> str:
  if math.isnan(value):
    return '–'
  return '0' if value == 0 else f'{value:.4f}'.removeprefix('0')


def _percent(value: float) -> str:
  if math.isnan(value):
    return '–'
  return '0' if value == 0 else f'{100 * value:.2f}'
